"""Whichever call on memory fails, and whenever: nothing half done stays, and the run says what happened."""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path

import pytest
import torch

from kvlab.harness.job import run_job
from kvlab.memory.dense import DenseStore
from kvlab.memory.faults import fail
from kvlab.memory.host_vmm import PAGE_BYTES, PhysicalPool, Reservation, VmmError
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Map, Unmap
from kvlab.run import execute

NAMES = ("paged", "virtual", "sliced", "ahead", "forking")
SWAPPING = {  # how many tokens of 2,048 bytes the host has room for
    "swapping": ("paged", 40),
    "swapping rows": ("virtual", 48),
    "a small host": ("paged", 15),
}


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped() -> int:
    """Mappings of memory files."""
    return Path("/proc/self/maps").read_text().count("memfd:kvlab")


@pytest.fixture
def reservations(monkeypatch):
    """Weak references to the addresses of every reservation that is made; they go with the last tensor over them."""
    made, init = [], Reservation.__init__

    def remembered(reservation, nbytes):
        init(reservation, nbytes)
        made.append(weakref.ref(reservation._buffer))

    monkeypatch.setattr(Reservation, "__init__", remembered)
    return made


@pytest.fixture(autouse=True)
def nothing_left(reservations):
    """Each test leaves as many files and mappings of them as before, and no reservation."""
    before = files(), mapped()
    yield
    assert (files(), mapped()) == before
    assert [addresses() for addresses in reservations if addresses() is not None] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture
def config(config_of):
    """config(name): of a run of that name."""

    def make(name):
        if name.endswith(" in tiles"):  # of two pages
            return {**make(name.removesuffix(" in tiles")), "layout": {"name": "head_major", "tile": 16}}
        if name in SWAPPING:
            strategy, host = SWAPPING[name]
            swap = {"_target_": "kvlab.engine.axes.Swap"}
            return {**make(strategy), "preemption": swap, "host_bytes": host * 2048}
        return config_of(name)

    return make


@pytest.fixture
def run(folder, config, monkeypatch):
    """Run a configuration to its end; its result and its stores, closed."""
    ledgers = []
    init = VirtualStore.__init__

    def remembered(store, *arguments):
        init(store, *arguments)
        ledgers.append(store.ledger)

    monkeypatch.setattr(VirtualStore, "__init__", remembered)

    def run(name):
        (folder / "config.json").write_text(json.dumps(config(name)))
        status = run_job(folder, lambda cfg, directory, say, progress: execute(cfg, directory))
        return status, json.loads((folder / "result.json").read_text()), ledgers

    return run


HAPPENS = [
    *((kind, name) for kind in ("pool", "reservation", "map", "unmap") for name in NAMES),
    ("copy", "forking"),
    *((kind, name) for kind in ("host", "swap") for name in ("swapping", "swapping rows")),
    *(pytest.param(kind, "forking in tiles", marks=pytest.mark.slow) for kind in ("map", "unmap")),
    ("copy", "forking in tiles"),
    pytest.param("swap", "swapping in tiles", marks=pytest.mark.slow),
]
LEAST = {"host": 1}  # calls of the kind in a run; of the others 2


@pytest.mark.parametrize(("kind", "name"), HAPPENS)
def test_a_run_ends_failed_whichever_call_fails(kind, name, run):
    with fail(kind, 0) as calls:
        status, result, _ = run(name)
    assert (status, result["status"]) == (0, "ok")
    assert calls.made >= LEAST.get(kind, 2)
    for nth in range(1, calls.made + 1):
        with fail(kind, nth):
            status, result, ledgers = run(name)
        assert (status, result["status"]) == (1, "failed")
        assert result["reason"] == f"VmmError: {kind}: refused, call {nth}"
        assert mapped() == 0
        assert all(ledger.created == ledger.released for ledger in ledgers)


def test_a_host_too_small_for_anybody_costs_the_tokens_and_not_the_run(run):
    """Who finds no room there is computed again, and everybody gets the same text."""
    _, plain, _ = run("paged")
    _, swapped, _ = run("swapping")
    _, small, _ = run("a small host")
    for result in (swapped, small):
        assert result["status"] == "ok"
        assert result["output_digest"] == plain["output_digest"]
    assert swapped["swapped_out_tokens"] > 0
    assert swapped["recomputed_tokens"] == 0
    assert small["swapped_out_tokens"] == 0
    assert small["num_swaps_refused"] == small["num_preemptions"] > 0
    assert small["recomputed_tokens"] == plain["recomputed_tokens"] > 0


@pytest.mark.parametrize("name", ["virtual", "sliced", "forking", "swapping", "swapping rows"])
def test_a_layout_changes_no_token(name, run):
    """Whether page groups are aliased, copied or swapped: a tile's two pages come and go together."""
    (_, plain, _), (_, tiles, _) = run(name), run(f"{name} in tiles")
    assert (plain["status"], tiles["status"]) == ("ok", "ok")
    assert tiles["output_digest"] == plain["output_digest"]


@pytest.mark.parametrize(("kind", "nth"), [("map", 20), ("unmap", 1), ("unmap", 10), ("copy", 3), ("reservation", 4)])
def test_a_run_ends_failed_where_nothing_works_any_more(kind, nth, run):
    """What cannot be undone either goes when the store is closed."""
    with fail(kind, nth, lasting=True):
        status, result, ledgers = run("forking")
    assert (status, result["status"]) == (1, "failed")
    assert result["reason"].startswith(f"VmmError: {kind}: refused, call ")
    assert all(ledger.created == ledger.released for ledger in ledgers)


@pytest.mark.parametrize(("kind", "nth"), [("map", 2), ("unmap", 3)])
def test_a_move_that_fails_beside_a_launch_is_undone_and_told_at_its_end(kind, nth):
    store = VirtualStore(2, 64, 1, 64, torch.float32, PAGE_BYTES, 4)
    store.apply([Map(0, 0)])
    with fail(kind, nth):
        store.apply_beside([Map(1, 1)] if kind == "map" else [Unmap(0)])
        with pytest.raises(VmmError, match=f"{kind}: refused, call {nth}"):
            store.join()
    store.join()
    assert store.ledger.physical == {0: 0}
    assert store.committed_bytes() == store.accounted_bytes() == 4 * PAGE_BYTES
    store.layer(1)[1][:16] = 1.0
    store.close()


def test_a_store_closes_whatever_is_being_done_beside_a_launch_and_whether_it_failed():
    store = VirtualStore(2, 64, 1, 64, torch.float32, PAGE_BYTES, 4)
    with fail("map", 6):
        store.apply_beside([Map(0, 0), Map(1, 1)])
        store.close()
    assert (store.ledger.created, store.ledger.released, mapped()) == (1, 1, 0)


STORES = {
    "dense": (lambda: DenseStore(2, 64, 1, 64, torch.float32), {"pool": 1, "reservation": 1, "map": 1}),
    "virtual": (
        lambda: VirtualStore(2, 64, 1, 64, torch.float32, PAGE_BYTES, 4),
        {"pool": 1, "reservation": 4},
    ),
}


@pytest.mark.parametrize("name", STORES)
def test_a_store_that_cannot_be_made_leaves_nothing(name):
    make, calls = STORES[name]
    make().close()
    before = files()
    for kind, count in calls.items():
        for nth in range(1, count + 1):
            with fail(kind, nth), pytest.raises(VmmError, match=f"{kind}: refused, call {nth}") as caught:
                make()
            assert files() == before, "not even while the error is being looked at"
            assert mapped() == 0
            assert caught


@pytest.mark.parametrize("call", ["os.ftruncate", "fcntl.fcntl"])
def test_a_memory_file_that_cannot_be_set_up_is_closed(call, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    before = files()
    monkeypatch.setattr(call, refuse)
    with pytest.raises(VmmError, match="memfd: .*No space left on device") as caught:
        PhysicalPool(PAGE_BYTES)
    assert files() == before, "not even while the error is being looked at"
    assert caught
    monkeypatch.undo()


def test_faults_end_with_their_block():
    with fail("pool", 1), pytest.raises(VmmError):
        PhysicalPool(PAGE_BYTES)
    with fail("pool", 2) as calls:
        PhysicalPool(PAGE_BYTES).close()
    PhysicalPool(PAGE_BYTES).close()
    assert calls.made == 1
