"""NFSv4: nfs-ganesha at the far end; libnfs, one call after the other, at the near end."""

from collections.abc import Iterator
from contextlib import contextmanager

from enkaku_lab.experiment import Link, Load
from enkaku_lab.peers import ganesha
from enkaku_lab.stacks import Go, Place, Stack
from enkaku_lab.stacks.libraries import lacks
from enkaku_lab.stacks.reading import reader


class Nfs(Stack):
    name = "nfs"
    label = "NFSv4 (ganesha + libnfs)"
    programs = ("ganesha.nfsd",)
    kinds = ("read-file",)
    port = 2049

    def missing(self) -> str | None:
        return super().missing() or lacks("libnfs.so.13", "libnfs-utils")

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        state = place.folder / "ganesha"
        with ganesha.serve(place.served, state, address=place.far, port=self.port):
            yield

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        url = ganesha.url(place.far, self.port, place.data.name)
        with reader("nfs", url, load, original=place.data) as go:
            yield go
