"""A system prompt that 32 requests share, on a real model: what is computed of it, and when first tokens come.

kvlab sweep experiment=system_prompt tracking=none hydra.sweep.dir=DIR
python experiments/system_prompt.py DIR
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pages as p

from kvlab.harness.results import Run
from kvlab.harness.table import grid
from kvlab.record.compare import compare

STRATEGIES = ("paged", "prefix", "radix")
NOTES = """\
- 32 requests at once, each a system prompt of 400 tokens (25 blocks of 16) and a prompt of its own; SmolLM2, float32,
  on a CPU; `engine.token_budget=512`; a pool that holds all of them, shared or not.
- computed: tokens of prompts, over all steps; found: the rest, `prefix_hit_rate` as a share of all prompts' tokens.
  Computed once, the system prompt costs 400 tokens; the other 31 requests find it. They wait for it while the
  first is under way (`engine.wait_for_prefix`).
- same tokens: sequences like paged's, token for token; a tie parts where paged's two best logits were closer than
  the tie gap; wrong: neither. Prompts are computed in other portions, so rounding differs.
- First tokens: seconds from arrival, which is 0 for all, so that waiting for one's turn is in it; median of the seeds.
  Others: what other programs had of the machine's CPUs meanwhile. Above 5 % seconds are not to be trusted.
"""


def line_of(run: Run) -> p.Line:
    values = run.values
    computed = round(sum(run.steps["prefill_tokens"]))
    agreement = compare(paged_beside(run), run.path)
    return {
        "model": str(run.config["model"]),
        "strategy": str(run.config["strategy"]),
        "seed": str(run.seed),
        "requests": str(values["num_requests"]),
        "system_prompt": str(run.config["workload.system_prompt"]),
        "prompt_tokens": str(round(values["workload.prompt_tokens.mean"] * values["num_requests"])),
        "computed": str(computed),
        "hit_rate": f"{values['prefix_hit_rate']:.5f}",
        "peak_held_tokens": str(round(max(run.steps["held"]) / values["capacity.token_bytes"])),
        "ttft_p50_s": f"{values['ttft_s.p50']:.3f}",
        "ttft_p99_s": f"{values['ttft_s.p99']:.3f}",
        "others_cpu_share": f"{values['others_cpu_share']:.3f}",
        "output_digest": str(values["output_digest"]),
        "same": str(agreement.same),
        "ties": str(agreement.ties),
        "wrong": str(agreement.wrong),
    }


def paged_beside(run: Run) -> Path:
    """The directory of paged's run of the same seed in the same sweep."""
    return next(
        each.path for each in p.finished(run.path.parent) if (each.config["strategy"], each.seed) == ("paged", run.seed)
    )


def page_of(lines: list[p.Line]) -> str:
    title = "A system prompt of 400 tokens, shared by 32 requests"
    return "\n".join([p.heading(title, "system_prompt", lines), _work(lines), _times(lines), NOTES])


def _work(lines: list[p.Line]) -> str:
    head = ["strategy", "seed", "prompt tokens", "computed", "found", "hit rate %", "peak tokens held",
            "same / ties / wrong", "digest"]  # fmt: skip
    body = [
        [line["strategy"], line["seed"], f"{int(line['prompt_tokens']):,}", f"{int(line['computed']):,}",
         f"{found(line):,}", f"{100 * float(line['hit_rate']):.1f}", f"{int(line['peak_held_tokens']):,}",
         f"{line['same']} / {line['ties']} / {line['wrong']}", line["output_digest"][:8]]
        for strategy in STRATEGIES
        for line in p.picked(lines, strategy=strategy)
    ]  # fmt: skip
    return grid(head, body, left={"strategy", "digest"})


def found(line: p.Line) -> int:
    return int(line["prompt_tokens"]) - int(line["computed"])


def _times(lines: list[p.Line]) -> str:
    head = ["strategy", "first token p50, s", "p99, s", "others' share of the CPUs %"]
    body = []
    for strategy in STRATEGIES:
        here = p.picked(lines, strategy=strategy)
        times = [f"{median(float(line[key]) for line in here):.1f}" for key in ("ttft_p50_s", "ttft_p99_s")]
        body.append([strategy, *times, p.spread([100 * float(line["others_cpu_share"]) for line in here], 0)])
    return grid(head, body, left={"strategy"})


if __name__ == "__main__":
    p.main("system_prompt", line_of, page_of)
