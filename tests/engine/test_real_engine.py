"""The real engine: a tiny model in float64, real memory, and every slot that nobody owns full of NaN."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from kvlab.build import build_strategy
from kvlab.engine.engine import Engine
from kvlab.engine.executor import RealExecutor
from kvlab.engine.real import real_engine
from kvlab.errors import UsageError
from kvlab.model.load import load
from kvlab.record.summary import output_digest
from kvlab.run import execute
from kvlab.strategies.vattention import VAttention

pytestmark = pytest.mark.usefixtures("threads")

TINY = {
    "name": "tiny", "path": None, "seed": 0, "layers": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64,
    "ffn": 128, "vocab": 257, "rope_theta": 10000.0, "rms_eps": 1e-5, "tied": False, "max_position": 8192,
}  # fmt: skip
TOKEN_BYTES = 2 * 2 * 2 * 16 * 8
STRATEGIES = {
    "contiguous": {"_target_": "kvlab.strategies.contiguous.Contiguous"},
    "paged": {"_target_": "kvlab.strategies.paged.Paged", "block_size": 16},
    "paged3": {"_target_": "kvlab.strategies.paged.Paged", "block_size": 3},
    "vattention": {"_target_": "kvlab.strategies.vattention.VAttention"},
    "vattention_ahead": {"_target_": "kvlab.strategies.vattention.VAttention", "map_ahead": 1},
    "vattention_sliced": {"_target_": "kvlab.strategies.vattention.VAttention", "page_layout": "sliced"},
}
CACHING = {
    "prefix": {"_target_": "kvlab.strategies.prefix.Prefix", "block_size": 16},
    "prefix_dedupe": {"_target_": "kvlab.strategies.prefix.Prefix", "block_size": 3, "duplicates": "dedupe"},
    "radix": {"_target_": "kvlab.strategies.radix.Radix", "block_size": 4, "partial": "copy"},
}


def config(strategy: str, **changes: object) -> dict:
    engine = {"max_seqs": 64, "chunk": None, "clock": "steps", "temperature": 0.0, "threads": None}
    base = {
        "strategy": {"name": strategy, **{**STRATEGIES, **CACHING}[strategy]},
        "model": TINY,
        "workload": {},
        "admission": {"_target_": "kvlab.engine.axes.PromptPlusOne"},
        "victim": {"_target_": "kvlab.engine.axes.Newest"},
        "preemption": {"_target_": "kvlab.engine.axes.Recompute"},
        "attention": {"_target_": "kvlab.engine.kernels.Kvlab"},
        "forecast": {"_target_": "kvlab.engine.axes.Limit"},
        "seed": 0, "max_len": 128, "page_group_bytes": 4096, "pool_bytes": 400 * TOKEN_BYTES, "pool_blocks": None,
        "block_size": 16, "dtype": "float64", "device": "cpu", "executor": "real", "timing": True,
    }  # fmt: skip
    engine.update({key: changes.pop(key) for key in list(changes) if key in engine})
    return {**base, "engine": engine, **changes}


class Poisoning(RealExecutor):
    """Before each launch, every slot with no live or published token is NaN (where it has memory at all)."""

    def run(self, moves, launch):
        self.store.apply(moves)
        lanes, strategy = self.lanes, self.strategy
        slots = self.store.layer(0)[0].shape[0]
        poisoned = torch.ones(slots, dtype=torch.bool)
        if strategy.virtual:
            poisoned[:] = False
            mapped = Counter(group // strategy.row_groups for group in self.store.ledger.physical)
            for row, groups in mapped.items():
                backed = min(strategy.memory.tokens(groups), strategy.row_slots)
                poisoned[row * strategy.row_slots : row * strategy.row_slots + backed] = True
        for block in np.flatnonzero(getattr(strategy, "published", ())).tolist():
            poisoned[block * strategy.block_size : (block + 1) * strategy.block_size] = False
        for lane in lanes.order.tolist():
            poisoned[strategy.slots(int(lanes.id[lane]), 0, 0, int(lanes.stored[lane]))] = False
        for layer in range(self.model.shape.layers):
            for tensor in self.store.layer(layer):
                tensor[poisoned] = float("nan")
        return super().run([], launch)


def serve(cfg: dict, requests: list, poison: bool = True) -> Engine:
    loaded = load(cfg["model"], cfg["dtype"])
    strategy = build_strategy(cfg, TOKEN_BYTES, 2, cfg["pool_bytes"])
    with real_engine(cfg, loaded.model, strategy, requests) as engine:
        if poison:
            plain = engine.executor
            engine.executor = Poisoning(loaded.model, plain.store, strategy, engine.scheduler.lanes, plain.kernels)
        engine.run()
    return engine


@pytest.fixture
def work(requests):
    return requests(24, 128, seed=2)


def test_the_same_tokens_under_every_strategy_with_preemption_and_nan_in_unowned_slots(work):
    """Exactly, in float64: batched or alone, whole prompts or chunks, blocks of 3 or rows with unmapped tails."""
    alone = serve(config("contiguous", max_seqs=1), work)
    digests, preemptions = {output_digest(alone.scheduler.tally.ended)}, 0
    for name in STRATEGIES:
        for chunk in (None, 7):
            engine = serve(config(name, chunk=chunk), work)
            assert all(s.outcome == "finished" for s in engine.scheduler.tally.ended)
            digests.add(output_digest(engine.scheduler.tally.ended))
            preemptions += engine.scheduler.tally.preemptions
    assert len(digests) == 1
    assert preemptions > 10


def test_the_same_tokens_where_prompts_begin_alike_and_are_shared(alike):
    """Hits, evictions and preemptions; a token computed from somebody else's prefix would change the digest."""
    work = alike(24, 128, seed=3)
    alone = serve(config("contiguous", max_seqs=1), work)
    digests = {output_digest(alone.scheduler.tally.ended)}
    for name in CACHING:
        engine = serve(config(name, chunk=20), work)
        tally, counts = engine.scheduler.tally, engine.scheduler.strategy.counts
        digests.add(output_digest(tally.ended))
        assert tally.preemptions > 0
        assert min(tally.hit_tokens, counts["evicted"]) > 0
    assert len(digests) == 1


def test_sampling_at_a_temperature_is_the_same_too(requests):
    from dataclasses import replace

    hot = [replace(r, temperature=0.8, seed=5) for r in requests(16, 128, seed=4)]
    digests = {output_digest(serve(config(name), hot).scheduler.tally.ended) for name in STRATEGIES}
    assert len(digests) == 1
    assert digests != {output_digest(serve(config("paged"), requests(16, 128, seed=4)).scheduler.tally.ended)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_committed_is_what_was_accounted(name, work):
    """In every step the operating system says exactly what the books say."""
    engine = serve(config(name, pool_bytes=400 * TOKEN_BYTES // 4096 * 4096), work, poison=False)
    rows = engine.recorder.rows
    assert {row.os_committed - row.backed for row in rows} == {0}
    assert rows[-1].backed > 0


@pytest.mark.parametrize("map_ahead", [0, 1])
def test_growth_finds_mapped_what_was_mapped_ahead(map_ahead, requests):
    """With room for all, no page group is mapped before a launch but for newcomers; without it, many are."""
    from dataclasses import replace

    cfg = config("vattention_ahead", pool_bytes=4000 * TOKEN_BYTES)
    cfg["strategy"]["map_ahead"] = map_ahead
    loaded, strategy = load(TINY, "float64"), build_strategy(cfg, TOKEN_BYTES, 2, cfg["pool_bytes"])
    work, before, beside = [replace(r, arrival_s=0.0) for r in requests(8, 128, seed=2)], [], []
    with real_engine(cfg, loaded.model, strategy, work) as engine:
        plain = engine.executor.run

        def watched(moves, launch):
            before.append(len(moves))
            beside.append(len(launch.beside))
            return plain(moves, launch)

        engine.executor.run = watched
        engine.run()
    assert (sum(before[1:]) == 0) == bool(map_ahead)
    assert (sum(beside) == strategy.counts["mapped_ahead"] > 0) == bool(map_ahead)


def test_the_tail_of_a_row_is_truly_unmapped(work):
    """The figures of vattention come from memory that is not there, not from memory that is not read."""
    import ctypes
    import os

    cfg = config("vattention")
    loaded, strategy = load(TINY, "float64"), build_strategy(cfg, TOKEN_BYTES, 2, cfg["pool_bytes"])
    with real_engine(cfg, loaded.model, strategy, work[:1]) as engine:
        engine.step()
        assert isinstance(strategy, VAttention)
        k_SHD, _ = engine.executor.store.layer(0)
        row = int(strategy.table[0][0])
        groups = len(strategy.mapped[row // strategy.row_slots])
        end = k_SHD.data_ptr() + row * k_SHD.stride(0) * 8 + groups * 4096

        class Range(ctypes.Structure):
            _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

        def readable(address: int) -> bool:
            target = ctypes.create_string_buffer(1)
            here, there = Range(ctypes.addressof(target), 1), Range(address, 1)
            libc = ctypes.CDLL(None)
            return libc.process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 1

        assert readable(end - 1)
        assert not readable(end)


def fixed(**changes: object) -> dict:
    return {"name": "fixed", "num_requests": 6, "prompt_len": 20, "output_len": 30, **changes}


def test_a_run_writes_its_files_and_its_result(tmp_path, capsys):
    seen, lines = [], []
    result = execute(
        config("paged", workload=fixed()), tmp_path, lines.append, lambda ended, total: seen.append((ended, total))
    )
    assert result["status"] == "ok"
    assert result["num_output_tokens"] == 180
    assert result["deterministic"] is True
    assert result["num_finished"] == result["num_requests"] == 6
    assert 0 < result["utilization"] <= result["pool_usage"] <= 1
    parts = result["utilization"] + sum(result["waste"].values())
    assert parts == pytest.approx(1)
    assert lines[0].startswith("pool 25 blocks x 16 = 400 tokens = ")
    assert "longest request 128; reserve-max would hold 3" in lines[0]
    assert seen[-1] == (6, 6)
    assert len((tmp_path / "requests.csv").read_text().splitlines()) == 7
    outputs = [json.loads(line) for line in (tmp_path / "outputs.jsonl").read_text().splitlines()]
    assert [len(entry["tokens"]) for entry in outputs] == [30] * 6
    steps = np.genfromtxt(tmp_path / "steps.csv", delimiter=",", names=True)
    total = sum(steps[name] for name in ("token_state", "reservation", "internal", "cached", "external"))
    assert set(total.tolist()) == {400 * TOKEN_BYTES}
    json.dumps(result)


def test_the_same_seed_gives_the_same_result_file(tmp_path):
    """Times aside."""
    results = [execute(config("vattention", workload=fixed()), tmp_path) for _ in range(2)]
    for result in results:
        for key in [key for key in result if key.endswith("_us_per_step")] + ["others_cpu_share", "timing_valid"]:
            del result[key]
    assert results[0] == results[1]


def test_a_run_in_which_nothing_fits_is_refused_before_it_loads_a_model(tmp_path):
    result = execute(config("contiguous", pool_bytes=100 * TOKEN_BYTES, workload=fixed()), tmp_path)
    assert result["status"] == "refused"
    assert result["num_refused"] == result["num_requests"] == 6
    assert result["reason"].startswith("no request fits: they may grow to 128 tokens or more, the longest")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("strategy", "changes", "unit"),
    [
        ("vattention", {"page_group_bytes": 1 << 21}, "page_group_bytes"),
        ("contiguous", {"pool_bytes": 9000}, "max_len"),
    ],
)
def test_a_refusal_names_the_unit_that_is_larger_than_the_pool(tmp_path, strategy, changes, unit):
    """With page groups of 2 MiB it said to raise the pool or lower max_len alone."""
    assert execute(config(strategy, workload=fixed(), **changes), tmp_path)["reason"].endswith(f" {unit}")


def test_positions_beyond_the_models_are_an_error(tmp_path):
    """They ended the run in the middle, as an index out of range."""
    with pytest.raises(UsageError, match="max_len=9000: allowed with this model is at most 8192 tokens"):
        execute(config("paged", max_len=9000, workload=fixed()), tmp_path)


@pytest.mark.parametrize(("clock", "timing"), [("steps", True), ("wall", False)])
def test_times_that_are_not_meant_to_be_used_are_flagged(tmp_path, monkeypatch, clock, timing):
    """A clock that counts steps gave "seconds" that passed as valid."""
    monkeypatch.setattr("kvlab.run.OthersShare.share", lambda self: 0.0)
    assert execute(config("paged", workload=fixed(), clock="wall"), tmp_path)["timing_valid"] is True
    assert execute(config("paged", workload=fixed(), clock=clock, timing=timing), tmp_path)["timing_valid"] is False


def test_a_pool_smaller_than_a_token_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="pool_bytes=100 holds no token"):
        execute(config("paged", pool_bytes=100, workload=fixed()), tmp_path)
