"""`kvlab report DIR...`: runs as tables (Markdown, CSV, LaTeX) and figures, remade at any time.

Everything is read from the runs' own files; nothing is kept between calls. docs/reports.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlab.errors import UsageError

if TYPE_CHECKING:
    from kvlab.harness.groups import Row
    from kvlab.harness.results import Run
    from kvlab.harness.sheet import Sheet

REPORT, FIGURES = "report.md", "figures"
TABLES = ("table.csv", "runs.csv", "table.tex")  # a row each setting; a row each run; the table for a paper
NOT_WRITTEN = "Not written: there are several directories; --out DIR says where to"
READING = """\
Each line is the median over its seeds (n), with [least-most] behind it. The shares are of the whole pool, averaged over
the time until no request waits any more. Token state: tokens really stored. Reservation: room that its sequence will
use later. Internal: room given to a sequence that never uses it. External: all else, free or rounded up
beyond every room. Digest: of all generated tokens; `=` says that every strategy generated the same; `2 ties`, that two
requests part from the first line's at a choice between almost equal logits, which another rounding may make otherwise;
`differs`, that one does elsewhere.
"""


class Report(NamedTuple):
    """What the runs say."""

    rows: list[Row]
    runs: list[Run]
    warnings: list[str]
    caption: str
    sheet: Sheet

    @property
    def text(self) -> str:
        """Caption, table and footnotes, in Markdown."""
        return f"{self.caption}\n\n{self.sheet.markdown()}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("directories", metavar="DIR", type=Path, nargs="+", help="directories of runs or sweeps")
    add("--out", metavar="DIR", type=Path, help="where the report goes (default: into DIR, where there is one)")
    add("--csv", metavar="FILE", type=Path, help="write every run as a row, for pandas.read_csv, and nothing else")
    keys: dict[str, Any] = {"metavar": "KEY,KEY", "type": _listed, "default": []}
    add("--where", metavar="KEY=VALUE", action="append", default=[], help="only runs of which this holds, as seed=0,1")
    add("--mix", action="store_true", help="put simulated beside measured, or flagged timings beside others, marked")
    add("--by", metavar="KEY", nargs="+", help="configuration keys that make a row (default: all that vary)")
    add("--rows", **keys, help="a pivot: configuration keys that make its lines")
    add("--cols", **keys, help="and those that make its columns")
    add("--value", metavar="METRIC", help="what stands in its cells, or is compared (default: tokens_per_s)")
    add("--interval", action="store_true", help="its cells show the bootstrap interval in place of least-most")
    add("--against", metavar="DIR", type=Path, help="compare with the runs in DIR, pair by pair")
    add("--ignoring", **keys, help="configuration keys in which pairs may differ")
    add("--pdf", action="store_true", help="write the figures as PDF, too")
    add("--json", action="store_true", help="print the rows as JSON, every metric included")


def _listed(text: str) -> list[str]:
    return text.split(",")


def run(args: argparse.Namespace) -> int:
    """Write the report and print the table. The exit status is 0 also where the table has holes."""
    from kvlab.harness.choose import where
    from kvlab.harness.results import load

    _refuse_together(args)
    runs, warnings = load(*args.directories)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    runs = where(runs, args.where)
    if args.csv:
        return _csv(runs, args.csv)
    out = args.out or (args.directories[0] if len(args.directories) == 1 else None)
    if args.rows or args.cols:
        return _pivot(runs, args, out)
    if args.against:
        return _against(runs, args, out)
    return _whole(runs, warnings, args, out)


def write_report(directory: Path) -> Path:
    """Write report.md, the tables and figures/*.png into `directory`; the path of report.md. Mixed runs are marked.

    Raises UsageError if there is no finished run, or the directory cannot be written to.
    """
    return _write(make(directory), directory)


def make(directory: Path) -> Report:
    from kvlab.harness.results import load, not_run

    return _make(*load(directory), None, not_run(directory))


def _make(runs: list[Run], warnings: list[str], by: list[str] | None, notes: list[str]) -> Report:
    from kvlab.harness.caption import caption
    from kvlab.harness.groups import group
    from kvlab.harness.table import sheet

    rows = group(runs, by)
    table = sheet(rows)
    return Report(rows, runs, warnings, caption(runs), table._replace(notes=[*table.notes, *notes]))


def _refuse_together(args: argparse.Namespace) -> None:
    """Each of these makes another table."""
    asked = [name for name in ("by", "rows", "against", "csv") if getattr(args, name)]
    if len(asked) > 1:
        raise UsageError(f"--{' and --'.join(asked)}: they make different tables, give one")
    for name, needs in (("cols", "rows"), ("ignoring", "against"), ("interval", "rows")):
        if getattr(args, name) and not getattr(args, needs):
            raise UsageError(f"--{name}: allowed with --{needs} only")
    if args.value and not (args.rows or args.against):
        raise UsageError("--value: allowed with --rows or --against only")


def _csv(runs: list[Run], path: Path) -> int:
    from kvlab.harness import output, tidy

    output.write(path, tidy.to_csv(runs))
    print(f"Written: {path}, {len(runs)} runs", file=sys.stderr)
    return 0


def _whole(runs: list[Run], warnings: list[str], args: argparse.Namespace, out: Path | None) -> int:
    from kvlab.harness.choose import refuse_mixed
    from kvlab.harness.results import not_run
    from kvlab.harness.table import raw

    if not args.mix:
        refuse_mixed(runs, timed=True)
    report = _make(runs, warnings, args.by, not_run(*args.directories))
    if out:
        path = _write(report, out, args.pdf)
    print(json.dumps(raw(report.rows), indent=1) if args.json else report.text)
    print(f"Written: {path}, {', '.join(TABLES)}, {FIGURES}/" if out else NOT_WRITTEN, file=sys.stderr)
    return 0


def _pivot(runs: list[Run], args: argparse.Namespace, out: Path | None) -> int:
    from kvlab.harness import pivot
    from kvlab.harness.caption import caption

    table = pivot.pivot(runs, args.rows, args.cols, args.value or "tokens_per_s", args.mix)
    return _show("pivot", caption(runs), pivot.sheet(table, args.interval), pivot.to_csv(table), args, out)


def _against(runs: list[Run], args: argparse.Namespace, out: Path | None) -> int:
    from kvlab.harness import versus
    from kvlab.harness.caption import caption
    from kvlab.harness.choose import where
    from kvlab.harness.results import load

    others, warnings = load(args.against)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    compared = versus.versus(
        runs, where(others, args.where), [args.value] if args.value else [], args.ignoring, args.mix
    )
    text = f"Here: {caption(runs)}\n\nThere: {caption(others)}"
    return _show("against", text, versus.sheet(compared), versus.to_csv(compared), args, out)


def _show(name: str, caption: str, sheet: Sheet, table: str, args: argparse.Namespace, out: Path | None) -> int:
    """Print one table; write it as Markdown, CSV and LaTeX."""
    from kvlab.harness import output

    text, files = f"{caption}\n\n{sheet.markdown()}", []
    if out:
        with output.writing(out):
            out.mkdir(parents=True, exist_ok=True)
        contents = {"md": text, "csv": table, "tex": sheet.latex(caption)}
        files = [out / f"{name}.{ending}" for ending in contents]
        for path, content in zip(files, contents.values(), strict=True):
            output.write(path, content)
    print(json.dumps(list(csv.DictReader(table.splitlines())), indent=1) if args.json else text)
    print(f"Written: {', '.join(map(str, files))}" if files else NOT_WRITTEN, file=sys.stderr)
    return 0


def _write(report: Report, directory: Path, pdf: bool = False) -> Path:
    from kvlab.harness.table import to_csv
    from kvlab.harness.tidy import to_csv as runs_csv

    figures = _figures_module()
    path = directory / REPORT
    contents = (to_csv(report.rows), runs_csv(report.runs), report.sheet.latex(report.caption))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths, notes = figures.draw(report.rows, directory / FIGURES, pdf)
        for name, content in zip(TABLES, contents, strict=True):
            (directory / name).write_text(content)
        notes += [f"Warning: {warning}" for warning in report.warnings]
        pictures = [f"![{picture.stem.replace('_', ' ')}]({FIGURES}/{picture.name})" for picture in paths]
        path.write_text("\n\n".join(["# Report", report.text.rstrip(), READING.rstrip(), *notes, *pictures]) + "\n")
    except OSError as error:
        raise UsageError(f"{directory}: cannot write the report there: {error.strerror}") from error
    return path


def _figures_module() -> Any:
    try:
        from kvlab.harness import figures
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise UsageError("figures need matplotlib, which is not installed: pip install matplotlib") from error
    return figures
