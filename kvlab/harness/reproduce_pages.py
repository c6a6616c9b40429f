"""A paper's figures beside ours, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from kvlab.harness.table import grid

if TYPE_CHECKING:
    from kvlab.reproduce.frame import Line, Outcome
    from kvlab.reproduce.papers import Reproduced

HEAD = ["cell", "published", "ours", "spread", "deviation", "tolerance", "within"]
COLUMNS = (
    "paper", "figure", "cell", "published", "measured", "low", "high", "deviation", "tolerance", "within",
    "verdict", "how",
)  # fmt: skip
RULES = """\
A figure is reproduced when each of its cells that count is within its tolerance (kvlab/reproduce/tolerances.json).
A cell that the paper itself contradicts, or that is only shown, decides nothing. Ours is the median of the seeds.
How: arithmetic, from shapes alone; bookkeeping, strategies and scheduler without a clock; cost model, on a clock that
counts what a GPU would take (SIMULATED); measured here."""


def markdown(done: Reproduced, command: str, seeds: tuple[int, ...]) -> str:
    parts = [
        f"# `kvlab reproduce {done.paper.name}`",
        f"Published: {done.paper.source}. Nothing here was run on the paper's machines.",
        f"    {command}\n\nSeeds {', '.join(map(str, seeds))}; {sum(o.minutes for o in done.outcomes):.1f} minutes.",
        RULES,
        board([done]),
        *[_figure(outcome) for outcome in done.outcomes],
        *_left_out(done),
    ]
    return "\n\n".join(parts) + "\n"


def board(papers: list[Reproduced]) -> str:
    """Figures reproduced of those counted, by kind, and their names."""
    names = [
        f"- {done.paper.name}: {verdict}: "
        + (", ".join(o.name for o in done.outcomes if o.verdict == verdict) or "none")
        for done in papers
        for verdict in ("reproduced", "missed", "not counted")
    ]
    return counts(papers).rstrip() + "\n\n" + "\n".join(names)


def counts(papers: list[Reproduced]) -> str:
    """Figures reproduced of those counted, by paper and kind."""
    from kvlab.reproduce.frame import KINDS, scoreboard

    scores = {done.paper.name: scoreboard(done.outcomes) for done in papers}
    body = [
        [name, *(f"{score[kind][0]} of {score[kind][1]}" if kind in score else "-" for kind in KINDS)]
        for name, score in scores.items()
    ]
    return grid(["reproduced", *KINDS], body, left={"reproduced"})


def _figure(outcome: Outcome) -> str:
    table = grid(HEAD, [_row(line) for line in outcome.lines], left={"cell", "within"}).rstrip()
    unit = outcome.lines[0].cell.unit
    parts = [f"## {outcome.name}: {outcome.verdict}", f"{outcome.title}, in {unit}. How: {outcome.kind}.", table]
    parts += [f"- {name}: {why}" for name, why in _remarks(outcome)]
    parts += [f"Missed: {outcome.missed_because}"] if outcome.missed_because else []
    parts.append(_methods(outcome.lines))
    return "\n\n".join(parts)


def _row(line: Line) -> list[str]:
    values = line.found.values
    spread = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else "-"
    cell = line.cell
    deviation = number(line.deviation) if line.deviation <= 0 else f"+{number(line.deviation)}"
    within = {"within": "yes", "missed": "no"}.get(line.verdict, line.verdict)
    return [cell.name, number(cell.published), number(line.measured), spread, deviation, number(cell.allowed), within]


def number(value: float) -> str:
    """Four digits that say something: 14,336; 70.25; 0.0871."""
    if value == int(value):
        return f"{int(value):,}"
    digits = 1 if abs(value) >= 1000 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _remarks(outcome: Outcome) -> list[tuple[str, str]]:
    """What is said of single cells, and of the figure."""
    said = [(line.cell.name, line.cell.contradicted) for line in outcome.lines if line.cell.contradicted]
    shown: dict[str, list[str]] = {}
    for line in outcome.lines:
        if line.cell.shown:
            shown.setdefault(line.cell.shown, []).append(line.cell.name)
    said += [(f"shown, not counted: {'; '.join(names)}", why) for why, names in shown.items()]
    tolerances = dict.fromkeys(line.cell.why_allowed for line in outcome.lines if line.cell.counts)
    said += [("tolerance", "; ".join(tolerances))] if tolerances else []
    return said + ([("note", outcome.note)] if outcome.note else [])


def _methods(lines: list[Line]) -> str:
    """How each value came to be; a bullet for each way."""
    served: dict[str, list[str]] = {}
    for line in lines:
        served.setdefault(line.found.how, []).append(line.cell.name)
    if len(served) == 1:
        return f"Measured: {next(iter(served))}."
    return "\n".join(f"- {'; '.join(cells)}: {how}." for how, cells in served.items())


def _left_out(done: Reproduced) -> list[str]:
    lines = [f"- {figure}: {why}." for figure, why in done.paper.not_attempted.items()]
    return ["## Not attempted", "\n".join(lines)] if lines else []


def csv_text(papers: list[Reproduced]) -> str:
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n")
    write.writerow(COLUMNS)
    for done in papers:
        for line in (line for outcome in done.outcomes for line in outcome.lines):
            cell, values = line.cell, line.found.values
            figures = (cell.published, line.measured, min(values), max(values), line.deviation, cell.allowed)
            rounded = [f"{value:.6g}" for value in figures]
            write.writerow([done.paper.name, cell.figure, cell.name, *rounded, line.within, line.verdict, line.kind])
    return text.getvalue()


def latex(done: Reproduced) -> str:
    """One longtable of booktabs."""
    rows = [
        " & ".join(map(_escaped, [outcome.name, *_row(line)])) + r" \\"
        for outcome in done.outcomes
        for line in outcome.lines
    ]
    head = " & ".join(map(_escaped, ["figure", *HEAD])) + r" \\"
    return "\n".join(
        [r"\begin{longtable}{llrrrrrl}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{longtable}", ""]
    )


def _escaped(text: str) -> str:
    return text.translate({ord("%"): r"\%", ord("_"): r"\_", ord("&"): r"\&", ord("#"): r"\#"})
