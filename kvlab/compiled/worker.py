"""Compiles variants and prints a line of JSON for each kernel: the child process of kvlab.compiled.compile.

A process of its own, because one that interprets kernels cannot compile them, and because several may work at once.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from typing import Any

import torch

from kvlab.compiled.launch import launch
from kvlab.compiled.ptx import widths
from kvlab.compiled.recorder import Launched, recording
from kvlab.compiled.sass import inspect
from kvlab.compiled.variants import Variant


def main() -> None:
    """Jobs, as a list of [variant, architecture], come on standard input."""
    torch.set_num_threads(1)
    for fields, arch in json.load(sys.stdin):
        for line in _lines(Variant(**fields), arch):
            print(json.dumps({"variant": fields, "arch": arch, **line}), flush=True)


def _lines(variant: Variant, arch: int) -> list[dict[str, Any]]:
    try:
        with recording(arch) as launches:
            launch(variant)
        return [_line(launched) for launched in launches]
    except Exception:  # what one variant fails of must not hide the others
        return [{"error": traceback.format_exc(limit=-3)}]


def _line(launched: Launched) -> dict[str, Any]:
    name, ptx, cubin = launched.kernel
    asked = {"kernel": name, "warps": launched.warps, "shared_bytes": launched.shared_bytes}
    return {**asked, **asdict(inspect(cubin)), "widths": widths(ptx)}


if __name__ == "__main__":
    main()
