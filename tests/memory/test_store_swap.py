"""Tokens go to the host and come back, in every layer and in the order of the moves; what fails loses none."""

from __future__ import annotations

import pytest
import torch

from kvlab.kernels.pool import put, take
from kvlab.memory.build import build_store
from kvlab.memory.cuda.emulator import Emulator
from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.dense import DenseStore
from kvlab.memory.faults import fail
from kvlab.memory.host_vmm import PAGE_BYTES, VmmError
from kvlab.memory.store import Store
from kvlab.memory.virtual import VirtualStore
from kvlab.moves import Copy, Drop, Map, SwapIn, SwapOut, Unmap
from kvlab.strategies.paged import Paged
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Arrival, Memory

LAYERS, HEADS, DIM, HOST = 3, 2, 16, 40
TOKEN_BYTES = 2 * LAYERS * HEADS * DIM * 4
MAPS = [Map(0, 1), Map(1, 0), Map(2, 2)]


def virtual(sliced: bool = False, emulated: bool = False, tile: int = 1) -> Store:
    vmm = {"vmm": CudaVmm(Emulator(granularity=PAGE_BYTES))} if emulated else {}
    store = VirtualStore(LAYERS, 150, HEADS, DIM, torch.float32, PAGE_BYTES, 5, sliced, **vmm, tile=tile)
    store.apply([*MAPS, Map(3, 3), Map(4, 4)] if sliced else MAPS)
    return store


KINDS = {
    "dense": lambda: DenseStore(LAYERS, 96, HEADS, DIM, torch.float32),
    "virtual": virtual,
    "sliced": lambda: virtual(sliced=True),
    "emulated": lambda: virtual(emulated=True),
    "dense tiles": lambda: DenseStore(LAYERS, 96, HEADS, DIM, torch.float32, tile=8),
    "virtual tiles": lambda: virtual(tile=16),
    "sliced tiles": lambda: virtual(sliced=True, tile=4),
}
SLOTS = 40  # mapped in each of them


@pytest.fixture(params=KINDS)
def store(request):
    made = KINDS[request.param]()
    made.open_host(HOST)
    fill(made, 0, SLOTS)
    yield made
    made.close()


def fill(store: Store, start: int, stop: int) -> None:
    """Every slot of every layer something else, keys above 0 and values below."""
    for layer in range(LAYERS):
        slot_N = torch.arange(start, stop)
        x_NHD = 1000.0 * (layer + 1) + slot_N[:, None, None].expand(-1, HEADS, DIM)
        for pool, sign in zip(store.layer(layer), (1, -1), strict=True):
            put(pool, slot_N, sign * x_NHD)


def contents(store: Store, start: int, stop: int) -> list[int]:
    """The slots that `fill` gave what lies there now; -1 where layers, or keys and values, disagree."""
    found = []
    for slot in range(start, stop):
        said = set()
        for layer in range(LAYERS):
            k_HD, v_HD = (take(pool, torch.tensor([slot]))[0] for pool in store.layer(layer))
            said |= set((k_HD - 1000 * (layer + 1)).int().flatten().tolist())
            said |= set((-v_HD - 1000 * (layer + 1)).int().flatten().tolist())
        found.append(said.pop() if len(said) == 1 else -1)
    return found


def test_tokens_come_back_wherever_they_are_wanted(store):
    store.apply([SwapOut(3, 20, 7), SwapOut(30, 0, 2)])
    for layer in range(LAYERS):
        for pool in store.layer(layer):
            put(pool, torch.arange(SLOTS), torch.zeros(SLOTS, HEADS, DIM))
    store.apply([SwapIn(0, 9, 2), SwapIn(21, 0, 5)])
    assert contents(store, 0, 5) == [4, 5, 6, 7, 8]
    assert contents(store, 9, 11) == [30, 31]


def test_moves_around_a_swap_keep_their_order(store):
    """A slot is read before it is written over, and host slots may be used again in the same list."""
    store.apply([SwapOut(0, 0, 4), Copy(10, 0, 4), SwapIn(0, 20, 4), SwapOut(0, 0, 4), SwapIn(0, 30, 4)])
    assert contents(store, 0, 4) == contents(store, 30, 34) == [10, 11, 12, 13]
    assert contents(store, 20, 24) == [0, 1, 2, 3]


@pytest.mark.parametrize("emulated", [False, True])
def test_a_row_that_was_swapped_may_lose_its_memory_at_once(emulated):
    store = virtual(emulated=emulated)
    store.open_host(HOST)
    fill(store, 0, SLOTS)
    store.apply([SwapOut(2, 5, 9), Unmap(0), Drop(1), Map(3, 1)])
    store.apply([SwapIn(5, 3 * 32, 9)])
    assert contents(store, 3 * 32, 3 * 32 + 9) == list(range(2, 11))
    store.close()


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (SwapOut(0, HOST - 1, 2), "the host has 40 slots"),
        (SwapIn(-1, 0, 2), "the host has 40 slots"),
    ],
)
def test_the_host_has_an_end(store, move, message):
    with pytest.raises(AssertionError, match=message):
        store.apply([move])


@pytest.mark.parametrize("move", [SwapOut(95, 0, 2), SwapIn(0, 95, 2)])
def test_what_is_swapped_is_mapped(move):
    store = virtual()
    store.open_host(HOST)
    with pytest.raises(AssertionError, match=r"virtual page groups \[3\] are not mapped"):
        store.apply([move])
    store.close()


def test_a_store_without_room_on_the_host_swaps_nothing():
    store = KINDS["dense"]()
    with pytest.raises(AssertionError, match="no room was opened on the host"):
        store.apply([SwapOut(0, 0, 1)])
    assert store.host_bytes() == 0
    store.close()


def test_the_host_is_given_back_once(store):
    committed = store.committed_bytes()
    assert store.host_bytes() == HOST * TOKEN_BYTES
    assert committed == store.accounted_bytes(), "the host's bytes are not the pool's"
    store.close()
    store.close()
    assert store.host_bytes() == store.committed_bytes() == 0


@pytest.mark.parametrize("nth", range(1, 2 * LAYERS + 1))
def test_a_swap_that_fails_leaves_its_source_alone(store, nth):
    with fail("swap", nth), pytest.raises(VmmError, match=f"swap: refused, call {nth}"):
        store.apply([SwapOut(0, 0, 4)])
    assert contents(store, 0, 4) == [0, 1, 2, 3]
    store.apply([SwapOut(0, 0, 4)])
    with fail("swap", nth), pytest.raises(VmmError):
        store.apply([SwapIn(0, 8, 4)])
    store.apply([SwapIn(0, 8, 4)])
    assert contents(store, 8, 12) == [0, 1, 2, 3]


def memory(host_tokens: int) -> Memory:
    windows = (None,) * LAYERS
    return Memory(256 * TOKEN_BYTES, TOKEN_BYTES, 100, 8, 100, windows, 2 * LAYERS * PAGE_BYTES, False, host_tokens)


@pytest.mark.parametrize("cls", [Paged, VAttention])
def test_build_store_opens_as_much_as_the_strategy_counts(cls):
    strategy = cls(memory(50 * TOKEN_BYTES + 7))
    store = build_store(strategy, LAYERS, HEADS, DIM, torch.float32)
    assert store.host_bytes() == 50 * TOKEN_BYTES
    store.close()


@pytest.mark.parametrize("cls", [Paged, VAttention])
def test_a_host_that_cannot_be_had_leaves_no_store(cls):
    closed = []
    base = VirtualStore if cls.virtual else DenseStore
    with pytest.MonkeyPatch.context() as patch:
        close = base.close
        patch.setattr(base, "close", lambda store: (closed.append(store), close(store)))
        with fail("host", 1), pytest.raises(VmmError, match="host: refused"):
            build_store(cls(memory(50 * TOKEN_BYTES)), LAYERS, HEADS, DIM, torch.float32)
    assert [store.committed_bytes() for store in closed] == [0]


@pytest.mark.parametrize("cls", [Paged, VAttention])
def test_forks_come_back_with_what_they_shared(cls):
    strategy = cls(memory(100 * TOKEN_BYTES))
    store = build_store(strategy, LAYERS, HEADS, DIM, torch.float32)
    strategy.admit(Arrival(0, 37, 37, 100, 100), 37)
    store.apply(strategy.drain())
    slots = strategy.slots(0, 0, 0, 37)
    for layer in range(LAYERS):
        k_SHD, v_SHD = store.layer(layer)
        k_SHD[slots] = 1000.0 * (layer + 1) + torch.arange(37)[:, None, None]
        v_SHD[slots] = -k_SHD[slots]
    strategy.fork(0, Arrival(1, 37, 37, 100, 100))
    assert all(strategy.swap_out(seq, 37) for seq in (0, 1))
    strategy.admit(Arrival(2, 90, 90, 100, 100), 90)
    store.apply(strategy.drain())
    for kv_SHD in store.layer(1):
        kv_SHD[strategy.slots(2, 0, 0, 90)] = 0.5
    assert strategy.swap_in(Arrival(1, 37, 37, 100, 100)) is not None
    assert strategy.swap_in(Arrival(0, 37, 37, 100, 100)) is not None
    store.apply(strategy.drain())
    for seq in (0, 1):
        for start, slot in enumerate(strategy.slots(seq, 0, 0, 37).tolist()):
            assert contents(store, slot, slot + 1) == [start]
    assert strategy.host_held() == 0
    store.close()
