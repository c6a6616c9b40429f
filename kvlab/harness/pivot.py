"""One metric over two sets of axes: a line for each value of the row axes, a column for each of the column axes.

A cell holds the runs that differ in nothing but the seed. What is not there is named: missing, refused, failed.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvlab.errors import UsageError
from kvlab.harness.choose import is_timed, refuse_mixed
from kvlab.harness.groups import group, metrics, sortable, value_of
from kvlab.harness.results import NAMED, Run
from kvlab.harness.sheet import Sheet
from kvlab.harness.stats import METHOD, Estimate, estimate
from kvlab.harness.table import DOUBT, SIMULATED, is_simulated, knob_text, reasons

Values = tuple[Any, ...]


class Cell(NamedTuple):
    estimate: Estimate | None
    state: str  # ok; or why there is no number: missing, refused, failed, not reported, n/a
    ok: list[Run]
    holes: list[Run]


class Pivot(NamedTuple):
    rows: list[str]  # keys of the configuration
    cols: list[str]
    value: str  # metric
    cells: dict[Values, dict[Values, Cell]]  # row values -> column values -> cell, both in order

    @property
    def columns(self) -> list[Values]:
        return list(next(iter(self.cells.values())))

    @property
    def each(self) -> list[Cell]:
        return [cell for line in self.cells.values() for cell in line.values()]


def pivot(runs: list[Run], rows: Sequence[str], cols: Sequence[str], value: str, mix: bool = False) -> Pivot:
    """Raises UsageError: a key or metric that no run has, or cells that would mix what must not be averaged."""
    known = [run for run in runs if run.config]
    check_axes([*rows, *cols], known)
    check_metric(value, known)
    if not mix:
        refuse_mixed(known, is_timed(value))
    found: dict[tuple[Values, Values], list[Run]] = {}
    for run in known:
        found.setdefault((_values(run, rows), _values(run, cols)), []).append(run)
    for members in found.values():
        _check_alike(members)
    row_values, col_values = (_ordered({at[side] for at in found}) for side in (0, 1))
    lacking = {row: _lacked(known, rows, row, cols) for row in row_values}
    cells = {
        row: {col: _cell(found.get((row, col), []), value, _needs(col, lacking[row])) for col in col_values}
        for row in row_values
    }
    return Pivot(list(rows), list(cols), value, cells)


def sheet(table: Pivot, interval: bool = False) -> Sheet:
    """The cells as `median [least-most]`, or with the interval in place of the range."""
    heads = [_label(table.cols, list(col)) for col in table.columns]
    counts = {cell.estimate.n for cell in table.each if cell.estimate}
    digits, body = _digits(table), []
    holes: list[str] = []
    for row, line in table.cells.items():
        labels = [_label([*table.rows, *table.cols], [*row, *col]) for col in line]
        numbers = [_text(cell, digits, interval, len(counts) > 1) + _marks(table, cell) for cell in line.values()]
        body.append([*map(knob_text, table.rows, row), *_marked(numbers, labels, list(line.values()), holes)])
    number = f"n = {counts.pop()}" if len(counts) == 1 else "n"
    spread = f"{METHOD}" if interval else "least-most"
    notes = [f"{table.value}: median [{spread}] of {number} seeds.", *holes]
    texts = " ".join(cell for line in body for cell in line)
    notes += [note for mark, note in (("(*)", DOUBT), ("(s)", SIMULATED)) if mark in texts]
    if any(cell.state == "n/a" for cell in table.each):
        notes.append(f"n/a: has no {' or '.join(table.cols)}; what it reached stands under '-'.")
    heads = heads if table.cols else [table.value]
    return Sheet([*table.rows, *heads], body, set(table.rows), notes)


def to_csv(table: Pivot) -> str:
    """A line for each cell, holes included."""
    out = io.StringIO()
    names = ("metric", *table.rows, *table.cols, "state", "median", "least", "most", "low95", "high95", "n", "reason")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row, line in table.cells.items():
        for col, cell in line.items():
            numbers = cell.estimate or (None,) * 5 + (0,)
            writer.writerow([table.value, *row, *col, cell.state, *numbers, reasons(cell.holes) if cell.holes else ""])
    return out.getvalue()


def check_axes(keys: Sequence[str], runs: list[Run]) -> None:
    found = sorted({key for run in runs for key in run.config if not key.endswith("_target_")})
    for key in keys:
        if key not in found:
            raise UsageError(
                f"{key}: no configuration key of these runs{_near(key, found)}; allowed are {', '.join(found)}"
            )


def check_metric(name: str, runs: list[Run]) -> None:
    found = metrics(group(runs))
    if name not in found:
        raise UsageError(f"--value {name}: no metric of these runs{_near(name, found)}; allowed are {', '.join(found)}")


def _near(name: str, found: list[str]) -> str:
    near = difflib.get_close_matches(name, found, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _check_alike(runs: list[Run]) -> None:
    """Runs of one cell differ in the seed alone."""
    settings = group(runs)
    if len(settings) > 1:
        differ = [key for key in settings[0].key if len({str(row.key[key]) for row in settings}) > 1]
        values = ", ".join(dict.fromkeys(str(row.shown[differ[0]]) for row in settings))
        raise UsageError(
            f"one cell would mix runs that differ in {' and '.join(differ)} ({values}): "
            f"add it to --rows or --cols, or choose with --where {differ[0]}=VALUE"
        )


def _cell(runs: list[Run], value: str, possible: bool) -> Cell:
    ok, holes = [run for run in runs if run.status == "ok"], [run for run in runs if run.status != "ok"]
    numbers = [run.values[value] for run in ok if isinstance(run.values.get(value), int | float)]
    if numbers:
        return Cell(estimate(numbers), "ok", ok, holes)
    if ok:
        return Cell(None, "not reported", ok, holes)
    return Cell(None, holes[0].status if holes else "missing" if possible else "n/a", ok, holes)


def _lacked(runs: list[Run], rows: Sequence[str], row: Values, cols: Sequence[str]) -> list[bool]:
    """Of each column axis, whether the runs of a row never have it: their strategy lacks that knob."""
    mine = [run for run in runs if _values(run, rows) == row]
    return [all(run.config.get(key) is None for run in mine) for key in cols]


def _needs(col: Values, lacked: list[bool]) -> bool:
    """Whether a row could have runs there: not where the column gives a value to a knob that it lacks."""
    return not any(lack and value is not None for value, lack in zip(col, lacked, strict=True)) and not any(
        not lack and value is None for value, lack in zip(col, lacked, strict=True)
    )


def _values(run: Run, keys: Sequence[str]) -> Values:
    return tuple(value_of(run, key) for key in keys)


def _ordered(values: set[Values]) -> list[Values]:
    return sorted(values, key=lambda each: [sortable(value) for value in each])


def _label(keys: list[str], values: list[Any]) -> str:
    """Of a cell or a column, in words."""
    words = [(key, knob_text(key, value)) for key, value in zip(keys, values, strict=True)]
    return ", ".join(value if key in NAMED else f"{key} {value}" for key, value in words)


def _digits(table: Pivot) -> int:
    """Behind the point, so that the smallest median has three figures or so; none where all numbers are whole."""
    numbers = [number for cell in table.each if cell.estimate for number in cell.estimate[:3]]
    least = min((abs(cell.estimate.median) for cell in table.each if cell.estimate and cell.estimate.median), default=1)
    whole = all(number == int(number) for number in numbers)
    return 0 if whole else next((digits for digits in range(1, 5) if least * 10**digits >= 100), 5)


def _text(cell: Cell, digits: int, interval: bool, counted: bool) -> str:
    if cell.estimate is None:
        return cell.state
    middle, least, most, low, high, n = cell.estimate
    low, high = (low, high) if interval else (least, most)
    bounds = "" if n == 1 or low is None or high is None else f" [{low:,.{digits}f}-{high:,.{digits}f}]"
    return f"{middle:,.{digits}f}{bounds}{f' ({n})' if counted else ''}"


def _marked(texts: list[str], labels: list[str], cells: list[Cell], notes: list[str]) -> list[str]:
    """A number behind the text of each cell with holes, and a note that says why under that number."""
    marked = []
    for text, label, cell in zip(texts, labels, cells, strict=True):
        if cell.holes:
            notes.append(f"[{len(notes) + 1}] {label}: {reasons(cell.holes)}")
            text = f"{text} [{len(notes)}]"
        marked.append(text)
    return marked


def _marks(table: Pivot, cell: Cell) -> str:
    """As in the other table: of simulated runs beside measured ones, and of times that are not to be used."""
    beside = len({is_simulated(run) for each in table.each for run in each.ok}) > 1
    simulated = beside and any(map(is_simulated, cell.ok))
    doubted = is_timed(table.value) and any(run.values.get("timing_valid") is False for run in cell.ok)
    return (" (s)" if simulated else "") + (" (*)" if doubted else "")
