"""`layout`: the same slots, the same tokens, whatever the strategy; and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.build import build_strategy
from kvlab.errors import UsageError
from kvlab.harness import plugins
from kvlab.harness.compose import compose
from kvlab.run import execute, plan

NAMES = sorted(path.stem for path in (Path(plugins.__file__).parents[1] / "conf" / "strategy").glob("*.yaml"))
QUICK = ("paged", "vattention_sliced")
SMALL = [
    "model=tiny", "workload=lognormal", "workload.num_requests=6", "workload.scale=0.1", "max_len=64",
    "page_group_bytes=4096", "engine.clock=steps",
]  # fmt: skip
TIGHT = ["pool_bytes=64KiB", "host_bytes=64KiB", "preemption=swap", "dtype=float64", "engine.chunk=13"]


def quick_first(names: list[str]) -> list[Any]:
    """The others are slow tests: hardly more is learned from them."""
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digests(folder: Path, *words: str) -> list[str]:
    """Of the outputs under token_major, and under head_major with two sizes of tiles."""
    found = []
    for layout in (["layout=token_major"], ["layout=head_major"], ["layout=head_major", "layout.tile=4"]):
        result = execute(compose([*SMALL, *words, *layout]).config, folder)
        assert result["status"] == "ok", result["reason"]
        assert result["num_finished"] == 6
        found.append(result["output_digest"])
    return found


@pytest.mark.parametrize("strategy", quick_first(NAMES))
def test_every_strategy_makes_the_same_tokens_in_both_layouts(strategy: str, tmp_path: Path) -> None:
    assert len(set(digests(tmp_path, f"strategy={strategy}"))) == 1


@pytest.mark.parametrize("strategy", quick_first(["paged", "growing_step", "vattention", "radix"]))
def test_swapped_and_copied_tokens_come_back_in_both_layouts(strategy: str, tmp_path: Path) -> None:
    """In float64, where tokens do not depend on when a sequence was preempted."""
    assert len(set(digests(tmp_path, f"strategy={strategy}", *TIGHT))) == 1


@pytest.mark.parametrize("strategy", quick_first(["paged", "vattention"]))
def test_torch_reads_both_layouts(strategy: str, tmp_path: Path) -> None:
    assert len(set(digests(tmp_path, f"strategy={strategy}", "attention=sdpa", "dtype=bfloat16"))) == 1


def test_slots_keep_their_numbers() -> None:
    """A layout is not the strategy's business; but where memory comes on demand, tiles have it whole."""
    made = {}
    for layout in ("token_major", "head_major"):
        for strategy in ("paged", "vattention"):
            config: dict[str, Any] = compose([f"strategy={strategy}", f"layout={layout}", *SMALL]).config
            made[layout, strategy] = build_strategy(config, 512, 2, 2**20)
    assert made["token_major", "paged"].pools == made["head_major", "paged"].pools
    assert [made[layout, "vattention"].memory.tile for layout in ("token_major", "head_major")] == [1, 16]


@pytest.mark.parametrize("tile", ["0", "3", "-16", "true", "half"])
def test_a_tile_is_a_power_of_two(tile: str) -> None:
    with pytest.raises(UsageError, match=rf"layout.tile={tile.capitalize() if tile == 'true' else tile}: allowed is a"):
        plan(compose(["layout=head_major", f"layout.tile={tile}", *SMALL]).config)


def test_a_gpu_has_one_layout() -> None:
    with pytest.raises(UsageError, match="layout=head_major with device=cuda: allowed there is token_major"):
        compose(["layout=head_major", "device=cuda"])


def test_what_differs_in_its_layout_is_another_run() -> None:
    names = [compose([f"layout={layout}"]).config["layout"] for layout in ("token_major", "head_major")]
    assert names == [{"name": "token_major", "tile": 1}, {"name": "head_major", "tile": 16}]
