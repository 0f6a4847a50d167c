"""SMB 3: Samba's smbd at the far end; libsmbclient, one call after the other, at the near end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from enkaku_lab.experiment import Link, Load
from enkaku_lab.peers import samba
from enkaku_lab.stacks import Go, Place, Stack
from enkaku_lab.stacks.libraries import lacks
from enkaku_lab.stacks.reading import reader


class Smb(Stack):
    name = "smb"
    label = "SMB (Samba + libsmbclient)"
    programs = ("smbd",)
    kinds = ("read-file",)
    port = 1445

    def missing(self) -> str | None:
        return super().missing() or lacks("libsmbclient.so.0", "smbclient")

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        with samba.serve(place.served, _state(place), address=place.far, port=self.port):
            yield

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        url = samba.url(place.far, self.port, place.data.name)
        # The client reads the same configuration, so that none of the machine's applies.
        env = {**os.environ, "SMB_CONF_PATH": str(_state(place) / "smb.conf")}
        with reader("smb", url, load, original=place.data, env=env) as go:
            yield go


def _state(place: Place):
    return place.folder / "samba"
