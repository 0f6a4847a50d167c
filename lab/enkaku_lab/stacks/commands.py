"""Clients that are one command from login to logout: when they give up, that is a finding."""

from enkaku_lab.process import CommandFailed
from enkaku_lab.stacks import GaveUp, Go, Reached


def command_client(measure: Go) -> Go:
    """`measure`, whose time-out is reported as `GaveUp`, and a result without data too."""

    def go() -> Reached:
        try:
            reached = measure()
        except CommandFailed as failed:
            if failed.code is None:
                raise GaveUp("the client did not end in time") from None
            raise
        if reached.bytes <= 0 or reached.seconds <= 0:
            raise GaveUp("nothing arrived")
        return reached

    return go
