"""`layout`: the same slots, the same tokens, whatever the strategy; and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from kvlab.build import build_strategy
from kvlab.engine.attentions.sdpa import Sdpa
from kvlab.engine.kernels import build_kernels
from kvlab.errors import UsageError
from kvlab.harness import plugins
from kvlab.harness.compose import Composer
from kvlab.memory.view import View
from kvlab.run import execute
from kvlab.testing.kernels import judge
from kvlab.testing.rule import RuleError

pytestmark = pytest.mark.usefixtures("threads")

NAMES = sorted(path.stem for path in (Path(plugins.__file__).parents[1] / "conf" / "strategy").glob("*.yaml"))
Compose = Callable[[list[str]], dict[str, Any]]
Runs = Callable[..., list[dict[str, Any]]]
QUICK = ("paged", "vattention_sliced")
SMALL = ["model=tiny", "workload.num_requests=6", "max_len=64", "page_group_bytes=4096", "engine.clock=steps"]
WORK = ["workload=lognormal", "workload.scale=0.1"]
LAYOUTS = (["layout=token_major"], ["layout=head_major"], ["layout=head_major", "layout.tile=4"])
TIGHT = [
    "workload=fixed", "workload.prompt_len=20", "workload.output_len=30", "engine.chunk=13", "dtype=float64",
    "pool_bytes=128KiB", "host_bytes=128KiB", "preemption=swap",
]  # fmt: skip


def quick_first(names: list[str]) -> list[Any]:
    """The others are slow tests: hardly more is learned from them."""
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    """From words to a configuration."""
    with Composer() as composer:
        yield lambda words: composer.compose(words).config


@pytest.fixture
def runs(tmp_path: Path, compose: Compose) -> Runs:
    """The results under token_major, and under head_major with two sizes of tiles."""
    return lambda *words: [execute(compose([*SMALL, *words, *layout]), tmp_path) for layout in LAYOUTS]


def assert_same_tokens(results: list[dict[str, Any]]) -> None:
    assert [(result["status"], result["reason"]) for result in results] == [("ok", "")] * len(results)
    assert {result["num_finished"] for result in results} == {6}
    assert len({result["output_digest"] for result in results}) == 1


@pytest.mark.parametrize("strategy", quick_first(NAMES))
def test_every_strategy_makes_the_same_tokens_in_both_layouts(strategy: str, runs: Runs) -> None:
    assert_same_tokens(runs(f"strategy={strategy}", *WORK))


@pytest.mark.parametrize("strategy", quick_first(["paged", "vattention", "vattention_sliced", "radix"]))
def test_swapped_and_copied_tokens_come_back_in_both_layouts(strategy: str, runs: Runs) -> None:
    """In float64, where tokens do not depend on when a sequence was preempted."""
    results = runs(f"strategy={strategy}", *TIGHT)
    assert_same_tokens(results)
    assert all(result["num_preemptions"] for result in results), "nothing was swapped"


@pytest.mark.parametrize("strategy", quick_first(["paged", "vattention"]))
def test_torch_reads_both_layouts(strategy: str, runs: Runs) -> None:
    assert_same_tokens(runs(f"strategy={strategy}", "attention=sdpa", "dtype=bfloat16", *WORK))


def test_slots_keep_their_numbers(compose: Compose) -> None:
    """A layout is not the strategy's business; but where memory comes on demand, tiles have it whole."""
    made = {}
    for layout in ("token_major", "head_major"):
        for strategy in ("paged", "vattention"):
            config = compose([f"strategy={strategy}", f"layout={layout}", *SMALL])
            made[layout, strategy] = build_strategy(config, 512, 2, 2**20)
    assert made["token_major", "paged"].pools == made["head_major", "paged"].pools
    assert [made[layout, "vattention"].memory.tile for layout in ("token_major", "head_major")] == [1, 16]


@pytest.mark.parametrize("tile", ["0", "3", "-16", "true", "half"])
def test_a_tile_is_a_power_of_two(tile: str, compose: Compose) -> None:
    with pytest.raises(UsageError, match=rf"layout.tile={tile.capitalize() if tile == 'true' else tile}: allowed is a"):
        compose(["layout=head_major", f"layout.tile={tile}"])


def test_a_gpu_has_one_layout(compose: Compose) -> None:
    with pytest.raises(UsageError, match="layout=head_major with device=cuda: allowed there is token_major"):
        compose(["layout=head_major", "device=cuda"])


class Plain(Sdpa):
    """Somebody's kernel that has not heard of tiles."""

    tiles = False


def test_a_kernel_that_reads_no_tiles_is_refused() -> None:
    node = {"_target_": f"{__name__}.Plain", "name": "plain"}
    assert build_kernels(node, tile=1).make_view is Sdpa.make_view
    with pytest.raises(UsageError, match="layout=head_major with attention=plain: .*allowed is layout=token_major"):
        build_kernels(node, tile=16)


class Flat(Sdpa):
    """Says that it reads tiles, and takes them for token-major."""

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: View, scale: float) -> Tensor:
        shape = (-1, k_SHD.shape[1], k_SHD.shape[-1])
        return super().attend(q_TQD, k_SHD.reshape(shape), v_SHD.reshape(shape), view, scale)


def test_a_kernel_that_misreads_tiles_is_found_out() -> None:
    with pytest.raises(RuleError, match="tiles of 8"):
        judge(Flat())


def test_what_differs_in_its_layout_is_another_run(compose: Compose) -> None:
    names = [compose([f"layout={layout}"])["layout"] for layout in ("token_major", "head_major")]
    assert names == [{"name": "token_major", "tile": 1}, {"name": "head_major", "tile": 16}]
