"""Published sizes, and what of a GPU's memory they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import kvlab.conf
from kvlab.cost.rank import Rank, token_bytes
from kvlab.errors import UsageError
from kvlab.model.load import load, shape_of
from kvlab.model.shapes import SIZES, TABLE, choice, sizes_by_name

MODELS = Path(kvlab.conf.__path__[0]) / "model"
PARAMS = {line.split(",")[0]: int(line.rsplit(",", 1)[1]) for line in TABLE.read_text().splitlines()[2:]}


@pytest.mark.parametrize("name", sizes_by_name())
def test_every_model_has_a_file_with_the_tables_sizes(name):
    written = yaml.safe_load((MODELS / f"{choice(name)}.yaml").read_text())
    assert written == {"name": name, "path": None, **sizes_by_name()[name]}
    assert shape_of(written) == shape_of({"name": name})


@pytest.mark.parametrize("name", sizes_by_name())
def test_counted_weights_are_the_published_ones(name):
    """Biases and learned positions, which are not counted, are less than a thousandth."""
    assert Rank.of(shape_of({"name": name}), 1).stored_weights == pytest.approx(PARAMS[name], rel=1e-3)


def test_names_in_any_case_and_sizes_of_ones_own():
    assert shape_of({"name": "llama-3-8b"}) == shape_of({"name": "Llama-3-8B"})
    assert shape_of({"name": "yi_6b", "max_position": 200_000}).max_position == 200_000
    assert set(SIZES) > {"layers", "mlp_matrices"}


def test_without_weights_nothing_is_loaded():
    with pytest.raises(UsageError, match="model=Llama-3-8B has no weights, only sizes: executor=simulated only"):
        load({"name": "llama-3-8b"}, "bfloat16")
    with pytest.raises(UsageError, match="model=gpt5: allowed is smollm2, tiny, model.path=DIR, or of OPT-13B"):
        shape_of({"name": "gpt5"})
    with pytest.raises(UsageError, match="model.experts: Yi-6B has no such size"):
        shape_of({"name": "Yi-6B", "experts": 8})


@pytest.mark.parametrize(
    ("name", "dtype", "ranks", "size"),
    [
        ("OPT-13B", "float16", 1, 819_200),  # PagedAttention 4.1: 800 KB
        ("Yi-6B", "bfloat16", 1, 64 << 10), ("Llama-3-8B", "bfloat16", 1, 128 << 10),  # vAttention Table 5
        ("Yi-34B", "bfloat16", 1, 240 << 10), ("Yi-34B", "bfloat16", 2, 120 << 10), ("Yi-34B", "int8", 2, 60 << 10),
        ("Yi-6B", "bfloat16", 8, 16 << 10),  # 4 heads on 8 GPUs: each has one, two have the same
    ],
)  # fmt: skip
def test_bytes_of_a_token(name, dtype, ranks, size):
    assert token_bytes(shape_of({"name": name}), dtype, ranks) == size


def test_memory_left_for_keys_and_values(build):
    """90 % of 80 GiB, less 8.03 G weights of 2 bytes, less some activations."""
    left = build().cost.memory_bytes()
    assert 72 * 2**30 - 16.06e9 - 1.5e9 < left < 72 * 2**30 - 16.06e9
    assert build(tensor_parallel=2).cost.memory_bytes() > left + 7.9e9
    assert build(cost__memory_fraction=0.8).cost.memory_bytes() == pytest.approx(left - 8 * 2**30)


def test_a_model_that_does_not_fit(build):
    with pytest.raises(UsageError, match="does not hold the weights; allowed is a larger gpu or tensor_parallel"):
        build("Llama-3-70B").cost.memory_bytes()
    assert build("Llama-3-70B", tensor_parallel=4).cost.memory_bytes() > 20 * 2**30
