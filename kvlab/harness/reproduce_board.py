"""The scoreboard of committed pages, and the pages themselves, written again from what their commands found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.errors import UsageError
from kvlab.harness import output, reproduce_figures
from kvlab.harness import reproduce_pages as pages
from kvlab.harness.table import grid

if TYPE_CHECKING:
    from kvlab.reproduce.frame import Outcome
    from kvlab.reproduce.kept import Kept
    from kvlab.reproduce.papers import Reproduced

INTRODUCTION = """\
# The papers' tables, published beside ours

Each page says its command, seeds and minutes; beside it lie a .csv, a .tex, a figure and a .json of what was found.
What the columns mean, what is allowed, why something is missed: [docs/reproduction.md](../../docs/reproduction.md).
Made on a CPU of two cores that others used at the same time; what says cost model is SIMULATED.

    kvlab reproduce pages --out experiments/reproduce/README.md    # this page and all others, from the .json files
"""
CLOSING = """\
Cells that a paper itself contradicts, and cells that are only shown, are in no count. Run again with the same seeds,
the numbers are the same."""


def write_page(path: Path, text: str, kept: Kept) -> None:
    """FILE, and beside it what others read."""
    from kvlab.reproduce.kept import to_text

    output.write(path, text)
    output.write(path.with_suffix(".csv"), pages.csv_text(kept.done))
    output.write(path.with_suffix(".tex"), "\n".join(map(pages.latex, kept.done)))
    output.write(path.with_suffix(".json"), to_text(kept))
    reproduce_figures.draw(kept.done, path.with_suffix(".png"))


def page(kept: Kept) -> str:
    """Of one paper its figures; of several the scoreboard."""
    if len(kept.done) == 1:
        return pages.markdown(kept.done[0], kept.command, kept.seeds)
    return pages.board(kept.done) + "\n"


def write_again(board: Path) -> str:
    """Every page beside that file, and the scoreboard into it; returns the scoreboard."""
    from kvlab.reproduce.kept import from_text

    files = sorted(board.parent.glob("*.json"))
    if not files:
        raise UsageError(f"{board}: no .json of `kvlab reproduce NAME --out` lies beside it")
    found = {file: from_text(file.read_text(), str(file)) for file in files}
    for file, kept in found.items():
        write_page(file.with_suffix(".md"), page(kept), kept)
    curves = sorted(file.stem for file in board.parent.glob("*_curves.md"))
    text = scoreboard({file.stem: kept for file, kept in found.items()}, curves)
    output.write(board, text)
    return text


def scoreboard(found: dict[str, Kept], curves: list[str]) -> str:
    """By the names of the pages, without their endings; `curves`: of pages of latency by rate."""
    done = [(name, one) for name, kept in found.items() for one in kept.done]
    body = [_row(name, one.paper.name, outcome) for name, one in done for outcome in one.outcomes]
    table = grid(["figure", "how", "cells within", "verdict", "page"], body, left={"figure", "how", "verdict", "page"})
    counts = pages.counts(_together([one for _, one in done]))
    links = ", ".join(f"[{name}]({name}.md)" for name in curves)
    shown = [f"Latency by rate, both curves: {links}.\n"] if curves else []
    return "\n".join([INTRODUCTION, "Figures reproduced, of those counted:\n", counts, table, *shown, CLOSING, ""])


def _together(done: list[Reproduced]) -> list[Reproduced]:
    """One of each paper, with the figures of all its pages."""
    from kvlab.reproduce.papers import Reproduced

    papers: dict[str, Reproduced] = {}
    for one in done:
        papers.setdefault(one.paper.name, Reproduced(one.paper, [])).outcomes.extend(one.outcomes)
    return list(papers.values())


def _row(name: str, paper: str, outcome: Outcome) -> list[str]:
    counted = [line for line in outcome.lines if line.cell.counts]
    within = f"{sum(line.within for line in counted)} of {len(counted)}" if counted else "-"
    return [f"{paper} {outcome.name}", outcome.kind, within, outcome.verdict, f"[{name}]({name}.md)"]
