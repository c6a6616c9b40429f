"""Who may import what: three currencies, one direction, each foreign library in one place."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONLY_IN = {
    "hydra": {"kvlab/harness/compose.py", "kvlab/harness/overrides.py"},
    "omegaconf": {"kvlab/harness/compose.py", "kvlab/harness/composed.py"},
    "wandb": {"kvlab/harness/tracking.py"},
    "matplotlib": {
        "kvlab/harness/figures.py",
        "kvlab/harness/timelines.py",
        "kvlab/harness/bench_figures.py",
        "kvlab/harness/reproduce_figures.py",
        "kvlab/harness/reproduce_curves.py",
        "kvlab/harness/curves.py",
        "kvlab/harness/ticks.py",
        "kvlab/harness/map_figures.py",
    },
    "gguf": {"kvlab/model/gguf.py"},
    "rich": {"kvlab/harness/"},
    "safetensors": {"kvlab/model/"},
    "tokenizers": {"kvlab/model/"},
    "triton": {"kernels/", "kvlab/compiled/"},
    "cuda": {"kvlab/memory/cuda/bindings.py"},
    "torch": {
        "kvlab/memory/",
        "kvlab/model/",
        "kernels/",
        "kvlab/engine/",
        "kvlab/bench/",
        "kvlab/harness/doctor.py",
        "kvlab/run.py",
        "kvlab/testing/kernels.py",
        "kvlab/compiled/",
    },
}
PARTS = ("scheduler", "entrance", "growth", "siblings", "search", "departures", "teller", "quiet", "lanes")
NO_TORCH = ("strategies/", "kvlab/workload/", "kvlab/record/", *(f"kvlab/engine/{part}.py" for part in PARTS))


def sources() -> list[Path]:
    folders = (ROOT / "kvlab", ROOT / "strategies", ROOT / "kernels")
    links = {ROOT / "kvlab" / name for name in ("strategies", "kernels", "conf")}
    return [path for folder in folders for path in folder.rglob("*.py") if not links & set(path.parents)]


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("library", ONLY_IN)
def test_each_foreign_library_is_imported_in_one_place(library):
    found = {
        str(path.relative_to(ROOT))
        for path in sources()
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert all(any(name.startswith(place) for place in ONLY_IN[library]) for name in found), found


def test_bookkeeping_never_imports_torch():
    for path in sources():
        name = str(path.relative_to(ROOT))
        if name.startswith(NO_TORCH):
            assert not any(module.split(".")[0] == "torch" for module in imports(path)), name


def test_strategies_import_the_interface_and_numpy_only():
    allowed = {"__future__", "numpy", "numpy.typing", "kvlab.strategy", "kvlab.eviction", "kvlab.ranges"}
    for path in (ROOT / "strategies").glob("*.py"):
        others = {name for name in imports(path) - allowed if not name.startswith("kvlab.strategies.")}
        foreign = {name for name in others if name.split(".")[0] in ("kvlab", "torch", "hydra")}
        assert not foreign, (path.name, foreign)


def test_engine_and_kernels_run_where_the_harness_libraries_are_not_installed():
    """On a GPU box with torch, triton and numpy; what is looked for here is an import, at any depth."""
    missing = ("hydra", "omegaconf", "wandb", "rich", "matplotlib", "gguf", "safetensors", "tokenizers", "jinja2")
    wanted = (
        "kvlab.run", "kvlab.engine.real", "kvlab.engine.cuda.executor", "kvlab.engine.cuda.device",
        "kvlab.engine.cuda.standin", "kvlab.kernels.gpu.attention", "kvlab.kernels.gpu.copy", "kvlab.bench.kernels",
        "kvlab.memory.cuda.vmm",
    )  # fmt: skip
    code = f"import sys; sys.modules.update(dict.fromkeys({missing}))\n" + "\n".join(f"import {x}" for x in wanted)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-1000:]


def test_the_engine_never_imports_the_harness():
    for path in sources():
        if path.relative_to(ROOT).parts[:2] != ("kvlab", "harness"):
            assert not any(name.startswith("kvlab.harness") for name in imports(path)), path
