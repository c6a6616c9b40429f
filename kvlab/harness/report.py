"""`kvlab report DIR`: the runs below a directory as a table (report.md, table.csv) and figures, remade at any time.

Everything is read from the runs' own files; nothing is kept between calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlab.errors import UsageError

if TYPE_CHECKING:
    from kvlab.harness.groups import Row
    from kvlab.harness.results import Run

REPORT, TABLE, FIGURES = "report.md", "table.csv", "figures"
READING = """\
Each line is the median over its seeds (n), with [least-most] behind it. The shares are of the whole pool, averaged over
the time until no request waits any more. Token state: tokens really stored. Reservation: room that its sequence will
use later. Internal: room given to a sequence that never uses it. External: all else, free or rounded up
beyond every room. Digest: of all generated tokens; `=` says that every strategy generated the same; `2 ties`, that two
requests part from the first line's at a choice between almost equal logits, which another rounding may make otherwise;
`differs`, that one does elsewhere.
"""


class Report(NamedTuple):
    """What a directory says."""

    rows: list[Row]
    runs: list[Run]
    warnings: list[str]
    text: str  # caption, table and footnotes, in Markdown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="a run's or a sweep's directory")
    parser.add_argument(
        "--by", metavar="KEY", nargs="+", help="configuration keys that make a row (default: all that vary)"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, every metric included")


def run(args: argparse.Namespace) -> int:
    """Write the report and print the table. The exit status is 0 also where the table has holes."""
    from kvlab.harness.table import raw

    report = make(args.directory, args.by)
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    path = _write(report, args.directory)
    print(json.dumps(raw(report.rows), indent=1) if args.json else report.text)
    print(f"Written: {path}, {TABLE}, {FIGURES}/", file=sys.stderr)
    return 0


def write_report(directory: Path) -> Path:
    """Write report.md, table.csv and figures/*.png into `directory`; the path of report.md.

    Raises UsageError if there is no finished run, or the directory cannot be written to.
    """
    return _write(make(directory), directory)


def make(directory: Path, by: list[str] | None = None) -> Report:
    from kvlab.harness.caption import caption
    from kvlab.harness.groups import group
    from kvlab.harness.results import load
    from kvlab.harness.table import markdown

    runs, warnings = load(directory)
    rows = group(runs, by)
    return Report(rows, runs, warnings, f"{caption(runs)}\n\n{markdown(rows)}")


def _write(report: Report, directory: Path) -> Path:
    from kvlab.harness.table import to_csv

    figures = _figures_module()
    path = directory / REPORT
    try:
        paths, notes = figures.draw(report.rows, directory / FIGURES)
        (directory / TABLE).write_text(to_csv(report.rows))
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
