"""The tables of `kvlab bench bookkeeping`, and what their columns mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvlab.harness.table import grid
from kvlab.record.others import others_words

if TYPE_CHECKING:
    from kvlab.bench.bookkeeping import Cost, Spread
    from kvlab.harness.bench_bookkeeping import Found

STEP = ["strategy", "block size", "asked", "strategy", "whole step", "if all asked", "nobody asks"]
TRACE = ["strategy", "block size", "strategy", "whole step", "most in use"]
SIZE = ["strategy", "blocks of the pool", "sequences running", "strategy, us a step", "whole step, us"]


def markdown(facts: dict[str, Any], found: Found) -> str:
    others = others_words(facts["others_cpu_share"])
    sizes = f"the means of {facts['repeats']} repeats of {facts['steps']} steps, {facts['sequences']} sequences running"
    machine = f"{facts['cpu']}, {facts['cores']} cores, others used {others} of the CPU; Python {facts['python']}"
    steps = grid(STEP, [_cells(setting, cost) for setting, cost in found.costs.items()], left={"strategy"})
    return f"""\
# `kvlab bench bookkeeping`

What a decode step costs the bookkeeping: nanoseconds of CPU time per running sequence and step, median [lowest-highest]
of {sizes}. The scheduler and the strategies are the real ones; there is no model.

{steps}
- block size: slots; `-`: the strategy has no such knob.
- asked: share of the sequences that ask the strategy for room in a step, because theirs is used up.
- strategy: inside the strategy. whole step: that, the rest of planning, the table that a kernel reads, taking tokens.
- if all asked: inside the strategy, if every sequence asked in every step.
- nobody asks: inside the strategy, in steps in which nobody's room is used up, all sequences being equally long (it is
  asked once for its moves, whoever runs); `-`: there are no such steps.
{_trace(facts, found)}{_by_size(found)}
{machine}; commit {facts["commit"]}; `{facts["command"]}`.
"""


def _trace(facts: dict[str, Any], found: Found) -> str:
    if not found.traces:
        return ""
    first = next(iter(found.traces.values()))
    body = [
        [setting.strategy, str(setting.block_size or "-"), words(total.strategy_ns), words(total.step_ns),
         f"{total.most_tokens:,}"]
        for setting, total in found.traces.items()
    ]  # fmt: skip
    return f"""
## A whole trace

{facts["requests"]:,} requests wait from the start, {facts["sequences"]} run at most; no two prompts are alike.
Admission, growth, what a cache publishes and evicts, and departure, in nanoseconds of CPU time per output token. There
are {first.output_tokens:,} of them. Most in use: tokens' worth of memory.

{grid(TRACE, body, left={"strategy"})}"""


def _by_size(found: Found) -> str:
    if not found.sizes:
        return ""
    body = [
        [size.strategy, f"{size.blocks:,}", f"{size.sequences:,}", _us(cost.strategy_ns, size.sequences),
         _us(cost.step_ns, size.sequences)]
        for size, cost in found.sizes.items()
    ]  # fmt: skip
    return f"""
## By the size of the pool, and by how many run

{grid(SIZE, body, left={"strategy"})}"""


def _cells(setting: Any, cost: Cost) -> list[str]:
    spreads = (cost.strategy_ns, cost.step_ns, cost.every_step_ns, cost.quiet_ns)
    size = str(setting.block_size or "-")
    return [setting.strategy, size, f"{cost.asked:.1%}", *("-" if s is None else words(s) for s in spreads)]


def _us(spread: Spread, sequences: int) -> str:
    return words(type(spread)(*(value * sequences / 1e3 for value in spread)))


def words(spread: Spread) -> str:
    digits = 1 if spread.median < 10 else 0
    middle, low, high = (f"{value:,.{digits}f}" for value in spread)
    return f"{middle} [{low}-{high}]"
