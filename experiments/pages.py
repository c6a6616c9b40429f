"""What scripts beside this one share: the runs of whole sweeps, a line of a CSV file for each, a page of those lines.

A page is made of its CSV file alone, so `--from FILE.csv` makes it again without a run.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path

from kvlab.errors import UsageError
from kvlab.harness.results import Run, load

HERE = Path(__file__).resolve().parent
Line = dict[str, str]
LineOf = Callable[[Run], Line]
PageOf = Callable[[list[Line]], str]


def main(name: str, line_of: LineOf, page_of: PageOf, draw: Callable[[list[Line], Path], None] | None = None) -> None:
    """Read sweeps or a CSV file; write NAME.csv, NAME.md, and what `draw` draws, beside the script or into --out."""
    parser = argparse.ArgumentParser(description=f"{name}.md from the runs of its sweeps")
    parser.add_argument("directories", metavar="DIR", type=Path, nargs="*", help="of `kvlab sweep`")
    parser.add_argument("--from", dest="file", type=Path, help=f"a {name}.csv, in place of sweeps")
    parser.add_argument("--out", metavar="DIR", type=Path, default=HERE)
    given = parser.parse_args()
    try:
        if bool(given.file) == bool(given.directories):
            raise UsageError("give the directories of sweeps, or --from a CSV file")
        lines = read(given.file) if given.file else collect(given.directories, line_of)
    except UsageError as error:
        parser.exit(2, f"{error}\n")
    write(given.out / f"{name}.csv", lines)
    (given.out / f"{name}.md").write_text(page_of(lines))
    if draw is not None:
        draw(lines, given.out / f"{name}.png")


def collect(directories: list[Path], line_of: LineOf) -> list[Line]:
    return [
        {**line_of(run), "minutes": f"{run.values['wall_s'] / 60:.3f}", "commit": commit(run), "command": command}
        for directory in directories
        for command in [command_of(directory)]
        for run in finished(directory)
    ]


def finished(directory: Path) -> list[Run]:
    """The runs of a whole sweep."""
    runs, warnings = load(directory)
    lacking = [run.path.name for run in runs if run.status != "ok"]
    missing = len(json.loads((directory / "sweep.json").read_text())["runs"]) - len(runs)
    if lacking or warnings or missing:
        wrong = ", ".join([*lacking, *warnings, *([f"{missing} runs that are not there"] if missing else [])])
        raise UsageError(f"{directory}: not whole: {wrong}; take it up with kvlab sweep --resume")
    return runs


def command_of(directory: Path) -> str:
    overrides = json.loads((directory / "sweep.json").read_text())["overrides"]
    return shlex.join(["kvlab", "sweep", *(line for line in overrides if not line.startswith("hydra.sweep.dir="))])


def commit(run: Run) -> str:
    return str(run.values.get("versions.commit") or "unknown")[:7]


def read(path: Path) -> list[Line]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, lines: list[Line]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def heading(title: str, name: str, lines: list[Line]) -> str:
    """The title, and the commands that make the page again."""
    commands = dict.fromkeys(line["command"] for line in lines)
    commits, seeds = (", ".join(dict.fromkeys(line[key] for line in lines)) for key in ("commit", "seed"))
    minutes = sum(float(line["minutes"]) for line in lines)
    return (
        f"# {title}\n\n{len(lines)} runs, seeds {seeds}, commit {commits}, {minutes:.0f} minutes in all.\n\n"
        + "".join(f"    {command} hydra.sweep.dir=DIR{place}\n" for place, command in enumerate(commands, 1))
        + f"    python experiments/{name}.py {' '.join(f'DIR{place}' for place in range(1, len(commands) + 1))}\n"
    )


def picked(lines: list[Line], **asked: str) -> list[Line]:
    return [line for line in lines if all(line[key] == value for key, value in asked.items())]


def spread(values: list[float], digits: int = 2) -> str:
    """The mean, and the range where there is one at this precision."""
    mean, low, high = (f"{value:,.{digits}f}" for value in (sum(values) / len(values), min(values), max(values)))
    return mean if low == high else f"{mean} [{low}-{high}]"
