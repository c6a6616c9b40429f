"""A published value beside a measured one. The two never mix: published ones come from a data file alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Claim:
    """One published value."""

    figure: str
    cell: str
    published: float
    unit: str
    tolerance: float  # in the unit: half of the last digit printed, 0 for counts
    why: str = ""  # the explanation, where it is known to be contradicted


class Measured(NamedTuple):
    value: float
    how: str  # what was done and read


@dataclass(frozen=True)
class Line:
    """A claim and what became of it."""

    claim: Claim
    measured: Measured | None  # None: nothing here can measure it yet

    @property
    def deviation(self) -> float | None:
        return None if self.measured is None else self.measured.value - self.claim.published

    @property
    def within(self) -> bool | None:
        # Rounding must not turn 0.05 into more than itself.
        return None if self.deviation is None else abs(self.deviation) <= self.claim.tolerance + 1e-9

    @property
    def verdict(self) -> str:
        if self.within is None:
            return "waits for a later part"
        return "reproduced" if self.within else "contradicted"

    @property
    def surprising(self) -> bool:
        """Contradicted, and nobody knows why."""
        return self.within is False and not self.claim.why

    def record(self) -> dict[str, Any]:
        """The keys that scripts rely on."""
        value = None if self.measured is None else self.measured.value
        how = self.measured.how if self.measured else ""
        return {
            "figure": self.claim.figure,
            "cell": self.claim.cell,
            "published": self.claim.published,
            "measured": value,
            "deviation": self.deviation,
            "tolerance": self.claim.tolerance,
            "within": self.within,
            "how": how,
            "unit": self.claim.unit,
            "verdict": self.verdict,
            "why": self.claim.why,
        }


def compare(claims: list[Claim], measured: dict[tuple[str, str], Measured]) -> list[Line]:
    """A line for each claim, in the claims' order. Measured values belong to (figure, cell)."""
    return [Line(claim, measured.get((claim.figure, claim.cell))) for claim in claims]
