"""What `kvlab bench kernels` found, as a table to read."""

from __future__ import annotations

from typing import Any

from kvlab.harness.table import grid
from kvlab.record.others import others_words

HEAD = ["dtype", "batch x length", "op", "geometry", "block size", "attention", "us", "rate", "of memory's", "kernel"]


def markdown(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The table, and what its columns mean."""
    table = grid(HEAD, [_cells(row) for row in rows], left={"dtype", "op", "geometry", "attention", "kernel"})
    others = others_words(facts["others_cpu_share"])
    memory = f" All in {facts['pages']} pages, {facts['layout']}." if facts["pages"] else ""
    left_out = "".join(f"- left out: {line}.\n" for line in facts["left_out"])
    return f"""\
# `kvlab bench kernels`

Median [lowest-highest] of {facts["repeats"]} samples, which took turns; {facts["clock"]}.

{table}
- read, copy memory: one large array, copied by torch; what share of it decode (of read) and append and copy (of copy)
  reach.{memory}
- us: of one layer; a pass goes through so many layers that no cache holds them. rate: bytes read and written at least,
  or for prefill the operations of two matrix products over the tokens that a query sees.
- append: a new token of each sequence. copy: half the slots, in runs of 16.
{left_out}
{facts["machine"]}, others used {others} of the CPU; torch {facts["torch"]}, triton {facts["triton"]}; commit \
{facts["commit"]}; `{facts["command"]}`.
"""


def _cells(row: dict[str, Any]) -> list[str]:
    rate = f"{row['tflop_per_s']:,.3g} TFLOP/s" if row["op"] == "prefill" else f"{row['gb_per_s']:,.1f} GB/s"
    share = row["share_of_bandwidth"]
    digits = 1 if row["us_median"] < 100 else 0
    middle, low, high = (f"{row[f'us_{name}']:,.{digits}f}" for name in ("median", "low", "high"))
    return [
        row["dtype"],
        f"{row['batch']} x {row['length']}",
        row["op"],
        *(str(row[name] or "-") for name in ("geometry", "block_size", "attention")),
        f"{middle} [{low}-{high}]",
        rate,
        "-" if share is None else f"{share:.0%}",
        row["kernel"],
    ]
