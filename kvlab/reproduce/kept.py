"""What a command found, as a file beside its page: pages are written again from it without another run.

A page also says what is published, allowed and explained; that comes from the data files as they are when it is
written.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from kvlab.errors import UsageError
from kvlab.reproduce.frame import Found, Outcome, Paper
from kvlab.reproduce.papers import Reproduced


class Kept(NamedTuple):
    command: str
    seeds: tuple[int, ...]
    done: list[Reproduced]


def to_text(kept: Kept) -> str:
    figures = [_figure(one.paper.name, outcome) for one in kept.done for outcome in one.outcomes]
    return json.dumps({"command": kept.command, "seeds": kept.seeds, "figures": figures}, indent=1) + "\n"


def _figure(paper: str, outcome: Outcome) -> dict[str, object]:
    found = {line.cell.name: {"values": line.found.values, "how": line.found.how} for line in outcome.lines}
    return {
        "paper": paper,
        "figure": outcome.name,
        "kind": outcome.kind,
        "minutes": round(outcome.minutes, 2),
        "found": found,
    }


def from_text(text: str, name: str) -> Kept:
    """UsageError: a figure or a cell that the data files no longer have, or one that they have since."""
    read = json.loads(text)
    papers: dict[str, Reproduced] = {}
    for figure in read["figures"]:
        one = papers.setdefault(figure["paper"], Reproduced(Paper.load(figure["paper"]), []))
        found = {cell: Found(had["values"], had["how"]) for cell, had in figure["found"].items()}
        try:
            one.outcomes.append(one.paper.outcome(figure["figure"], figure["kind"], found, figure["minutes"]))
        except (KeyError, ValueError) as error:
            raise UsageError(f"{name}: {figure['paper']} {figure['figure']}: {error}; run it again") from None
    return Kept(read["command"], tuple(read["seeds"]), list(papers.values()))
