"""`kvlab check NAME`: the contract against any strategy that is installed, plugins' and unpackaged ones too."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from kvlab.build import build
from kvlab.errors import UsageError
from kvlab.harness.compose import Composer
from kvlab.harness.progress import Bar
from kvlab.strategy import Strategy
from kvlab.testing.contract import LifeError, MakeFor, lives
from kvlab.testing.memories import SETTINGS, SHORT, Setting

SHOWN = (
    "steps", "admitted", "admit refused", "hits", "hit tokens", "extended", "extend refused", "forked", "fork refused",
    "truncated", "preempted", "aborted", "aborted unwritten", "aborted waiting", "finished", "written tokens", "copy",
    "map", "unmap", "drop", "purity checked", "claims checked", "cleared",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="NAME|NAME=VALUE", help="strategies, and overrides for all of them")
    parser.add_argument("--seed", type=number, help="live this one life")
    parser.add_argument("--seeds", type=number, default=200, help="lives (%(default)s)")
    parser.add_argument("--steps", type=number, default=400, help="steps of each (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a whole number, 0 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    if (args.seed is None and not args.seeds) or not args.steps:
        raise UsageError("--seeds and --steps: allowed is 1 or more")
    names = [word for word in args.what if "=" not in word]
    overrides = [word for word in args.what if "=" in word]
    asked = {" ".join([name, *overrides]): [f"strategy={name}", *overrides] for name in names}
    asked = asked or {given_class(overrides): overrides}
    makers = {words: maker(line) for words, line in asked.items()}  # all of them, before anything runs
    seeds = range(args.seeds) if args.seed is None else [args.seed]
    rows = [check(words, make, seeds, args.steps) for words, make in makers.items()]
    print(json.dumps(rows, indent=1) if args.json else "\n\n".join(map(text, rows)))
    return int(any(row["status"] != "ok" for row in rows))


def given_class(overrides: Sequence[str]) -> str:
    """The overrides, one of which names a class."""
    found = [word for word in overrides if word.startswith("strategy._target_=")]
    if not found:
        raise UsageError("kvlab check: name a strategy (kvlab strategies lists them), or give strategy._target_=PATH")
    return " ".join(overrides)


def maker(overrides: Sequence[str]) -> MakeFor:
    """Makes the strategy that the overrides configure for each of the contract's memories."""
    chosen = any(word.startswith("block_size=") for word in overrides)
    with Composer() as composer:
        composed = composer.compose(overrides)
        _refuse_without_effect(overrides)
        if chosen or "block_size" in composed.lacking:
            return lambda setting: made(composed.config["strategy"], setting)
        sizes = {setting.block_size for setting in (*SETTINGS, *SHORT)}
        nodes = {size: composer.compose([*overrides, f"block_size={size}"]).config["strategy"] for size in sizes}
    return lambda setting: made(nodes[setting.block_size], setting)


def _refuse_without_effect(overrides: Sequence[str]) -> None:
    """UsageError: an override that the contract would not look at. It has memories and lives of its own."""
    for word in overrides:
        name = word.partition("=")[0].lstrip("+~")
        if name.partition(".")[0] not in ("strategy", "eviction", "hydra") and name != "block_size":
            hint = f"; did you mean --{name} ?" if name in ("seed", "seeds", "steps") else ""
            allowed = "strategy.NAME, block_size, eviction: the contract has memories and requests of its own"
            raise UsageError(f"{word}: it would change nothing; allowed is {allowed}{hint}")


def made(node: dict[str, Any], setting: Setting) -> Strategy:
    strategy: Strategy = build(node, setting.memory)
    return strategy


def check(name: str, make: MakeFor, seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """One strategy's row: `status` is ok or broken; broken ones say the rule, why, and how to repeat it."""
    repeat = f"kvlab check {name}"
    begin = time.perf_counter()
    row: dict[str, Any] = {"strategy": name, "status": "ok", "seeds": len(seeds), "steps": steps}
    try:
        with Bar(f"check {name}", len(seeds)) as bar:
            report = lives(make, seeds, steps, repeat, lambda report: bar.to(report.lives, len(seeds)))
    except LifeError as failed:
        report = failed.report
        row |= {"status": "broken", "rule": failed.rule, "reason": str(failed), "repeat": failed.repeat}
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    seconds = round(time.perf_counter() - begin, 2)
    return {**row, "lives": report.lives, "seconds": seconds, "memories": report.memories, "exercised": report.seen}


def check_installed(words: str, seeds: int, steps: int) -> dict[str, Any]:
    """The same by name and overrides; a test runs several in processes of their own."""
    name, *overrides = words.split()
    return check(words, maker([f"strategy={name}", *overrides]), range(seeds), steps)


def text(row: dict[str, Any]) -> str:
    seen = row["exercised"]
    lines = [f"{row['strategy']}: {row['lives']} lives of {row['steps']} steps in {row['seconds']} s"]
    lines += [f"  {name:18}{seen[name]:>12,}" for name in (*SHOWN, *sorted(set(seen) - set(SHOWN))) if seen[name]]
    return "\n".join([*lines, "ok" if row["status"] == "ok" else f"BROKEN: {row['reason']}"])
