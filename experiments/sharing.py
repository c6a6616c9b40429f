"""What sharing saves when a request has several answers, beside Fig. 15 of the PagedAttention paper.

kvlab sweep experiment=sharing tracking=none hydra.sweep.dir=DIR1
kvlab sweep experiment=sharing_real tracking=none hydra.sweep.dir=DIR2
python experiments/sharing.py DIR1 DIR2
"""

from __future__ import annotations

import csv
from math import ceil
from pathlib import Path

import matplotlib
import pages as p
from matplotlib.figure import Figure

from kvlab.harness.look import STYLE
from kvlab.harness.results import Run
from kvlab.harness.table import grid

WIDTHS = ("2", "4", "6")
WITHIN = 1.5  # points
FIG_15 = {  # %, Alpaca
    "parallel": dict(zip(WIDTHS, (6.09, 8.53, 9.79), strict=True)),
    "beam": dict(zip(WIDTHS, (37.56, 53.13, 55.16), strict=True)),
}
TEXT = {"parallel": "16.2-30.5", "beam": "44.3-66.3"}  # %, ShareGPT, all widths
NAMES = {"alpaca_sosp23": "Alpaca", "sharegpt_sosp23": "ShareGPT"}
NOTES = """\
- Memory saved: the paper's "blocks saved by sharing / blocks without sharing". In every step, `shared` is what the
  rooms of all sequences (whole blocks of 16) take together beyond what is held for them; saved is the sum of
  shared x seconds over the sum of (held + shared) x seconds, over all steps of a run (`sharing_saving.whole`). What
  is averaged in the paper, and at which load, it does not say.
- Model, GPU and pool as there (OPT-13B, A100, 984 blocks of 16). Lengths are drawn from the bars of its Fig. 11,
  prompt and output apart; all answers of a request are equally long. Poisson arrivals, 7 requests/s (Alpaca; in its
  Fig. 14 the six settings bear 7 to 18) and 0.2 (ShareGPT). The load hardly matters, as long as nobody is preempted:
  beam 2 on Alpaca, seed 0, saved 40.1 % at 3 and at 17 requests/s.
- By lengths alone: the same quotient from prompt and output lengths of the same requests, in this script, without an
  engine: whole blocks of the prompt are had once, all others n times. Seeds differ as their draws do.
- Parallel: n answers save (n - 1) / n of what the prompt's whole blocks are of an answer's blocks. By the paper's
  figures that share is 12.2, 11.4 and 11.7 % at n = 2, 4 and 6; by ours {share} %.
- Beam: in simulated runs **candidates are drawn by chance, by no model**: for each beam, log-probabilities of 2k even
  draws. Which beams have heirs is a model's to say, so no deviation is asked of these figures; they show that the
  bookkeeping carries such searches.
- SmolLM2: the beams of a real model (float32, CPU, prompts of random token ids; a clock that counts steps), and the
  same requests with candidates by chance.
"""


def line_of(run: Run) -> p.Line:
    n, beams = int(run.config["workload.n"]), int(run.config["workload.beams"])
    return {
        "executor": str(run.config["executor"]),
        "model": str(run.config["model"]),
        "lengths": NAMES[str(run.config["workload"])],
        "kind": "beam" if beams else "parallel",
        "width": str(beams or n),
        "seed": str(run.seed),
        "requests": str(run.values["num_requests"]),
        "saved_percent": f"{100 * run.values['sharing_saving.whole']:.3f}",
        "arithmetic_percent": "" if beams else f"{100 * by_arithmetic(run, n):.3f}",
        "forks": str(run.values["num_forks"]),
        "preemptions": str(run.values["num_preemptions"]),
        "failed": str(run.values["num_failed"]),
    }


def by_arithmetic(run: Run, n: int) -> float:
    """What n samples save by their lengths alone, each request in n sequences from its second step on."""
    block, saved, whole = int(run.config["block_size"]), 0, 0
    with (run.path / "requests.csv").open(newline="") as file:
        eldest = [row for row in csv.DictReader(file) if row["branch"] == "0"]
    for prompt, output in ((int(row["prompt_len"]), int(row["output_len"])) for row in eldest):
        saved += (n - 1) * (prompt // block) * (output - 1)
        whole += ceil(prompt / block) + n * sum(ceil((prompt + step) / block) for step in range(1, output))
    return saved / whole


def page_of(lines: list[p.Line]) -> str:
    simulated = [line for line in lines if line["model"] == "OPT-13B"]
    own = [line for line in lines if line["model"] != "OPT-13B"]
    parts = [
        p.heading("What sharing saves: samples and beams of one prompt", "sharing", lines),
        "![Memory saved by sharing](sharing.png)\n",
        f"## SIMULATED, beside the paper's Fig. 15\n\n{_published(simulated)}",
        _verdict(simulated),
        f"## Beams of a real model\n\n{_real(own)}" if own else "",
        NOTES.format(share=", ".join(f"{share:.1f}" for share in _shares(simulated))),
    ]
    return "\n".join(part for part in parts if part)


def saved(lines: list[p.Line], **asked: str) -> list[float]:
    return [float(line["saved_percent"]) for line in p.picked(lines, **asked)]


def _published(lines: list[p.Line]) -> str:
    head = ["lengths", "answers", "published %", "ours %, mean [seeds]", "deviation, points", "by lengths alone %",
            "preemptions"]  # fmt: skip
    body = []
    for lengths, kind, width in _cells(lines):
        here = p.picked(lines, lengths=lengths, kind=kind, width=width)
        ours, alpaca = saved(here), lengths == "Alpaca"
        figure = f"{FIG_15[kind][width]:.2f}" if alpaca else f"{TEXT[kind]} (all widths)"
        off = f"{_mean(ours) - FIG_15[kind][width]:+.2f}" if alpaca else ""
        preempted = str(sum(int(line["preemptions"]) for line in here))
        counted = [float(line["arithmetic_percent"]) for line in here if line["arithmetic_percent"]]
        alone = f"{_mean(counted):.2f}" if counted else ""
        body.append([lengths, f"{kind} {width}", figure, p.spread(ours), off, alone, preempted])
    return grid(head, body, left={"lengths", "answers"})


def _cells(lines: list[p.Line]) -> list[tuple[str, str, str]]:
    found = {(line["lengths"], line["kind"], line["width"]) for line in lines}
    return sorted(found, key=lambda cell: (cell[0], cell[1] == "beam", int(cell[2])))


def within(lines: list[p.Line]) -> dict[str, bool]:
    """By width: whether parallel sampling at Alpaca's lengths, mean of the seeds, is as near as it must be."""
    found = {width: saved(lines, lengths="Alpaca", kind="parallel", width=width) for width in WIDTHS}
    return {width: abs(_mean(each) - FIG_15["parallel"][width]) <= WITHIN for width, each in found.items() if each}


def _verdict(lines: list[p.Line]) -> str:
    near = within(lines)
    return f"Parallel sampling, Alpaca: {sum(near.values())} of {len(near)} within {WITHIN} points of the paper.\n"


def _shares(lines: list[p.Line]) -> list[float]:
    """The prompt's whole blocks as a share of an answer's, in %, as each width has it."""
    found = {width: saved(lines, lengths="Alpaca", kind="parallel", width=width) for width in WIDTHS}
    return [_mean(each) * int(width) / (int(width) - 1) for width, each in found.items() if each]


def _real(lines: list[p.Line]) -> str:
    head = ["beams", "SmolLM2 saves %, mean [seeds]", "chance, same requests %", "forks: SmolLM2", "forks: chance"]
    body = []
    for width in sorted({line["width"] for line in lines}, key=int):
        real, chance = (p.picked(lines, executor=name, width=width) for name in ("real", "simulated"))
        forks = [f"{sum(int(line['forks']) for line in each):,}" for each in (real, chance)]
        body.append([width, p.spread(saved(real)), p.spread(saved(chance)), *forks])
    return grid(head, body, left={"beams"})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def draw(lines: list[p.Line], path: Path) -> None:
    """Published and ours side by side, Alpaca; the seeds as dots."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 2.9))
        for panel, kind in zip(figure.subplots(1, 2), FIG_15, strict=True):
            ours = [saved(lines, model="OPT-13B", lengths="Alpaca", kind=kind, width=width) for width in WIDTHS]
            panel.bar([x - 0.2 for x in range(3)], [*FIG_15[kind].values()], 0.38, color="#B8B8B8", label="published")
            panel.bar([x + 0.2 for x in range(3)], [_mean(each) for each in ours], 0.38, color="#332288", label="ours")
            for x, each in enumerate(ours):
                panel.plot([x + 0.2] * len(each), each, "o", color="#DDCC77", markersize=3)
            panel.set_xticks(range(3), WIDTHS)
            panel.set_xlabel("samples" if kind == "parallel" else "beams, candidates by chance")
            panel.set_title(f"{kind}, Alpaca: memory saved, %")
            panel.legend(frameon=False)
        figure.get_layout_engine().set(rect=(0, 0.07, 1, 0.93))
        figure.text(0.004, 0.012, "SIMULATED, OPT-13B, a100_40", size=9, color="#B00000", weight="bold")
        figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    p.main("sharing", line_of, page_of, draw)
