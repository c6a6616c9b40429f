"""What a compiled kernel consists of: registers, spills, tensor-core instructions, and how wide it loads and stores.

Read from its machine code with the tools that come with Triton, so neither a GPU nor a CUDA installation is needed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LINE = re.compile(r'//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[\dT]+\s+)?(?P<opcode>[A-Z][\w.]*)")
_GLOBAL = re.compile(r"(LDG|LDGSTS|STG)\b")  # global memory to registers, past them to shared memory, and back
_WIDTH = re.compile(r"\.[SU]?(8|16|32|64|128|256)\b")
_SPILL = re.compile(r"(LDL|STL)\b")
_TENSOR = re.compile(r"(HMMA|HGMMA|UTC\w*MMA)\b")
_USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+)")


@dataclass(frozen=True)
class Machine:
    """widths: by source line (its text), the bytes that its loads from and stores to global memory move at once."""

    registers: int  # of a thread
    stack_bytes: int  # of a thread, in local memory
    spills: int  # instructions that load from or store to local memory
    tensor: list[str]  # the kinds of tensor-core instructions
    widths: dict[str, list[int]]


def inspect(cubin: bytes) -> Machine:
    """Of the one kernel that is in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _tool("cuobjdump", "-res-usage", str(path))
        code = _tool("nvdisasm", "-c", "-g", str(path))
    found = _USAGE.search(usage)
    assert found, usage
    return _read(code, int(found["registers"]), int(found["stack"]))


def _read(code: str, registers: int, stack_bytes: int) -> Machine:
    spills, text = 0, ""
    tensor: set[str] = set()
    widths: dict[str, set[int]] = {}
    for line in code.splitlines():
        if found := _LINE.search(line):
            text = _source(found["file"])[int(found["line"]) - 1].strip()
        elif found := _OPCODE.search(line):
            opcode = found["opcode"]
            spills += bool(_SPILL.match(opcode))
            if kind := _TENSOR.match(opcode):
                tensor.add(kind[1])
            if _GLOBAL.match(opcode):
                widths.setdefault(text, set()).add(_bytes(opcode))
    by_line = {text: sorted(found) for text, found in widths.items()}
    return Machine(registers, stack_bytes, spills, sorted(tensor), by_line)


def _bytes(opcode: str) -> int:
    """LDG.E.128.CONSTANT: 16; a name without a width loads 4."""
    widths = [int(width) for width in _WIDTH.findall(opcode.replace("LTC128B", "").replace("LTC256B", ""))]
    return max(widths, default=32) // 8


@cache
def _source(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


def _tool(name: str, *arguments: str) -> str:
    from triton.backends import nvidia

    path = Path(nvidia.__path__[0]) / "bin" / name
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
