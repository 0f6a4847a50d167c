"""What a paper says of its figure, judged by code against the data: the words are the same in every
report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIRMED, NOT_CONFIRMED, NOT_MEASURED = "confirmed", "not confirmed", "not measured here"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what the data say to it, and the numbers that say so (or why there
    are none)."""

    says: str
    verdict: str
    found: str

    def __str__(self) -> str:
        return f"“{self.says}”: **{self.verdict}**: {self.found}."


def judged(says: str, holds: bool | None, found: str) -> Claim:
    """`holds` is None where a number that it needs is missing."""
    if holds is None:
        return Claim(says, NOT_MEASURED, "a point that it needs is missing")
    return Claim(says, CONFIRMED if holds else NOT_CONFIRMED, found)


def not_measured(says: str, why: str) -> Claim:
    return Claim(says, NOT_MEASURED, why)


def markdown(claims: Sequence[Claim]) -> str:
    return "\n".join(f"* The paper: {claim}" for claim in claims)


def as_head(claims: Sequence[Claim]) -> dict[str, str]:
    """For the head of a CSV whose rows are not enough to judge by."""
    return {
        f"claim {number}": f"{one.says} | {one.verdict} | {one.found}"
        for number, one in enumerate(claims, 1)
    }


def of_head(head: Mapping[str, str]) -> list[Claim]:
    """What `as_head` wrote."""
    told = [value.split(" | ", 2) for key, value in head.items() if key.startswith("claim ")]
    return [Claim(*parts) for parts in told if len(parts) == 3]
