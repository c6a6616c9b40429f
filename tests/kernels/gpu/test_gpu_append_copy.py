"""Writing and copying slots on the GPU: exactly those, whatever the layout."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest
import torch

from kvlab.errors import UsageError
from kvlab.kernels.gpu.append import append
from kvlab.kernels.gpu.copy import copy, copy_layers, layers_of
from kvlab.kernels.gpu.runs import waves

SLOTS = 40
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(2, 64), (1, 80), (8, 128), (3, 96)]  # key/value heads, head size


@pytest.fixture(params=["apart", "sliced", "head_major"])
def make_layers(request, device):
    """k_SHD, v_SHD of each layer: apart, side by side in a slot, or each head's slots together. All NaN."""

    def make(heads, head_dim, dtype=torch.float32, layers=3):
        def stores():
            if request.param == "sliced":
                shape = (SLOTS, layers, heads, head_dim)
                return torch.full(shape, torch.nan, dtype=dtype, device=device).unbind(1)
            if request.param == "head_major":
                shape = (layers, heads, SLOTS, head_dim)
                return torch.full(shape, torch.nan, dtype=dtype, device=device).transpose(1, 2).unbind(0)
            return [torch.full((SLOTS, heads, head_dim), torch.nan, dtype=dtype, device=device) for _ in range(layers)]

        return list(zip(stores(), stores(), strict=True))

    return make


def runs_of(*runs):
    """source_N, target_N, tokens_N."""
    return np.array(runs, np.int64).reshape(-1, 3).T


def fill(layers):
    """Random numbers everywhere; the contents as they are afterwards, and as plain copies do it."""
    for kv_SHD in (kv_SHD for layer in layers for kv_SHD in layer):
        kv_SHD.copy_(torch.randn(kv_SHD.shape))
    return [tuple(kv_SHD.clone() for kv_SHD in layer) for layer in layers]


def one_by_one(layers, runs):
    for kv_SHD in (kv_SHD for layer in layers for kv_SHD in layer):
        for source, target, tokens in runs:
            kv_SHD[target : target + tokens] = kv_SHD[source : source + tokens].clone()


def assert_same(layers, expected):
    for index, (layer, other) in enumerate(zip(layers, expected, strict=True)):
        for what, kv_SHD, other_SHD in zip(("keys", "values"), layer, other, strict=True):
            assert torch.equal(kv_SHD, other_SHD), f"{what} of layer {index}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_append_writes_its_slots_alone(make_layers, dtype, shape):
    layers = make_layers(*shape, dtype)
    slot_T = torch.tensor([SLOTS - 1, 0, 17, 18])
    tokens = torch.randn(2, 4, *shape).to(dtype)
    k_SHD, v_SHD = layers[1]
    append(k_SHD, v_SHD, slot_T.to(k_SHD.device), *tokens.to(k_SHD.device))
    for kv_SHD, kv_THD in zip((k_SHD, v_SHD), tokens, strict=True):
        assert torch.equal(kv_SHD.cpu()[slot_T], kv_THD)
        assert int(kv_SHD.isnan().all(-1).all(-1).sum()) == SLOTS - 4
    for kv_SHD in (*layers[0], *layers[2]):
        assert kv_SHD.isnan().all(), "another layer is touched"


def test_append_takes_slices_of_a_projection(make_layers):
    """Keys and values as a model has them; keys after rotation, as their own tensor."""
    ((k_SHD, v_SHD),) = make_layers(3, 16, layers=1)
    packed = torch.randn(5, 3 * 3 * 16, device=k_SHD.device)
    k_THD, v_THD = packed[:, 48:96].view(5, 3, 16), packed[:, 96:].view(5, 3, 16)
    slot_T = torch.arange(5, device=k_SHD.device) + 2
    append(k_SHD, v_SHD, slot_T, k_THD.contiguous(), v_THD)
    assert torch.equal(k_SHD[2:7], k_THD)
    assert torch.equal(v_SHD[2:7], v_THD)


def test_append_takes_heads_that_hold_query_key_and_value(make_layers):
    """The other way to pack a projection: heads of keys and of values lie apart, unequally here."""
    ((k_SHD, v_SHD),) = make_layers(3, 16, layers=1)
    packed = torch.randn(5, 3, 3 * 16, device=k_SHD.device)
    k_THD, v_THD = packed[..., 16:32].contiguous(), packed[..., 32:]
    append(k_SHD, v_SHD, torch.arange(5, device=k_SHD.device), k_THD, v_THD)
    assert torch.equal(k_SHD[:5], k_THD)
    assert torch.equal(v_SHD[:5], v_THD)


def test_padding_tokens_are_written_nowhere(make_layers):
    """A captured graph has more tokens than the launch; theirs have slot -1, which Python would take for the last."""
    ((k_SHD, v_SHD),) = make_layers(2, 64, layers=1)
    slot_T = torch.tensor([-1, 3, -1, -1], device=k_SHD.device)
    k_THD, v_THD = torch.randn(2, 4, 2, 64, device=k_SHD.device)
    append(k_SHD, v_SHD, slot_T, k_THD, v_THD)
    for kv_SHD, kv_THD in ((k_SHD, k_THD), (v_SHD, v_THD)):
        assert torch.equal(kv_SHD[3], kv_THD[1])
        assert int(kv_SHD.isnan().all(-1).all(-1).sum()) == SLOTS - 1
    append(k_SHD, v_SHD, slot_T[:0], k_THD[:0], v_THD[:0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot_T": torch.zeros(3, dtype=torch.int64)}, "3 slots for 4 keys, 4 values: allowed is one each"),
        ({"slot_T": torch.zeros(4, dtype=torch.int32)}, "slots of torch.int32 .*allowed is int64"),
        ({"slot_T": torch.zeros(8, dtype=torch.int64)[::2]}, "allowed is int64, contiguous"),
        ({"k_THD": torch.zeros(4, 2, 64, dtype=torch.float16)}, "allowed is one of .*float16"),
        ({"v_THD": torch.zeros(4, 2, 32)}, r"shapes .*\(2, 32\).*allowed is one"),
        ({"v_SHD": torch.zeros(9, 4, 64)[:, ::2]}, "allowed are slots laid out alike"),
        ({"v_THD": torch.zeros(4, 2, 128)[..., ::2]}, "allowed are .*a last stride of 1"),
    ],
    ids=["count", "type", "stride", "dtype", "heads", "alike", "last"],
)
def test_append_names_what_is_not_allowed(device, change, message):
    k_SHD, v_SHD = torch.zeros(2, 9, 2, 64)
    k_THD, v_THD = torch.zeros(2, 4, 2, 64)
    given = {"k_SHD": k_SHD, "v_SHD": v_SHD, "slot_T": torch.arange(4), "k_THD": k_THD, "v_THD": v_THD}
    with pytest.raises(UsageError, match=message):
        append(**{name: x.to(device) if x.is_contiguous() else x for name, x in {**given, **change}.items()})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_copy_moves_runs_of_all_layers_and_nothing_else(make_layers, dtype, shape):
    """Runs of one slot and of many, shorter and longer than a program takes, one source twice."""
    layers = make_layers(*shape, dtype)
    expected, runs = fill(layers), [(0, 20, 1), (1, 22, 9), (1, 32, 5), (11, 37, 2)]
    copy_layers(layers_of(layers), *runs_of(*runs))
    one_by_one(expected, runs)
    assert_same(layers, expected)


def test_copy_of_one_layer(make_layers):
    layers = make_layers(2, 64)
    expected = fill(layers)
    copy(*layers[1], *runs_of((3, 13, 10), (30, 0, 3)))
    one_by_one(expected[1:2], [(3, 13, 10), (30, 0, 3)])
    assert_same(layers, expected)


@pytest.mark.parametrize(
    "runs",
    [
        [(0, 10, 4), (10, 20, 4), (20, 30, 4)],  # each reads what the one before wrote
        [(0, 10, 4), (20, 0, 4)],  # writes what the first reads
        [(0, 20, 4), (8, 22, 4)],  # both write 22 and 23
        [(0, 10, 4), (4, 14, 2), (12, 30, 4), (0, 20, 4), (22, 34, 2)],
        [(0, 4, 2), (4, 0, 2), (0, 4, 2)],
        [],
    ],
    ids=["chain", "read", "written", "mixed", "to-and-fro", "none"],
)
def test_runs_that_meet_are_copied_one_after_another(make_layers, runs):
    layers = make_layers(1, 64, layers=1)
    expected = fill(layers)
    copy_layers(layers_of(layers), *runs_of(*runs))
    one_by_one(expected, runs)
    assert_same(layers, expected)


def touching(run, other):
    """Whether one of two runs touches what the other writes."""

    def meet(first, second, tokens, others):
        return first < second + others and second < first + tokens

    (source, target, tokens), (other_source, other_target, others) = run, other
    return (
        meet(target, other_target, tokens, others)
        or meet(source, other_target, tokens, others)
        or meet(target, other_source, tokens, others)
    )


@pytest.mark.parametrize("seed", range(30))
def test_runs_that_meet_are_never_in_one_launch(seed):
    """An interpreter does not show it: it runs a launch's programs one after another."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, [20, 60, 300, 3000][seed % 4], (12, 2)).tolist()
    runs = [(a, b, int(rng.integers(1, min(6, abs(a - b)) + 1))) for a, b in ends if a != b]
    together = [[tuple(run) for run in wave_3N.T.tolist()] for wave_3N in waves(runs_of(*runs))]
    assert [run for wave in together for run in wave] == runs
    pairs = [pair for wave in together for pair in itertools.combinations(wave, 2)]
    assert not [pair for pair in pairs if touching(*pair)]


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ([(0, 10, 4), (4, 14, 4), (0, 18, 4), (8, 30, 2), (22, 25, 3)], 1),  # neighbours, and one source twice
        ([(0, 10, 4), (13, 20, 4)], 2),
        ([(13, 20, 4), (0, 10, 4)], 2),
        ([(0, 10, 4), (20, 13, 4)], 2),
        ([], 0),
    ],
    ids=["apart", "read-after", "read-before", "both-written", "none"],
)
def test_as_few_launches_as_there_can_be(runs, count):
    assert len(list(waves(runs_of(*runs)))) == count


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ((3, 12, 10), "10 tokens from slot 3 to 12: allowed is 1 or more, within 40 slots, not over themselves"),
        ((5, 5, 1), "not over themselves"),
        ((0, 36, 5), "within 40 slots"),
        ((-1, 10, 2), "within 40 slots"),
        ((3, 12, 0), "allowed is 1 or more"),
    ],
)
def test_runs_that_are_not_allowed_are_named(device, run, message):
    k_SHD, v_SHD = torch.zeros(2, 40, 2, 64, device=device)
    with pytest.raises(UsageError, match=message):
        copy(k_SHD, v_SHD, *runs_of((0, 20, 2), run))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "0 tensors laid out in 0 ways"),
        ([(torch.zeros(9, 2, 64), torch.zeros(8, 2, 64))], "2 tensors laid out in 2 ways: allowed is one"),
        ([tuple(torch.zeros(2, 9, 2, 128)[..., ::2])], "allowed is .*D contiguous"),
        ([tuple(torch.zeros(2, 9, 2, 66))], "heads of 264 bytes: allowed are multiples of 16"),
        ([tuple(torch.zeros(2, 9, 1, 65)[..., :64])], "slots of 260 bytes: allowed are multiples of 16"),
        ([tuple(torch.zeros(2 * 9 * 64 + 1)[1:].view(2, 9, 1, 64))], "begins in between"),
    ],
    ids=["none", "alike", "last", "head", "slot", "address"],
)
def test_layers_that_are_not_allowed_are_named(layers, message):
    with pytest.raises(UsageError, match=message):
        layers_of(layers)


def test_counts_that_differ_are_named(device):
    with pytest.raises(UsageError, match=r"\(2, 2, 1\) sources, targets, lengths"):
        copy(*torch.zeros(2, 9, 1, 64, device=device), np.array([0, 1]), np.array([3, 4]), np.array([1]))


FAR = (2**31 // (32 * 64) // 16 + 1) * 16  # slots of 32 layers; elements are past 2**31, one head of 64 each


def test_append_past_the_32_bits_of_an_element(reserved, ending):
    """64-bit addressing: in 32 bits these offsets would wrap round to where there is no memory."""
    k_SHD, v_SHD = reserved(2 * FAR + 16, [(FAR, FAR + 16), (2 * FAR, 2 * FAR + 16)], 32, 1, 64)
    slot_T = torch.tensor([FAR + 3, 2 * FAR + 15, -1])
    k_THD, v_THD = torch.randn(2, 3, 1, 64).half()
    assert ending(lambda: append(k_SHD, v_SHD, slot_T, k_THD, v_THD)) == 0
    append(k_SHD, v_SHD, slot_T, k_THD, v_THD)
    for kv_SHD, kv_THD in ((k_SHD, k_THD), (v_SHD, v_THD)):
        assert torch.equal(kv_SHD[slot_T[:2]], kv_THD[:2])


def test_copy_past_the_32_bits_of_an_element(reserved, ending):
    """To slots right before the end of the memory that is there, from both ends of the addresses."""
    k_SHD, v_SHD = reserved(2 * FAR + 16, [(0, 16), (FAR, FAR + 16), (2 * FAR, 2 * FAR + 16)], 32, 1, 64)
    runs = runs_of((0, 2 * FAR + 11, 5), (2 * FAR, FAR + 13, 3))
    assert ending(lambda: copy(k_SHD, v_SHD, *runs)) == 0
    copy(k_SHD, v_SHD, *runs)
    for kv_SHD in (k_SHD, v_SHD):
        assert torch.equal(kv_SHD[2 * FAR + 11 : 2 * FAR + 16], kv_SHD[:5])
        assert torch.equal(kv_SHD[FAR + 13 : FAR + 16], kv_SHD[2 * FAR : 2 * FAR + 3])


def test_a_write_beyond_the_memory_would_die(reserved, ending):
    """The control: were there no guard, the tests above would show nothing."""
    k_SHD, v_SHD = reserved(64, [(0, 16)], 32, 1, 64)
    assert ending(lambda: copy(k_SHD, v_SHD, *runs_of((0, 12, 5)))) == -signal.SIGSEGV
    k_THD, v_THD = torch.zeros(2, 1, 1, 64).half()
    assert ending(lambda: append(k_SHD, v_SHD, torch.tensor([16]), k_THD, v_THD)) == -signal.SIGSEGV
