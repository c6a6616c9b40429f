"""`kvlab bench NAME`: what a part of kvlab costs on this machine. Here bookkeeping, by strategy; the others apart."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlab.build import build_strategy
from kvlab.errors import UsageError
from kvlab.harness import (
    bench_calibrate,
    bench_compiled,
    bench_kernels,
    bench_simulator,
    bench_tune,
    nodes,
    output,
    plugins,
    provenance,
)  # fmt: skip
from kvlab.harness.compose import Composer
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid

if TYPE_CHECKING:
    from kvlab.bench.bookkeeping import Cost, Spread
    from kvlab.strategy import Strategy

SHAPED = {  # take NAME=VALUE
    "kernels": bench_kernels.run,
    "simulator": bench_simulator.run,
    "calibrate": bench_calibrate.run,
    "tune": bench_tune.run,
}
NAMES = ("bookkeeping", *SHAPED, "compiled")
SEQUENCES = STEPS = 256
BLOCK_SIZES = (1, 16, 128)
TOKEN_BYTES, LAYERS = 46_080, 30  # SmolLM2-135M in float32
MAX_LEN = 1024
HEAD = ["strategy", "block size", "asked", "strategy", "whole step", "if all asked", "nobody asks"]


class Setting(NamedTuple):
    """A strategy as it is measured; block_size None: it has no such knob."""

    strategy: str
    block_size: int | None

    @property
    def overrides(self) -> list[str]:
        return [f"strategy={self.strategy}", *([f"block_size={self.block_size}"] if self.block_size else [])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help=f"what to measure: {', '.join(NAMES)}")
    add("overrides", nargs="*", metavar="NAME=VALUE", help=f"{', '.join(SHAPED)}: what to measure, see below")
    add("--only", metavar="STRATEGY,...", help="bookkeeping: these strategies alone")
    add("--sequences", metavar="N", type=int, help=f"bookkeeping: running at once ({SEQUENCES})")
    add("--steps", metavar="N", type=int, help=f"bookkeeping: decode steps of each repeat ({STEPS})")
    add("--repeats", metavar="N", type=int, default=5, help="how often each is measured (5)")
    add("--json", action="store_true", help="print an object: on what, and a list of settings with their costs")
    add("--out", metavar="FILE", type=Path, help="also write the table to FILE, in Markdown")
    parser.epilog = "\n\n".join(
        (bench_kernels.HELP, bench_simulator.HELP, bench_calibrate.HELP, bench_tune.HELP, str(parser.epilog))
    )


def run(args: argparse.Namespace) -> int:
    if args.name not in NAMES:
        raise UsageError(f"{args.name!r}: nothing of that name to measure; allowed is {', '.join(NAMES)}")
    if args.repeats < 1:
        raise UsageError(f"--repeats {args.repeats}: allowed is a whole number, 1 or more")
    if args.name != "calibrate":  # whose --out is a folder
        output.check(args.out)
    if args.name != "bookkeeping":
        _only_for("bookkeeping", args, ("only", "sequences", "steps"))
    if args.name in SHAPED:
        return SHAPED[args.name](args)
    _only_for(", ".join(SHAPED), args, ("overrides",))
    if args.name == "compiled":
        return bench_compiled.run(args)
    return _bookkeeping(args)


def _only_for(name: str, args: argparse.Namespace, options: tuple[str, ...]) -> None:
    """UsageError: one of the options of `bench name` was given to another."""
    if given := [option for option in options if getattr(args, option) not in (None, [])]:
        what = args.overrides[0] if given == ["overrides"] else f"--{given[0]}"
        raise UsageError(f"{what}: allowed with kvlab bench {name} only")


def _bookkeeping(args: argparse.Namespace) -> int:
    args.sequences, args.steps = (
        default if value is None else value for value, default in ((args.sequences, SEQUENCES), (args.steps, STEPS))
    )
    settings = _settings(args)
    from kvlab.bench.bookkeeping import measure
    from kvlab.record.others import OthersShare

    others, costs = OthersShare(), {}
    with Composer() as composer, Bar("settings", len(settings)) as bar:
        for setting in settings:
            costs[setting] = measure(partial(_strategy, composer, setting, args.sequences), args.steps, args.repeats)
            bar.to(len(costs), len(settings))
    facts = _facts(args, others.share())
    text = markdown(facts, costs)
    if args.out:
        output.write(args.out, text)
    rows = [{**setting._asdict(), **cost.record()} for setting, cost in costs.items()]
    print(json.dumps({**facts, "rows": rows}, indent=1) if args.json else text)
    return 0


def markdown(facts: dict[str, Any], costs: dict[Setting, Cost]) -> str:
    """The table, and what its columns mean."""
    table = grid(HEAD, [_cells(setting, cost) for setting, cost in costs.items()], left={"strategy"})
    share = facts["others_cpu_share"]
    others = "unknown" if share is None else f"{share:.0%}"
    sizes = f"the means of {facts['repeats']} repeats of {facts['steps']} steps, {facts['sequences']} sequences running"
    machine = f"{facts['cpu']}, {facts['cores']} cores, others used {others} of the CPU; Python {facts['python']}"
    return f"""\
# `kvlab bench bookkeeping`

What a decode step costs the bookkeeping: nanoseconds of CPU time per running sequence and step, median [lowest-highest]
of {sizes}. The scheduler and the strategies are the real ones; there is no model.

{table}
- block size: slots; `-`: the strategy has no such knob.
- asked: share of the sequences that ask the strategy for room in a step, because theirs is used up.
- strategy: inside the strategy. whole step: that, the rest of planning, the table that a kernel reads, taking tokens.
- if all asked: inside the strategy, if every sequence asked in every step.
- nobody asks: inside the strategy, in steps in which nobody's room is used up, all sequences being equally long (it is
  asked once for its moves, whoever runs); `-`: there are no such steps.

{machine}; commit {facts["commit"]}; `{facts["command"]}`.
"""


def _cells(setting: Setting, cost: Cost) -> list[str]:
    spreads = (cost.strategy_ns, cost.step_ns, cost.every_step_ns, cost.quiet_ns)
    size = str(setting.block_size or "-")
    return [setting.strategy, size, f"{cost.asked:.1%}", *("-" if s is None else _words(s) for s in spreads)]


def _words(spread: Spread) -> str:
    digits = 1 if spread.median < 10 else 0
    middle, low, high = (f"{value:,.{digits}f}" for value in spread)
    return f"{middle} [{low}-{high}]"


def _settings(args: argparse.Namespace) -> list[Setting]:
    for name in ("sequences", "steps"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)}: allowed is a whole number, 1 or more")
    if args.steps > MAX_LEN // 2:
        raise UsageError(f"--steps {args.steps}: allowed is {MAX_LEN // 2} or less")
    found = {item.name: item for item in plugins.installed()}
    names = args.only.split(",") if args.only is not None else list(found)
    wrong = [name for name in names if name not in found]
    if wrong:
        raise UsageError(f"--only {','.join(wrong)}: no such strategy; allowed is {', '.join(found)}")
    return [Setting(name, size) for name in names for size in _block_sizes(found[name])]


def _block_sizes(item: plugins.Installed) -> tuple[int | None, ...]:
    cls = nodes.strategy_class(str(item.node["_target_"]))
    return BLOCK_SIZES if "block_size" in nodes.knobs(item.node, cls) else (None,)


def _strategy(composer: Composer, setting: Setting, sequences: int) -> Strategy:
    """Over twice what all sequences may hold, so that nobody is ever preempted."""
    config = composer.compose([*setting.overrides, f"max_len={MAX_LEN}", f"engine.max_seqs={sequences}"]).config
    return build_strategy(config, TOKEN_BYTES, LAYERS, 2 * sequences * MAX_LEN * TOKEN_BYTES)


def _facts(args: argparse.Namespace, share: float | None) -> dict[str, Any]:
    options = [
        f"--{name} {getattr(args, name)}" for name in ("only", "sequences", "steps", "repeats") if getattr(args, name)
    ]
    versions, machine = provenance.versions(), provenance.machine()
    return {
        "sequences": args.sequences,
        "steps": args.steps,
        "repeats": args.repeats,
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "others_cpu_share": share,
        "python": versions["python"],
        "commit": versions["commit"] and versions["commit"][:7],
        "command": " ".join(["kvlab bench", args.name, *options]),
    }
