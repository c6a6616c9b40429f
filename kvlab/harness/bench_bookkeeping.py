"""`kvlab bench bookkeeping`: what strategies cost: a step, a whole trace, by the size of what they hold."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlab.build import build_strategy
from kvlab.errors import UsageError
from kvlab.harness import nodes, output, plugins, provenance
from kvlab.harness.bench_bookkeeping_page import markdown
from kvlab.harness.compose import Composer
from kvlab.harness.progress import Bar

if TYPE_CHECKING:
    from kvlab.bench.bookkeeping import Cost
    from kvlab.bench.trace import Total
    from kvlab.strategy import Strategy

SEQUENCES = STEPS = 256
REQUESTS = 2_000
BLOCK_SIZES = (1, 16, 128)
TOKEN_BYTES, LAYERS = 46_080, 30  # SmolLM2-135M in float32
MAX_LEN = 1024
CURVED = ("paged", "prefix")  # whose costs are also measured by size
CURVE_BLOCK, CURVE_STEPS = 16, 64
POOLS = (1_024, 10_240, 102_400, 1_024_000)  # blocks, SEQUENCES_OF_POOLS running
SEQUENCES_OF_POOLS = 16
RUNNING = (16, 64, 256, 1_024, 4_096)  # sequences, over a pool of POOL_OF_RUNNING blocks
POOL_OF_RUNNING = 1_024_000


class Setting(NamedTuple):
    """A strategy as it is measured; block_size None: it has no such knob."""

    strategy: str
    block_size: int | None

    @property
    def overrides(self) -> list[str]:
        return [f"strategy={self.strategy}", *([f"block_size={self.block_size}"] if self.block_size else [])]


class Size(NamedTuple):
    strategy: str
    blocks: int  # of the pool
    sequences: int  # running


class Found(NamedTuple):
    costs: dict[Setting, Cost]
    traces: dict[Setting, Total]
    sizes: dict[Size, Cost]

    @property
    def done(self) -> int:
        return len(self.costs) + len(self.traces) + len(self.sizes)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "rows": [{**setting._asdict(), **cost.record()} for setting, cost in self.costs.items()],
            "trace": [{**setting._asdict(), **total.record()} for setting, total in self.traces.items()],
            "sizes": [{**size._asdict(), **cost.record()} for size, cost in self.sizes.items()],
        }


def run(args: argparse.Namespace) -> int:
    for name, default in (("sequences", SEQUENCES), ("steps", STEPS), ("requests", REQUESTS)):
        setattr(args, name, default if getattr(args, name) is None else getattr(args, name))
    settings = _settings(args)
    from kvlab.record.others import OthersShare

    others = OthersShare()
    found = _measure(args, settings)
    facts = _facts(args, others.share())
    text = markdown(facts, found)
    if args.out:
        _write(args.out, text, found)
    if not args.json:
        print(text)
    print(json.dumps({**facts, **found.rows()}))
    return 0


def _measure(args: argparse.Namespace, settings: list[Setting]) -> Found:
    from kvlab.bench.bookkeeping import measure
    from kvlab.bench.trace import lengths, replay

    found = Found({}, {}, {})
    traced = [setting for setting in settings if setting.block_size in (None, CURVE_BLOCK)]
    sizes = _sizes({setting.strategy for setting in settings})
    room, curve_steps = 2 * args.sequences * MAX_LEN, min(args.steps, CURVE_STEPS)
    total = len(settings) + len(traced) + len(sizes)
    with Composer() as composer, Bar("settings", total) as bar:
        for setting in settings:
            make = partial(_strategy, composer, setting, args.sequences, room)
            found.costs[setting] = measure(make, args.steps, args.repeats)
            bar.to(found.done, total)
        for setting in traced:
            make = partial(_strategy, composer, setting, args.sequences, room)
            found.traces[setting] = replay(make, lengths(args.requests), args.repeats)
            bar.to(found.done, total)
        for size in sizes:
            setting = Setting(size.strategy, CURVE_BLOCK)
            make = partial(_strategy, composer, setting, size.sequences, size.blocks * CURVE_BLOCK)
            found.sizes[size] = measure(make, curve_steps, args.repeats)
            bar.to(found.done, total)
    return found


def _sizes(names: set[str]) -> list[Size]:
    curved = [name for name in CURVED if name in names]
    return [
        *(Size(name, blocks, SEQUENCES_OF_POOLS) for name in curved for blocks in POOLS),
        *(Size(name, POOL_OF_RUNNING, sequences) for name in curved for sequences in RUNNING),
    ]


def _settings(args: argparse.Namespace) -> list[Setting]:
    for name in ("sequences", "steps", "requests"):
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


def _strategy(composer: Composer, setting: Setting, sequences: int, slots: int) -> Strategy:
    config = composer.compose([*setting.overrides, f"max_len={MAX_LEN}", f"engine.max_seqs={sequences}"]).config
    return build_strategy(config, TOKEN_BYTES, LAYERS, slots * TOKEN_BYTES)


def _write(path: Path, text: str, found: Found) -> None:
    if not found.sizes:
        output.write(path, text)
        return
    from kvlab.harness.bench_figures import bookkeeping

    picture = path.with_suffix(".svg")
    output.write(path, f"{text}\n![time of a step by pool and by running sequences]({picture.name})\n")
    points = [
        (size.strategy, size.blocks, size.sequences, cost.step_ns.median * size.sequences / 1e3,
         cost.strategy_ns.median * size.sequences / 1e3)
        for size, cost in found.sizes.items()
    ]  # fmt: skip
    with output.writing(picture):
        bookkeeping(points, SEQUENCES_OF_POOLS, picture)


def _facts(args: argparse.Namespace, share: float | None) -> dict[str, Any]:
    names = ("only", "sequences", "steps", "requests", "repeats")
    options = [f"--{name} {getattr(args, name)}" for name in names if getattr(args, name)]
    return {
        "sequences": args.sequences,
        "steps": args.steps,
        "requests": args.requests,
        "repeats": args.repeats,
        **provenance.brief(),
        "others_cpu_share": share,
        "command": " ".join(["kvlab bench", args.name, *options]),
    }
