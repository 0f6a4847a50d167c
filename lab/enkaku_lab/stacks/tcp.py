"""Plain TCP: iperf3 from memory to memory, one connection or several. What a path carries."""

from collections.abc import Iterator
from contextlib import contextmanager

from enkaku_lab.experiment import Link, Load
from enkaku_lab.peers import iperf3
from enkaku_lab.stacks import GIVE_UP_S, Go, Place, Reached, Stack
from enkaku_lab.stacks.commands import command_client


class Tcp(Stack):
    """The load's kind is the direction; `connections` of the load are its streams."""

    name = "tcp"
    label = "plain TCP (iperf3)"
    programs = ("iperf3", "ss")
    kinds = ("read-file", "read", "write")
    port = 5201

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        with iperf3.serve(place.logs, address=place.far, port=self.port):
            yield

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        streams = 1 if load.connections == "auto" else load.connections
        # iperf3 takes whole seconds only.
        seconds, omit = max(1, round(load.seconds_max)), round(load.ramp_s)

        def go() -> Reached:
            got = iperf3.transfer(
                place.far,
                self.port,
                seconds=seconds,
                from_server=load.kind != "write",
                streams=streams,
                congestion_control=link.cc if link.cc_free else None,
                omit_seconds=omit,
                timeout_s=seconds + omit + GIVE_UP_S,
            )
            return Reached(got.bytes, got.seconds, got.cpu_s, streams)

        yield command_client(go)
