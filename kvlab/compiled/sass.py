"""What a compiled kernel consists of: registers, spills, tensor-core instructions, wide loads and stores.

Read from its machine code with the tools that come with Triton, so neither a GPU nor a CUDA installation is needed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from triton.backends import nvidia

_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[\dT]+\s+)?(?P<opcode>[A-Z][\w.]*)")
_WIDE = re.compile(r"(LDG|LDGSTS|STG)\b.*\.128\b")  # global memory to registers, past them to shared memory, and back
_SPILL = re.compile(r"(LDL|STL)\b")
_TENSOR = re.compile(r"(HMMA|HGMMA|UTC\w*MMA)\b")
_USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+)")


@dataclass(frozen=True)
class Machine:
    """Of one kernel."""

    registers: int  # of a thread
    stack_bytes: int  # of a thread, in local memory
    spills: int  # instructions that load from or store to local memory
    tensor: list[str]  # the kinds of tensor-core instructions
    wide: int  # instructions that move 16 bytes to or from global memory


def inspect(cubin: bytes) -> Machine:
    """Of the one kernel that is in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _tool("cuobjdump", "-res-usage", str(path))
        code = _tool("nvdisasm", "-c", "-ndf", str(path))
    found = _USAGE.search(usage)
    assert found, usage
    opcodes = [found["opcode"] for found in _OPCODE.finditer(code)]
    return Machine(
        registers=int(found["registers"]),
        stack_bytes=int(found["stack"]),
        spills=sum(bool(_SPILL.match(opcode)) for opcode in opcodes),
        tensor=sorted({kind[1] for opcode in opcodes if (kind := _TENSOR.match(opcode))}),
        wide=sum(bool(_WIDE.match(opcode)) for opcode in opcodes),
    )


def _tool(name: str, *arguments: str) -> str:
    path = Path(nvidia.__path__[0]) / "bin" / name
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
