"""The table of kvlab and its peers, and the line of JSON."""

from __future__ import annotations

from statistics import median
from typing import Any

from environments import MAX_SEQS
from race import POOL_BYTES, SLOW_S, Entry
from works import OUTPUT, PROMPT, Work

from kvlab.harness import provenance
from kvlab.harness.table import grid

MIB = 1 << 20


def rows(entries: dict[str, Entry], work: Work, sizes: list[int]) -> dict[str, dict[str, list[float]]]:
    """What was measured -> engine -> tokens a second in each repeat."""
    kinds = [("workload", "workload", sum(work.outputs))]
    kinds += [(f"{kind} at batch {size}", kind, size) for kind in ("decode", "prefill") for size in sizes]
    return {title: {name: entry.rates(kind, size) for name, entry in entries.items()} for title, kind, size in kinds}


def ratios(measured: dict[str, list[float]]) -> dict[str, list[float]]:
    """kvlab's over each peer's, repeat by repeat; with the only one of who was not asked again."""
    own = measured["kvlab"]
    return {name: _over(own, rates) for name, rates in measured.items() if name != "kvlab"}


def _over(own: list[float], theirs: list[float]) -> list[float]:
    most = max(len(own), len(theirs))
    own, theirs = (rates * most if len(rates) == 1 else rates for rates in (own, theirs))
    return [a / b for a, b in zip(own, theirs, strict=True)]


def markdown(entries: dict[str, Entry], work: Work, sizes: list[int], threads: int, command: str) -> str:
    measured = rows(entries, work, sizes)
    peers = [name for name in entries if name != "kvlab"]
    head = ["tokens/s", "kvlab", *(cell for name in peers for cell in (name, "kvlab's over it"))]
    body = []
    for title, rates in measured.items():
        over = ratios(rates)
        cells = (cell for name in peers for cell in (_rate(rates[name]), _ratio(over[name])))
        body.append([title, _rate(rates["kvlab"]), *cells])
    facts = provenance.brief()
    shares = ", ".join(f"{name} {entry.others_cpu_share:.0%}" for name, entry in entries.items())
    return f"""\
# kvlab beside other engines on a CPU

SmolLM2-135M in bfloat16 on {threads} threads, greedy. Workload: {len(work.prompts)} requests (`workload=listed`),
{sum(map(len, work.prompts)):,} prompt and {sum(work.outputs):,} output tokens, all there at once.
Batches: {PROMPT} tokens of prompt and {OUTPUT} of output; decode leaves out the prompts and the first token.
Each engine in a process of its own, one after another in every repeat, the others stopped; median [lowest-highest]. Who
took more than {SLOW_S:.0f} s for a piece of work was asked for it once.

{grid(head, body, left={"tokens/s"})}
{grid(["", "kvlab", *peers], _facts(entries), left={""})}
Versions: {"; ".join(entry.version for entry in entries.values())}.
Pool: {POOL_BYTES // MIB:,} MiB for kvlab and vLLM, {MAX_SEQS} sequences at most; llama.cpp reserves the longest
sequence for each, transformers the batch at hand. Memory is the most of PSS, all processes of an engine together, in
a batch of {MAX_SEQS}. Of kvlab's pool what the operating system has backed is taken off, of the others' the whole.
First token: from the start of the process, its caches on disk being warm.
Other programs took of the CPU, at most in one measurement: {shares}.

{facts["cpu"]}, {facts["cores"]} cores; Python {facts["python"]}, commit {facts["commit"]}; `{command}`.
"""


def _facts(entries: dict[str, Entry]) -> list[list[str]]:
    values = list(entries.values())
    return [
        ["peak memory, MiB", *(f"{entry.peak_pss_bytes // MIB:,}" for entry in values)],
        ["without the pool, MiB", *(f"{beyond_pool(entry) // MIB:,}" for entry in values)],
        ["first token after, s", *(f"{entry.first_token_s:.1f}" for entry in values)],
    ]


def beyond_pool(entry: Entry) -> int:
    """Bytes."""
    return entry.peak_pss_bytes - entry.pool_bytes


def record(entries: dict[str, Entry], work: Work, sizes: list[int], command: str) -> dict[str, Any]:
    """Units in the keys."""
    measured = rows(entries, work, sizes)
    return {
        "command": command,
        "engines": {
            name: {
                "version": entry.version, "pool_bytes": entry.pool_bytes, "peak_pss_bytes": entry.peak_pss_bytes,
                "pss_beyond_pool_bytes": beyond_pool(entry), "first_token_s": entry.first_token_s,
                "others_cpu_share": entry.others_cpu_share,
            }
            for name, entry in entries.items()
        },
        "tokens_per_s": {
            title: {name: median(values) for name, values in rates.items()} for title, rates in measured.items()
        },
        "ratio_of_kvlab_to": {
            title: {name: median(values) for name, values in ratios(rates).items()}
            for title, rates in measured.items()
        },
    }  # fmt: skip


def _rate(values: list[float]) -> str:
    middle, low, high = (f"{value:,.0f}" for value in (median(values), min(values), max(values)))
    return f"{middle} [{low}-{high}]" if len(values) > 1 else middle


def _ratio(values: list[float]) -> str:
    return f"{median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"
