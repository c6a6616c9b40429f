"""The kernels as machine code for GPUs that are not here: the committed list, compiled in processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from kvlab.compiled.checks import faults, narrowest
from kvlab.compiled.compile import Compiled, VariantError, compile_all, environment
from kvlab.compiled.variants import ARCHS, MOST, Variant, read
from kvlab.errors import UsageError
from kvlab.harness.bench_compiled import LIST, table

RECORD = LIST.with_suffix(".md")
LISTED = read(LIST)
EXCUSES = {item.variant: item.spills for item in LISTED}
FEW = 4  # instructions that spill
DECODE = Variant("decode", "bfloat16", 64, 16)


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    return compile_all((item.variant, arch) for item in LISTED for arch in item.archs)


@pytest.mark.slow
def test_no_spills_wide_loads_tensor_cores(compiled):
    wrong = [fault for one in compiled for fault in faults(one, EXCUSES[one.variant])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_an_excuse_is_needed(compiled):
    spilling = {one.variant for one in compiled if one.spills}
    assert {variant for variant, why in EXCUSES.items() if why} == spilling


@pytest.mark.slow
def test_every_kernel_is_compiled_for_every_architecture(compiled):
    for kernel in ("_decode", "_combine", "_prefill", "_append", "_copy"):
        assert {one.arch for one in compiled if one.kernel == kernel} == set(ARCHS), kernel


@pytest.mark.slow
def test_the_record_is_what_is_compiled_now(compiled):
    """After a change of a kernel: kvlab bench compiled --out experiments/gpu_variants.md."""
    recorded = RECORD.read_text()
    with_triton = re.search(r"with triton (\S+)\.\s", recorded)
    assert with_triton, "the record names its triton"
    here = version("triton")
    if with_triton[1] != here:
        pytest.skip(f"recorded with triton {with_triton[1]}, here is {here}")
    assert table(compiled) in recorded


@pytest.mark.slow
def test_hopper_and_blackwell_use_their_own_tensor_cores(compiled):
    """A prefill tile is large enough for them; decode's 16 rows are not."""
    kinds = {(one.arch, kind) for one in compiled if one.kernel == "_prefill" for kind in one.tensor}
    assert kinds == {(80, "HMMA"), (90, "HGMMA"), (100, "UTCHMMA")}


@pytest.fixture(scope="module")
def one() -> Compiled:
    (found,) = compile_all([(DECODE, 80)], processes=1)
    return found


def test_each_check_bites(one):
    assert not faults(one)
    assert narrowest(one) == 16
    narrow = {text: [2, 16] for text in one.widths}
    for worse, words in (
        (replace(one, spills=3), "3 spills"),
        (replace(one, stack_bytes=8), "8 bytes of stack"),
        (replace(one, tensor=[]), "no tensor-core"),
        (replace(one, widths=narrow), "2 bytes at once"),
        (replace(one, widths={}), "no line moves"),
        (replace(one, wide=0), "no instruction moves 16 bytes"),
    ):
        (fault,) = faults(worse)
        assert words in fault
        assert "decode bfloat16 64 x 4, blocks of 16: _decode on sm_80" in fault
    assert not faults(replace(one, spills=3), spills="a reason")


def test_unaligned_keys_are_seen(tmp_path):
    """The specialisation comes from the launch: with a pointer that is not aligned, loads are narrow and that shows."""
    script = tmp_path / "unaligned.py"
    script.write_text(UNALIGNED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment(str(tmp_path)))
    assert done.returncode == 0, done.stderr
    aligned, unaligned = json.loads(done.stdout)
    assert min(aligned) == 16
    assert max(unaligned) == 2


UNALIGNED = """
import json
import torch
from kvlab.compiled.recorder import recording
from kvlab.compiled.ptx import widths
from kvlab.kernels.gpu.append import append
found = []
for first in (0, 1):
    x_THD = torch.zeros(8 * 4 * 64 + 1, dtype=torch.bfloat16)[first:][:2048].view(8, 4, 64)
    with recording(80) as launches:
        append(x_THD, x_THD, torch.arange(8), x_THD, x_THD)
    of_lines = widths(launches[0].kernel.ptx)
    found.append([width for text, of in of_lines.items() if "tl.store" in text for width in of])
print(json.dumps(found))
"""


def test_what_does_not_compile_is_named():
    with pytest.raises(VariantError, match=r"decode bfloat16 72 x 4, blocks of 16, sm_80: [\s\S]*multiple of 16"):
        compile_all([(replace(DECODE, head_dim=72), 80), (DECODE, 80)], processes=1)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"kernel": "decode"}], "not a list of variants"),
        ([{"kernel": "copy", "dtype": "float16", "head_dim": 64}] * 2, "listed twice: copy float16"),
        ([{"kernel": "copy", "dtype": "float16", "head_dim": size} for size in range(MOST)], "allowed is 120 or fewer"),
        ([{"kernel": "copy", "dtype": "float16", "head_dim": 64, "archs": [70]}], "sm_70"),
    ],
)
def test_a_list_that_is_wrong(tmp_path, entries, words):
    path = tmp_path / "list.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(UsageError, match=words):
        read(path)


@pytest.fixture(scope="module")
def newest(tmp_path_factory) -> str:
    """A folder with the newest Triton there is, which processes find first."""
    folder = tmp_path_factory.mktemp("triton")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "triton"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the newest triton cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    where = [sys.executable, "-c", "import triton; print(triton.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, env=environment("", str(folder)), check=True)
    assert found.stdout.startswith(str(folder))
    return str(folder)


@pytest.mark.slow
def test_the_newest_triton_compiles_the_list(newest):
    """Shapes are chosen for the pinned one: another ptxas may lack a register where it caps them, and no more."""
    found = compile_all(((item.variant, arch) for item in LISTED for arch in item.archs), triton=newest)
    wrong = [fault for one in found for fault in faults(one, EXCUSES[one.variant] or "few" * (one.spills <= FEW))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_newest_triton_interprets_the_kernels(newest, tmp_path):
    """The tests of this folder that run kernels, in a process that finds it first."""
    tests = sorted(str(path) for path in Path(__file__).parent.glob("test_gpu_*.py") if path != Path(__file__))
    # It warns of a default that it is going to change.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore:TRITON_DEFAULT", "-m", "not slow and not gpu"]
    command, root = [sys.executable, "-m", "pytest", *options, *tests], Path(__file__).parents[3]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(str(tmp_path), newest), cwd=root, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
