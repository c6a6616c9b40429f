"""A start: what it imports, what goes on beside it, and what is left when it fails."""

from __future__ import annotations

import ast
import gc
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from kvlab import start
from kvlab.build import build_strategy
from kvlab.engine.real import real_engine
from kvlab.errors import UsageError
from kvlab.harness.compose import Composer
from kvlab.memory import host_vmm
from kvlab.memory.host_vmm import VmmError
from kvlab.model.fetch import model_path
from kvlab.model.load import load
from kvlab.model.shape import Shape
from kvlab.model.weights import parts

TINY = ("model=tiny", "workload=fixed", "workload.num_requests=2", "workload.output_len=2", "engine.max_seqs=2")
HEAVY = (
    "wandb", "pandas", "matplotlib", "scipy", "sympy", "huggingface_hub", "transformers", "triton", "rich", "gguf",
    "tokenizers", "jinja2", "torch._dynamo", "torch._inductor", "kvlab.engine.cuda.executor", "kvlab.kernels.gpu",
    "hydra", "omegaconf", "kvlab.simulate", "kvlab.cost.model",
)  # fmt: skip
RUN = """
import json, sys
from pathlib import Path
from kvlab.run import execute
result = execute(json.loads(sys.argv[1]), Path(sys.argv[2]))
print([result["status"], sorted(sys.modules)])
"""


@pytest.fixture(scope="module")
def composed():
    with Composer() as composer:
        yield lambda *overrides: composer.compose([*TINY, *overrides]).config


@pytest.mark.parametrize("strategy", ["paged", "vattention"])
def test_a_run_imports_no_more_than_it_needs(composed, tmp_path, strategy):
    assert not heavy_modules_of(composed(f"strategy={strategy}"), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not model_path().exists(), reason="the model has not been fetched")
def test_a_run_of_smollm2_needs_no_tokenizer(composed, tmp_path):
    """It was made in every run, and gguf imported for the sizes of blocks."""
    assert not heavy_modules_of(composed("model=smollm2", "dtype=bfloat16"), tmp_path)


def heavy_modules_of(config, directory):
    """What a run of its own imported of those."""
    command = [sys.executable, "-c", RUN, json.dumps(config), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, modules = ast.literal_eval(done.stdout.splitlines()[-1])
    assert status == "ok"
    assert "torch" in modules
    return {name for name in HEAVY if name in modules}


def test_the_model_s_bytes_are_those_of_its_parts():
    tied = Shape(3, 6, 2, 8, 48, 100, 77, 1e4, 1e-5, True, 64)
    for shape in (tied, Shape(2, 4, 4, 6, 32, 50, 90, 1e4, 1e-5, False, 64)):
        assert shape.weight_bytes("bfloat16") == 2 * sum(math.prod(size) for size in parts(shape).values())


def opened(config, **more):
    shape = load(config["model"], config["dtype"]).shape
    strategy = build_strategy(config, shape.token_bytes(config["dtype"]), shape.layers, 1 << 20)
    return start.opened_engine(config, strategy, [], **more)


@pytest.mark.parametrize("strategy", ["contiguous", "paged", "vattention"])
def test_the_engine_has_the_memory_that_it_has_without_a_thread(composed, strategy):
    config = composed(f"strategy={strategy}")
    loaded = load(config["model"], config["dtype"])
    strategy = build_strategy(config, loaded.shape.token_bytes("float32"), loaded.shape.layers, 1 << 20)
    with real_engine(config, loaded.model, strategy, []) as plain:
        expected = plain.executor.store.committed_bytes()
    with opened(config) as engine:
        assert engine.executor.store.committed_bytes() == engine.executor.store.accounted_bytes() == expected
    assert engine.executor.store.committed_bytes() == 0


def test_a_model_that_cannot_be_loaded_gives_the_pool_back(composed, monkeypatch):
    def broken(*_):
        raise UsageError("model.path=x: damaged")

    config, files = composed("strategy=paged"), len(os.listdir("/proc/self/fd"))
    engine = opened(config)
    monkeypatch.setattr(start, "load_from", broken)
    with pytest.raises(UsageError, match="damaged"), engine:
        pass
    assert len(os.listdir("/proc/self/fd")) == files
    assert gc.isenabled()
    assert "kvlab-backing_0" not in {thread.name for thread in threading.enumerate()}


def test_what_the_thread_meets_is_raised_by_the_start(composed, monkeypatch):
    def refused(*_):
        raise OSError(12, "Cannot allocate memory")

    engine = opened(composed("strategy=paged"))
    monkeypatch.setattr(host_vmm.os, "pwritev", refused)
    with pytest.raises(VmmError, match="pwritev: .*Cannot allocate memory"), engine:
        pass


def test_the_collector_is_as_it_was_once_the_engine_is_closed(composed):
    """Steps are not interrupted for what was imported; what came up during a run is nobody's for ever."""
    before = gc.get_freeze_count()
    with opened(composed("strategy=paged")):
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_who_switched_the_collector_off_finds_it_off():
    gc.disable()
    try:
        with start.uncollected():
            pass
        assert not gc.isenabled()
        assert not gc.get_freeze_count()
    finally:
        gc.enable()


def test_torch_s_library_is_found_where_it_is_looked_for():
    """Otherwise a start is slower, and nothing else would say so."""
    assert (Path(torch.__file__).parent / start.LIBRARY).exists()


def test_a_library_that_is_not_there_is_torch_s_to_miss(tmp_path):
    start._load(tmp_path / "libtorch_cpu.so")
    code = (
        "import sys, threading; from kvlab.start import load_library; load_library();"
        "[t.join() for t in threading.enumerate() if t.name == 'kvlab-library'];"
        "print('torch' in sys.modules, 'libtorch_cpu' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_threads_that_want_no_collector_are_both_served():
    """The first to be done switched it on for the other."""
    other = start.uncollected()
    with start.uncollected():
        thread = threading.Thread(target=other.__enter__)
        thread.start()
        thread.join()
    assert not gc.isenabled()
    other.__exit__(None, None, None)
    assert gc.isenabled()
    gc.unfreeze()


def test_imports_that_were_begun_are_those_of_an_engine():
    code = (
        "import sys, threading, gc; from kvlab.start import import_engine; import_engine();"
        "[t.join() for t in threading.enumerate() if t.name == 'kvlab-imports'];"
        "before = set(sys.modules); from kvlab.engine.real import real_engine; import kvlab.model.llama;"
        "print('torch' in before, set(sys.modules) - before, gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True set() True"
