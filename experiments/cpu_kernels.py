"""cpu_kernels.md and .json: attention on this CPU beside what its memory gives, over rows and blocks, and beside torch.

The first table is one shape in either layout and page size; the second the shapes of cpu_shapes.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvlab.bench.dense import DenseSdpa
from kvlab.bench.device import open_device
from kvlab.bench.kernels import Attention, Plan, Shape, measure
from kvlab.bench.moves import moves_on
from kvlab.engine.attentions.sdpa import Sdpa
from kvlab.engine.kernels import Kvlab
from kvlab.harness import provenance
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid
from kvlab.record.others import OthersShare, others_words

HERE = Path(__file__).resolve().parent
TARGET = (32, 512, 9, 3, 64)
DTYPES = ("float32", "bfloat16")
TILES = {"token_major": 1, "head_major": 16}
PAGES = ("4k", "thp")
BLOCK_SIZES = (16, 64)
LEAST_S, COLD_BYTES = 0.02, 128 << 20
COLUMNS = ["read GB/s", "rows us", "rows GB/s", "of it", "16 / rows", "64 / rows", "sdpa / rows", "dense / rows"]

Row = dict[str, Any]
Case = tuple[tuple[int, ...], str, str, str]  # shape, element type, layout, pages
Measured = tuple[dict[str, str], list[Row]]  # what they were measured in, and the rows of one shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", metavar="PATH", type=Path, default=HERE / "cpu_kernels", help="without a suffix")
    given = parser.parse_args()
    device, others = open_device("cpu", given.threads), OthersShare()
    shapes = json.loads((HERE / "cpu_shapes.json").read_text())["shapes"]
    first = [(TARGET, dtype, layout, pages) for dtype in DTYPES for layout in TILES for pages in PAGES]
    second = [(tuple(shape), dtype, "token_major", "4k") for dtype in DTYPES for shape in shapes]
    found = measured([*first, *second], device.clock, given.repeats)
    brief = provenance.brief("torch")
    facts = {
        "machine": f"{brief['cpu']}, {brief['cores']} cores",
        "clock": device.clock_words,
        "repeats": given.repeats,
        "others_cpu_share": others.share(),
        "torch": brief["torch"],
        "commit": brief["commit"],
    }
    rows = [place | row for place, of_shape in found for row in of_shape]
    given.out.with_suffix(".json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    given.out.with_suffix(".md").write_text(page(facts, found[: len(first)], found[len(first) :]))


def measured(cases: list[Case], clock: Any, repeats: int) -> list[Measured]:
    found = []
    with Bar("shapes", len(cases)) as bar:
        for done, (shape, dtype, layout, pages) in enumerate(cases):
            plan = plan_of(clock, repeats, layout, pages)
            found.append(({"layout": layout, "pages": pages}, measure(Shape(*shape, dtype), plan)))
            bar.to(done + 1, len(cases))
    return found


def plan_of(clock: Any, repeats: int, layout: str, pages: str) -> Plan:
    attentions = {"kvlab": Attention(Kvlab()), "sdpa": Attention(Sdpa(), rows_only=True)}
    if layout == "token_major":
        attentions["sdpa_dense"] = Attention(DenseSdpa(), rows_only=True)
    return Plan(
        "cpu", attentions, moves_on("cpu"), ("decode",), BLOCK_SIZES, clock, repeats, LEAST_S, COLD_BYTES,
        TILES[layout], pages,
    )  # fmt: skip


def page(facts: Row, target: list[Measured], shapes: list[Measured]) -> str:
    head = ["dtype", "layout", "pages", *COLUMNS]
    first = [[rows[0]["dtype"], place["layout"], place["pages"], *ratios(rows)] for place, rows in target]
    second = [[rows[0]["dtype"], *named(rows[0]), *ratios(rows)] for _, rows in shapes]
    slowest = min(min(faster(rows)) for _, rows in shapes)
    return f"""\
# Attention of decode on a CPU

Medians of {facts["repeats"]} samples, which took turns; {facts["clock"]}. Blocks lie in no order.

## 32 sequences of 512 tokens, 9 query heads and 3 key/value heads of 64

{grid(head, first, left={"dtype", "layout", "pages"})}

## The shapes of cpu_shapes.json, token-major, 4 KiB pages

{grid(["dtype", "batch x length", "heads", *COLUMNS], second, left={"dtype", "heads"})}

- read: one large array of as large pages, read in C by as many threads. of it: the share that decode over rows reaches.
- 16 / rows, 64 / rows: the time over blocks of so many slots, as a multiple of that over rows.
- sdpa / rows: torch's attention over the same rows, a sequence at a time, as a multiple of ours; dense / rows: all
  sequences in one call. The least of either over all shapes: {slowest:.2f}.

{facts["machine"]}, others used {others_words(facts["others_cpu_share"])} of the CPU; torch {facts["torch"]}; \
commit {facts["commit"]}; `python experiments/cpu_kernels.py`.
"""


def ratios(rows: list[Row]) -> list[str]:
    found = {(row["attention"], row["block_size"]): row for row in rows[2:]}
    ours = found["kvlab", None]
    times = [("kvlab", 16), ("kvlab", 64), ("sdpa", None), ("sdpa_dense", None)]
    return [
        f"{rows[0]['gb_per_s']:.1f}",
        f"{ours['us_median']:,.0f}",
        f"{ours['gb_per_s']:.1f}",
        f"{ours['share_of_bandwidth']:.0%}",
        *(f"{found[key]['us_median'] / ours['us_median']:.2f}" if key in found else "-" for key in times),
    ]


def faster(rows: list[Row]) -> list[float]:
    """Times of torch's, as multiples of ours over rows."""
    ours = next(row for row in rows if row["attention"] == "kvlab")["us_median"]
    return [row["us_median"] / ours for row in rows if row["attention"] in ("sdpa", "sdpa_dense")]


def named(row: Row) -> list[str]:
    return [f"{row['batch']} x {row['length']}", f"{row['q_heads']}/{row['kv_heads']} x {row['head_dim']}"]


if __name__ == "__main__":
    main()
