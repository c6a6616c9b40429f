"""One trace through kvlab's strategies and through vLLM's KVCacheManager, in turns: time per output token.

The lengths are those of `kvlab bench bookkeeping`. vLLM's side runs in its own environment, without a model, on the
calls that its scheduler makes. Nanoseconds of CPU time: inside the strategy, inside the manager.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from environments import HERE, PEERS
from processes import Others, Process

from kvlab.bench.trace import CAP, lengths, tell
from kvlab.build import build_strategy
from kvlab.harness import provenance
from kvlab.harness.compose import Composer
from kvlab.harness.table import grid

BLOCK, BLOCKS, RUNNING, MAX_LEN = 16, 16_384, 256, 2 * CAP
TOKEN_BYTES, LAYERS = 23_040, 30  # SmolLM2-135M in bfloat16
PAIRS = {"paged": False, "prefix": True}  # strategy -> vLLM's caching


def measure(folder: Path, requests: int, repeats: int) -> dict[str, Any]:
    """Per pair, nanoseconds per output token of each side in each repeat; vLLM's hashes with its manager."""
    known = lengths(requests)
    found: dict[str, Any] = {name: {"kvlab_ns": [], "kvlab_step_ns": [], "vllm_ns": []} for name in PAIRS}
    trace = {"prompt": known.prompt.tolist(), "output": known.output.tolist(), "running": RUNNING, "max_len": MAX_LEN}
    python = PEERS["vllm"].command(folder)[0]
    process = Process("vllm", [python, str(HERE / "vllm_blocks.py")], {}, {}, folder / "blocks.log")
    with Composer() as composer, closing(process):
        others = Others(process)
        for repeat in range(repeats):
            print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
            hashed = _theirs(process.ask, trace, found)
            config = [f"block_size={BLOCK}", f"max_len={MAX_LEN}", f"engine.max_seqs={RUNNING}"]
            for name in PAIRS:
                node = composer.compose([f"strategy={name}", *config]).config
                strategy = build_strategy(node, TOKEN_BYTES, LAYERS, BLOCKS * BLOCK * TOKEN_BYTES)
                told = tell(strategy, known)
                assert (told.steps, told.output_tokens) == hashed, "not the same trace"
                found[name]["kvlab_ns"].append(told.strategy_ns / told.output_tokens)
                found[name]["kvlab_step_ns"].append(told.step_ns / told.output_tokens)
        share = others.share()
    return {
        "vllm": process.facts["vllm"], "requests": requests, "steps": hashed[0], "output_tokens": hashed[1],
        "others_cpu_share": share, "ns_per_output_token": found,
        "ratio_of_vllm_to_kvlab": {name: median(_ratios(sides)) for name, sides in found.items()},
    }  # fmt: skip


def _theirs(ask: Any, trace: dict[str, Any], found: dict[str, Any]) -> tuple[int, int]:
    """Both settings of vLLM's; (steps, output tokens). What it hashes is what its requests cost more with caching."""
    told = {}
    for name, caching in PAIRS.items():
        told[name] = ask({**trace, "caching": caching, "block_size": BLOCK, "blocks": BLOCKS + 1})  # a null block
    for name, answer in told.items():
        hashing = answer["request_ns"] - told["paged"]["request_ns"]
        found[name]["vllm_ns"].append((answer["manager_ns"] + hashing) / answer["output_tokens"])
    return answer["steps"], answer["output_tokens"]


def markdown(found: dict[str, Any], command: str) -> str:
    head = ["", "vLLM's manager, ns", "strategy, ns", "vLLM's over it", "with scheduler, ns"]
    body = []
    for name, sides in found["ns_per_output_token"].items():
        title = f"`{name}`, {'caching, hashes' if PAIRS[name] else 'no caching'}"
        columns = (sides["vllm_ns"], sides["kvlab_ns"], _ratios(sides), sides["kvlab_step_ns"])
        body.append([title, *map(_words, columns)])
    facts = provenance.brief()
    return f"""\
# Bookkeeping beside vLLM's KVCacheManager

{found["requests"]:,} requests, none sharing a prompt, {RUNNING} running: {found["steps"]:,} steps and
{found["output_tokens"]:,} output tokens. {BLOCKS:,} blocks of {BLOCK}.
Nanoseconds of CPU time per output token, in turns; median [lowest-highest]. What the two do besides each other:
docs/bookkeeping.md.

{grid(head, body, left={""})}
- vLLM's manager: `get_computed_blocks`, `allocate_slots` and `free` as vLLM's scheduler calls them, a call for each
  sequence and step; with caching also the hashing, which it does when requests are made and tokens appended.
- strategy: all calls that kvlab's scheduler makes, of many sequences at once where it can.
- with scheduler: that, and kvlab's whole step. vLLM's has no counterpart here.

vLLM {found["vllm"]}, others used {found["others_cpu_share"]:.0%} of the CPU;
{facts["cpu"]}, {facts["cores"]} cores; Python {facts["python"]}, commit {facts["commit"]}; `{command}`.
"""


def _ratios(sides: dict[str, list[float]]) -> list[float]:
    return [theirs / ours for theirs, ours in zip(sides["vllm_ns"], sides["kvlab_ns"], strict=True)]


def _words(values: list[float]) -> str:
    digits = 0 if median(values) >= 100 else 1
    middle, low, high = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} [{low}-{high}]"
