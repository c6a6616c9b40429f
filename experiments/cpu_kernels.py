"""cpu_kernels.md and .json: attention on this CPU beside what its memory gives, over rows and blocks, and beside torch.

The first table is one shape in either layout and page size; the second the shapes of cpu_shapes.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from script import told, whole_number

from kvlab.bench.dense import DenseSdpa
from kvlab.bench.device import open_device
from kvlab.bench.kernels import measure
from kvlab.bench.moves import moves_on
from kvlab.bench.pools import Attention, Plan, Shape
from kvlab.engine.attentions.sdpa import Sdpa
from kvlab.engine.kernels import Kvlab
from kvlab.harness import output, provenance
from kvlab.harness.progress import Bar
from kvlab.harness.table import grid
from kvlab.record.others import OthersShare, others_words

HERE = Path(__file__).resolve().parent
TARGET = (32, 512, 9, 3, 64)
DTYPES = ("float32", "bfloat16")
TILES = {"token_major": 1, "head_major": 16}
PAGES = ("4k", "thp")
SUFFIXES = (".md", ".json")
BLOCK_SIZES = (16, 64)
LEAST_S, COLD_BYTES = 0.02, 128 << 20
COLUMNS = ["read GB/s", "rows us", "rows GB/s", "of it", "16 / rows", "64 / rows", "sdpa / rows", "dense / rows"]

Row = dict[str, Any]
Case = tuple[tuple[int, ...], str, str, str]  # shape, element type, layout, pages
Measured = tuple[dict[str, str], list[Row]]  # what they were measured in, and the rows of one shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--threads", metavar="N", type=whole_number, default=1, help="that read and compute (1)")
    add("--repeats", metavar="N", type=whole_number, default=7, help="samples of each (7)")
    add("--shapes", metavar="N", type=whole_number, help="the first so many of cpu_shapes.json; without it: all")
    add("--out", metavar="PATH", type=Path, default=HERE / "cpu_kernels", help="of both files, without a suffix")
    given = parser.parse_args()
    for suffix in SUFFIXES:
        output.check(given.out.with_suffix(suffix))
    shapes = json.loads((HERE / "cpu_shapes.json").read_text())["shapes"][: given.shapes]
    device, others = open_device("cpu", given.threads), OthersShare()
    targets = [(TARGET, dtype, layout, pages) for dtype in DTYPES for layout in TILES for pages in PAGES]
    cases: list[Case] = targets + [(tuple(shape), dtype, "token_major", "4k") for dtype in DTYPES for shape in shapes]
    measured = list(_measured(cases, device.clock, given.repeats))
    facts = _facts(given, device.clock_words) | {"others_cpu_share": others.share()}
    rows = [place | row for place, of_shape in measured for row in of_shape]
    record, text = {**facts, "rows": rows}, page(facts, measured[: len(targets)], measured[len(targets) :])
    for suffix, content in zip(SUFFIXES, (text, json.dumps(record, indent=1) + "\n"), strict=True):
        output.write(given.out.with_suffix(suffix), content)
    print(text)
    print(json.dumps(record))


def _measured(cases: list[Case], clock: Any, repeats: int) -> Iterator[Measured]:
    with Bar("shapes", len(cases)) as bar:
        for done, (shape, dtype, layout, pages) in enumerate(cases):
            rows = measure(Shape(*shape, dtype), plan_of(clock, repeats, layout, pages))
            bar.line(f"{done + 1} of {len(cases)}: {dtype}, {shape[0]} x {shape[1]}, {layout}, {pages}")
            bar.to(done + 1, len(cases))
            yield {"layout": layout, "pages": pages}, rows


def _facts(given: argparse.Namespace, clock_words: str) -> Row:
    brief = provenance.brief("torch")
    shapes = [f"--shapes {given.shapes}"] if given.shapes else []
    options = [f"--threads {given.threads}", f"--repeats {given.repeats}", *shapes]
    return {
        "machine": f"{brief['cpu']}, {brief['cores']} cores",
        "clock": clock_words,
        "threads": given.threads,
        "repeats": given.repeats,
        "torch": brief["torch"],
        "commit": brief["commit"],
        "command": " ".join(["python experiments/cpu_kernels.py", *options]),
    }


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
commit {facts["commit"]}; `{facts["command"]}`.
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
    told(main)
