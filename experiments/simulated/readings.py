"""What the scripts beside this one share: a sweep's runs, how strategies look, and a page with its figure.

Each script is `python experiments/simulated/NAME.py DIR`, DIR being the directory of `kvlab sweep experiment=NAME`.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from kvlab.engine.capacity import size_text
from kvlab.errors import UsageError
from kvlab.harness.look import OTHERS, STRATEGIES, STYLE, tint
from kvlab.harness.results import Run, load
from kvlab.harness.table import grid

HERE = Path(__file__).resolve().parent
TEAL = STRATEGIES["vattention"]


class Look(NamedTuple):
    """Of a strategy's lines and cells: told apart without colour by marker and dashes."""

    colour: str
    marker: str
    dashes: str


LOOKS = {
    "contiguous": Look(STRATEGIES["contiguous"], "s", ":"),
    "buddy": Look(OTHERS[1], "v", "-."),
    "buddy_first_fit": Look(OTHERS[1], "v", "-."),
    "paged": Look(STRATEGIES["paged"], "o", "-"),
    "prefix": Look(OTHERS[0], "P", "-"),
    "vattention_ahead": Look(TEAL, "D", "--"),
    "vattention_ahead, 64 KiB": Look(TEAL, "D", "--"),
    "vattention_ahead, 2 MiB": Look(tint(TEAL, 0, 2), "X", (0, (1, 1))),
}


class Page(NamedTuple):
    """What a script makes of its runs."""

    title: str
    text: str  # Markdown: what to look at, and the tables
    figure: Figure


def main(name: str, make: Callable[[list[Run]], Page]) -> None:
    """Read DIR, write NAME.md and NAME.png beside the script or into --out."""
    parser = argparse.ArgumentParser(description=f"table and figure of `kvlab sweep experiment={name}`")
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--out", metavar="DIR", type=Path, default=HERE)
    args = parser.parse_args()
    try:
        print(write(name, args.directory, args.out, make))
    except UsageError as error:
        parser.exit(2, f"{error}\n")


def write(name: str, directory: Path, out: Path, make: Callable[[list[Run]], Page]) -> Path:
    """The page that was written. Raises UsageError if a run is missing, or one is not simulated."""
    runs = finished(directory)
    with matplotlib.rc_context(STYLE):
        page = make(runs)
        foot = 0.2 / page.figure.get_figheight()  # inches: room for what stands in the corner
        page.figure.get_layout_engine().set(rect=(0, foot, 1, 1 - foot))
        page.figure.text(0.004, 0.012, label(runs), size=9, color="#B00000", weight="bold")
        page.figure.savefig(out / f"{name}.png", metadata={"Software": None})
    picture = f"![{page.title}]({name}.png)"
    path = out / f"{name}.md"
    path.write_text("\n\n".join([f"# {page.title}", heading(name, directory, runs), picture, page.text.strip()]) + "\n")
    return path


def label(runs: list[Run]) -> str:
    """What every figure says in its corner, with model and GPU where there is one of each."""
    of = [words(run.config.get(key) for run in runs) for key in ("model", "gpu")]
    return "SIMULATED" + "".join(f", {value}" for value in of if ", " not in value)


def finished(directory: Path) -> list[Run]:
    """The runs of a whole sweep; those that were refused have no numbers."""
    runs, warnings = load(directory)
    failed = [run.path.name for run in runs if run.status == "failed"]
    if failed or warnings:
        raise UsageError(
            f"{directory}: not whole: {', '.join([*failed, *warnings])}; take it up with kvlab sweep --resume"
        )
    real = [run.path.name for run in runs if not run.values.get("simulated")]
    if real:
        raise UsageError(f"{directory}: measured runs among them: {', '.join(real)}; allowed is executor=simulated")
    listed = json.loads((directory / "sweep.json").read_text())["runs"]
    if len(listed) != len(runs):
        raise UsageError(
            f"{directory}: {len(runs)} of {len(listed)} runs are there; take it up with kvlab sweep --resume"
        )
    return runs


def heading(name: str, directory: Path, runs: list[Run]) -> str:
    """Whose figures stand behind it, and the two commands that make it again."""
    overrides = json.loads((directory / "sweep.json").read_text())["overrides"]
    whose = {key: words(run.config.get(key) for run in runs) for key in ("model", "gpu", "vmm", "cost", "dtype")}
    commit = words(str(run.values.get("versions.commit") or "unknown")[:10] for run in runs)
    seeds = words(run.seed for run in runs)
    return (
        f"**SIMULATED**: {'; '.join(f'{key} {value}' for key, value in whose.items())}; {len(runs)} runs, "
        f"seed {seeds}, commit {commit}. Nothing here was measured on a GPU.\n\n"
        f"    {shlex.join(['kvlab', 'sweep', *overrides])}\n    python experiments/simulated/{name}.py DIR"
    )


def words(values: Any) -> str:
    """The different values in order of appearance."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def axis(runs: list[Run], key: str) -> list[Any]:
    """The values of a configuration key; numbers rise, names come as in LOOKS, null first."""
    found = {run.config.get(key) for run in runs}
    return sorted(found, key=lambda value: (value is not None, _rank(value)))


def _rank(value: Any) -> Any:
    if isinstance(value, str):
        return (list(LOOKS).index(value) if value in LOOKS else len(LOOKS), value)
    return value or 0


def placement(run: Run) -> str:
    """The strategy, with its page groups where it has any."""
    size = run.config.get("page_group_bytes")
    return str(run.config["strategy"]) + (f", {size_text(size)}" if size else "")


def placements(runs: list[Run]) -> list[str]:
    return sorted({placement(run) for run in runs}, key=_rank)


def look(name: str) -> Look:
    return LOOKS.get(name) or LOOKS[name.partition(",")[0]]


def pick(runs: list[Run], **asked: Any) -> Run | None:
    """The only run with these configuration values (dots as double underscores), `placement` among them."""
    found = [run for run in runs if all(_of(run, key) == value for key, value in asked.items())]
    if len(found) > 1:
        raise UsageError(f"{asked}: several runs: {', '.join(run.path.name for run in found)}")
    return found[0] if found else None


def _of(run: Run, key: str) -> Any:
    return placement(run) if key == "placement" else run.config.get(key.replace("__", "."))


def metric(run: Run | None, name: str) -> float:
    """NaN where the run was refused, or is not there."""
    value = run.values.get(name) if run and run.status == "ok" else None
    return float("nan") if value is None else float(value)


def number(value: float, digits: int = 0) -> str:
    return "-" if value != value else f"{value:,.{digits}f}"


def table(head: list[str], body: list[list[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns are flush left."""
    return grid(head, body, left=set(head[:left]))


def line(panel: Axes, name: str, x: list[float], y: list[float], label: str | None = None) -> None:
    colour, marker, dashes = look(name)
    panel.plot(x, y, color=colour, marker=marker, linestyle=dashes, markersize=5, linewidth=1.6, label=label or name)


def powers(panel: Axes, values: list[int]) -> None:
    """A logarithmic axis of powers of two, each written out."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [f"{value // 1024}k" if value >= 1024 else str(value) for value in values])
    panel.minorticks_off()


def plain_log(panel: Axes, which: str) -> None:
    """Make axis x or y logarithmic, its ticks written out: 0.1, 1, 1,000."""
    getattr(panel, f"set_{which}scale")("log")
    scale = getattr(panel, f"{which}axis")
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    scale.set_minor_formatter(NullFormatter())


def few_ticks(panel: Axes) -> None:
    """On a logarithmic x axis, three round numbers or a few more, written out."""
    low, high = panel.get_xlim()
    for round_ones in ((1,), (1, 2, 5), (1, 2, 3, 5, 7)):
        ticks = [one * 10**power for power in range(7) for one in round_ones if low <= one * 10**power <= high]
        if len(ticks) >= 3:
            break
    panel.set_xticks(ticks)
    panel.xaxis.set_minor_locator(NullLocator())


def legend(figure: Figure, panel: Axes, columns: int) -> None:
    figure.legend(*panel.get_legend_handles_labels(), loc="outside upper center", ncols=columns, frameon=False)
