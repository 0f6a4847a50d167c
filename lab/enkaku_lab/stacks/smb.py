"""SMB: Samba's smbd at the far end; libsmbclient, one call after the other, at the near end. SMB 3, and SMB 1 as S4
had it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    only: str | None = None
    """The protocol, where it is not to be agreed."""

    def missing(self) -> str | None:
        return super().missing() or lacks("libsmbclient.so.0", "smbclient")

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        state = self._state(place)
        with samba.serve(place.served, state, address=place.far, port=self.port, only=self.only):
            yield

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        url = samba.url(place.far, self.port, place.data.name)
        # The client reads the same configuration, so that none of the machine's applies.
        env = {**os.environ, "SMB_CONF_PATH": str(self._state(place) / "smb.conf")}
        with reader(self.name, url, load, original=place.data, env=env) as go:
            yield go

    def _state(self, place: Place) -> Path:
        return place.folder / f"samba-{self.name}"


class Smb1(Smb):
    """Its client asks for 64 KB at most."""

    name = "smb1"
    label = "SMB 1 (Samba + libsmbclient)"
    port = 1446
    only = "NT1"
