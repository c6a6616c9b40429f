"""One answer against four on a real model: the blocks that are held, with and without sharing.

kvlab sweep experiment=samples_real tracking=none hydra.sweep.dir=DIR
python experiments/samples_real.py DIR
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pages as p

from kvlab.harness.results import Run
from kvlab.harness.table import grid

WAYS = {"1 True": "one", "4 True": "four", "4 False": "four, nothing shared"}
NOTES = """\
- Peak blocks held: the most that any step has, of blocks of 16 tokens. 4 requests at once, prompts of 250 tokens (15
  whole blocks and 10 tokens), answers of 48, temperature 0.8, float32, a pool that holds them all; so the four answers
  share 15 blocks a request, and each but one copies the half-full one it goes on in.
- Prompt tokens computed: of four answers that share, the prompt once.
- Same tokens: all answers, token for token, as those without sharing (`engine.fork=false`). Different answers: of all.
- The clock counts steps; no time is compared.
"""


def line_of(run: Run) -> p.Line:
    block = int(run.config["block_size"]) * int(run.values["capacity.token_bytes"])
    answers = outputs(run)
    return {
        "model": str(run.config["model"]),
        "way": WAYS[f"{run.config['workload.n']} {run.config['engine.fork']}"],
        "seed": str(run.seed),
        "requests": str(run.values["num_requests"]),
        "peak_blocks": str(round(max(run.steps["held"]) / block)),
        "prefill_tokens": str(round(sum(run.steps["prefill_tokens"]))),
        "forks": str(run.values["num_forks"]),
        "answers": str(len(answers)),
        "different_answers": str(len(set(answers.values()))),
        "output_digest": str(run.values["output_digest"]),
    }


def outputs(run: Run) -> dict[tuple[int, int], tuple[int, ...]]:
    """(request, branch) -> token ids."""
    with (run.path / "outputs.jsonl").open() as file:
        return {(entry["id"], entry["branch"]): tuple(entry["tokens"]) for entry in map(json.loads, file)}


def page_of(lines: list[p.Line]) -> str:
    head = ["answers a request", "peak blocks held", "of one answer's", "prompt tokens computed", "forks",
            "same tokens", "different answers"]  # fmt: skip
    one = _mean(lines, "one", "peak_blocks")
    body = []
    for way in WAYS.values():
        here = p.picked(lines, way=way)
        peak = [float(line["peak_blocks"]) for line in here]
        prefill, forks = ([float(line[key]) for line in here] for key in ("prefill_tokens", "forks"))
        same = "" if way == "one" else f"{sum(map(same_as_apart(lines), here))} of {len(here)} runs"
        different = " ".join(dict.fromkeys(f"{line['different_answers']} of {line['answers']}" for line in here))
        body.append(
            [way, p.spread(peak, 0), f"{sum(peak) / len(peak) / one:.2f} x", p.spread(prefill, 0), p.spread(forks, 0),
             same, different]
        )  # fmt: skip
    title = "One answer against four: blocks of a real model"
    return "\n".join([p.heading(title, "samples_real", lines), grid(head, body, left={head[0]}), NOTES])


def same_as_apart(lines: list[p.Line]) -> Callable[[p.Line], bool]:
    apart = {line["seed"]: line["output_digest"] for line in p.picked(lines, way=WAYS["4 False"])}
    return lambda line: line["output_digest"] == apart[line["seed"]]


def _mean(lines: list[p.Line], way: str, key: str) -> float:
    values = [float(line[key]) for line in p.picked(lines, way=way)]
    return sum(values) / len(values)


if __name__ == "__main__":
    p.main("samples_real", line_of, page_of)
