"""One table from many runs: a line for each row, a column for each thing worth comparing.

Markdown is for people (formatted, the chosen columns); CSV and JSON are for programs (raw numbers, every
metric with its median, minimum, maximum and interval).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kvlab.engine.capacity import size_text
from kvlab.harness.groups import Row, Spread, metrics, peers
from kvlab.harness.results import Run
from kvlab.harness.sheet import Sheet
from kvlab.harness.sheet import grid as grid
from kvlab.harness.stats import estimate
from kvlab.harness.summary import limited
from kvlab.record.compare import compare

HOLE = "-"
DOUBT = "(*) Not to be used: others used the CPU during a run, or it was not meant to be timed."
SIMULATED = "(s) Simulated: seconds of a cost model; the others were measured."
PARTS = ("min", "max", "low95", "high95")  # of a metric, beside its median


@dataclass(frozen=True)
class Column:
    """A column of the Markdown table: a metric, its heading, and how its spread is written."""

    heading: str
    metric: str
    write: Callable[[Spread], str]
    timed: bool = False  # a time: marked where the runs' times are not to be trusted


def percent(spread: Spread) -> str:
    return f"{100 * spread.median:.1f} %"


def count(spread: Spread) -> str:
    return f"{spread.median:,.0f}" if spread.median == int(spread.median) else f"{spread.median:,.1f}"


def in_bytes(spread: Spread) -> str:
    return size_text(round(spread.median))


def ranged(spread: Spread) -> str:
    """Median, and the range where there is one at this precision."""
    middle, low, high = (f"{value:,.1f}" for value in spread[:3])
    return middle if spread.n == 1 else f"{middle} [{low}-{high}]"


COLUMNS = (
    Column("token state", "utilization", percent),
    Column("reservation", "waste.reservation", percent),
    Column("internal", "waste.internal", percent),
    Column("cached", "waste.cached", percent),
    Column("external", "waste.external", percent),
    Column("mean batch", "mean_batch_size", ranged),
    Column("tokens/s", "tokens_per_s", ranged, timed=True),
    Column("goodput", "goodput", percent, timed=True),
    Column("preemptions", "num_preemptions", count),
    Column("refused", "num_refused", count),
    Column("failed", "num_failed", count),
    Column("committed", "peak_committed_bytes", in_bytes),
)
OPTIONAL = ("waste.cached", "num_refused", "num_failed")  # shown only if it is not zero everywhere


def markdown(rows: list[Row]) -> str:
    """The table with its footnotes."""
    return sheet(rows).markdown()


def sheet(rows: list[Row]) -> Sheet:
    """The same as texts."""
    notes: list[str] = []
    columns = [column for column in COLUMNS if _is_shown(rows, column.metric)]
    knobs = list(rows[0].key)
    digests, mixed = digest_cells(rows), len({is_simulated(run) for run in _runs(rows)}) > 1
    said = ["digest"] if set(digests) != {HOLE} else []  # a simulated run generates nothing
    head = [*knobs, *(column.heading for column in columns), *said, "n"]
    body = [
        [*_knob_cells(row, knobs), *_cells(row, columns, notes, mixed), *[digest][: len(said)], _n(row)]
        for row, digest in zip(rows, digests, strict=True)
    ]
    if any(row.runs and not row.timed for row in rows):
        notes.append(DOUBT)
    if mixed:
        notes.append(SIMULATED)
    roomy = [row.label for row in rows if any(run.values.get("saturated_steps") == 0 for run in row.runs)]
    if roomy:
        notes.append(
            f"Nothing waited in a run of {'; '.join(roomy)}: its shares are those of the whole run. More requests or a "
            "smaller pool would compare memory."
        )
    return Sheet(head, body, {*knobs, "digest"}, notes)


def raw(rows: list[Row]) -> list[dict[str, Any]]:
    """A flat dict for each row: key, n, and each metric as median, _min, _max and the interval of the median, _low95
    and _high95 (kvlab.harness.stats); None where nothing is known.
    """
    names = metrics(rows)
    return [_raw(row, names, digest) for row, digest in zip(rows, digest_cells(rows), strict=True)]


def to_csv(rows: list[Row]) -> str:
    """The raw table as CSV; an empty cell is a hole."""
    lines = raw(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def digest_cells(rows: list[Row]) -> list[str]:
    """What each row generated, against the rows that had to generate the same tokens.

    `= 1a2b3c4d`: every such run with the same seed generated the same. `2 ties`: so many requests part from the
    first row's at a close choice, which another rounding may make otherwise. `differs`: they part elsewhere. A digest
    alone has nothing to be compared with, or is what others differ from.
    """
    by_peers: dict[Any, list[Run]] = {}
    for run in _runs(rows):
        by_peers.setdefault(peers(run), []).append(run)
    return [_digest(row, by_peers) for row in rows]


def _digest(row: Row, by_peers: dict[Any, list[Run]]) -> str:
    digested = [run for run in row.runs if run.values.get("output_digest")]
    if not digested:
        return HOLE
    groups = [by_peers[peers(run)] for run in digested]
    unlike = [(group[0], run) for run, group in zip(digested, groups, strict=True) if _of(group[0]) != _of(run)]
    if unlike:
        return _unlike(unlike)
    compared = all(len(group) > 1 and len({_of(run) for run in group}) == 1 for group in groups)
    return f"= {_of(digested[0])[:8]}" if compared else _of(digested[0])[:8]


def _of(run: Run) -> str:
    return str(run.values.get("output_digest"))


def _unlike(pairs: list[tuple[Run, Run]]) -> str:
    ties, wrong = 0, []
    for first, run in pairs:
        try:
            agreement = compare(first.path, run.path)
        except (OSError, ValueError, KeyError):  # without both runs' outputs nothing excuses the difference
            wrong.append(run)
            continue
        ties += agreement.ties
        wrong += [run] * (not agreement.holds)
    if wrong:
        return f"differs (seed {', '.join(str(run.seed) for run in wrong)})"
    return f"{ties} ties" if ties != 1 else "1 tie"


def _cells(row: Row, columns: list[Column], notes: list[str], mixed: bool) -> list[str]:
    """`mixed`: what is simulated has to be told from what was measured."""
    mark = ""
    if row.holes:
        notes.append(f"[{len(notes) + 1}] {row.label}: {reasons(row.holes)}")
        mark = f" [{len(notes)}]"
    if not row.runs:
        return [row.holes[0].status + mark, *[HOLE] * (len(columns) - 1)]
    first, *rest = [_cell(row, column, mixed) for column in columns]
    return [first + mark, *rest]


def _cell(row: Row, column: Column, mixed: bool) -> str:
    spread = row.spread(column.metric)
    if spread is None:
        return HOLE
    if not column.timed:
        return column.write(spread)
    simulated = mixed and any(map(is_simulated, row.runs))
    return column.write(spread) + (" (s)" if simulated else "") + ("" if row.timed else " (*)")


def is_simulated(run: Run) -> bool:
    return bool(run.values.get("simulated"))


def reasons(holes: list[Run]) -> str:
    """`seed 1 refused: reason`, runs with the same reason together."""
    said: dict[tuple[str, str], list[str]] = {}
    for run in holes:
        said.setdefault((run.status, run.reason or "no reason given"), []).append(str(run.seed))
    return "; ".join(
        f"{status}{f' (seed {chr(44).join(seeds)})' if seeds != ['None'] else ''}: {reason}"
        for (status, reason), seeds in said.items()
    )


def _knob_cells(row: Row, knobs: list[str]) -> list[str]:
    return [knob_text(knob, row.shown.get(knob)) for knob in knobs]


def knob_text(key: str, value: Any) -> str:
    if value is None:
        return HOLE
    if key.endswith("_bytes"):
        return size_text(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _n(row: Row) -> str:
    total = len(row.runs) + len(row.holes)
    return f"{len(row.runs)} of {total}" if row.holes else str(total)


def _raw(row: Row, names: Iterable[str], digest: str) -> dict[str, Any]:
    line: dict[str, Any] = {**row.key, "n": len(row.runs), "holes": len(row.holes)}
    line["reason"] = reasons(row.holes) if row.holes else None
    line["seeds"] = " ".join(str(run.seed) for run in row.runs)
    line["timing_valid"] = row.timed if row.runs else None
    line["simulated"] = any(map(is_simulated, row.runs)) if row.runs else None
    for name in names:
        values = row.numbers(name)
        numbers = estimate(values)[:5] if values else (None,) * 5
        line |= dict(zip((name, *(f"{name}_{part}" for part in PARTS)), numbers, strict=True))
    line["digest"] = None if digest == HOLE else digest
    line["runs"] = " ".join(str(run.path) for run in [*row.runs, *row.holes])
    return line


def _runs(rows: list[Row]) -> list[Run]:
    return [run for row in rows for run in row.runs]


def _is_shown(rows: list[Row], metric: str) -> bool:
    if metric == "goodput":
        return any(limited(run.config, "slo") for run in _runs(rows))
    return metric not in OPTIONAL or any(run.values.get(metric) for run in _runs(rows))
