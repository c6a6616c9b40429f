"""`kvlab bench compiled`: what the GPU's kernels compile to, by architecture, and what is wrong there; needs no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import kvlab
from kvlab.compiled.variants import ARCHS, read
from kvlab.harness import output
from kvlab.harness.table import grid

if TYPE_CHECKING:
    from kvlab.compiled.compile import Compiled
    from kvlab.compiled.variants import Listed

LIST = Path(kvlab.__file__).parents[1] / "experiments" / "gpu_variants.json"
LEFT = {"kernel", "type", "slots"}
HEAD = ["kernel", "type", "head", "groups", "slots", "warps", *(f"sm_{arch}" for arch in ARCHS)]


def run(args: argparse.Namespace) -> int:
    """1 if something is wrong with a kernel."""
    listed = read(LIST)
    from kvlab.compiled.checks import faults
    from kvlab.compiled.compile import VariantError, compile_all

    excuses = {item.variant: item.spills for item in listed}
    try:
        compiled = compile_all((item.variant, arch) for item in listed for arch in item.archs)
    except VariantError as error:
        print(f"kvlab: {error}", file=sys.stderr)
        return 1
    wrong = [fault for one in compiled for fault in faults(one, excuses[one.variant])]
    text = markdown(listed, compiled, wrong)
    if args.out:
        output.write(args.out, text)
    rows = [asdict(one) for one in compiled]
    print(json.dumps({"triton": version("triton"), "faults": wrong, "rows": rows}) if args.json else text)
    return int(bool(wrong))


def markdown(listed: Iterable[Listed], compiled: Iterable[Compiled], wrong: Iterable[str]) -> str:
    """The page: the table, what its cells mean, what is excused, and what is wrong."""
    excused = [f"- {item.variant}: {item.spills}." for item in listed if item.spills]
    faults = [f"- {fault}" for fault in wrong]
    return f"""\
# `kvlab bench compiled`

What the kernels for GPUs compile to, for the launches in `gpu_variants.json`, with triton {version("triton")}.
They were compiled, not run: this says nothing about how fast they are.

{table(compiled)}
- head: its size. groups: query heads a key/value head. slots: how a sequence's tokens lie. warps: of a program.
- A cell: registers of a thread; shared memory of a program; tensor-core instructions; spills, if any. `-`: not listed.
- Every line but `combine` moves keys and values 16 bytes at once, or it would be listed below.

Excused:

{_lines(excused)}
Wrong:

{_lines(faults)}"""


def table(compiled: Iterable[Compiled]) -> str:
    """A line for each kernel, a column for each architecture."""
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for one in compiled:
        lines.setdefault(_head(one), {})[one.arch] = _cell(one)
    return grid(HEAD, [[*head, *(cells.get(arch, "-") for arch in ARCHS)] for head, cells in lines.items()], LEFT)


def _head(one: Compiled) -> tuple[str, ...]:
    variant = one.variant
    slots = "rows" if variant.block_size is None else f"blocks of {variant.block_size}"
    name = variant.kernel if one.kernel in f"_{variant.kernel}" else f"{variant.kernel}: {one.kernel[1:]}"
    return name, variant.dtype, str(variant.head_dim), str(variant.groups), slots, str(one.warps)


def _cell(one: Compiled) -> str:
    parts = [str(one.registers), f"{one.shared_bytes / 1024:.1f} KiB", *one.tensor]
    return ", ".join([*parts, *([f"{one.spills} spills"] if one.spills else [])])


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines or ["- nothing"])
