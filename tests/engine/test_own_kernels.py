"""A view and a kernel of a plugin's own: judged by the gather oracle, and run instead of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlab.engine.kernels import Kvlab, build_kernels
from kvlab.errors import UsageError
from kvlab.harness.compose import compose
from kvlab.run import execute
from kvlab.testing import RuleError
from kvlab.testing.kernels import judge


class Spread(NamedTuple):
    """Every slot of every sequence, one by one."""

    slots: list[Tensor]  # of each sequence, from its first token on
    new: list[int]
    slot_T: Tensor


class Gathering:
    """Copies what a sequence holds together, then attends to the copy."""

    def make_view(self, table_BP: Any, start_B: Any, stop_B: Any, block_size: int | None) -> Spread:
        slots = []
        for row_P, stop in zip(table_BP, stop_B.tolist(), strict=True):
            position = torch.arange(stop)
            table_P = torch.from_numpy(row_P.astype(np.int64))
            slots.append(self.slots(table_P, position, block_size))
        new = (stop_B - start_B).tolist()
        return Spread(slots, new, torch.cat([row[len(row) - count :] for row, count in zip(slots, new, strict=True)]))

    def slots(self, table_P: Tensor, position: Tensor, block_size: int | None) -> Tensor:
        if block_size is None:
            return table_P[0] + position
        return table_P[position // block_size] * block_size + position % block_size

    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Spread, scale: float) -> Tensor:
        o, first = [], 0
        for slots, new in zip(view.slots, view.new, strict=True):
            q = q_TQD[first : first + new].transpose(0, 1)
            k, v = (x[slots].repeat_interleave(q.shape[0] // x.shape[1], 1).transpose(0, 1) for x in (k_SHD, v_SHD))
            seen = torch.ones(new, len(slots), dtype=torch.bool).tril(len(slots) - new)
            weight = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
            o.append((weight @ v).transpose(0, 1))
            first += new
        return torch.cat(o)

    def kernel_name(self, dtype: torch.dtype, head_dim: int, groups: int) -> str:
        return "gathering"


class TurnsRound(Gathering):
    def slots(self, table_P: Tensor, position: Tensor, block_size: int | None) -> Tensor:
        return super().slots(table_P, position, block_size).roll(1)


class ScalesWrongly(Gathering):
    def attend(self, q_TQD: Tensor, k_SHD: Tensor, v_SHD: Tensor, view: Spread, scale: float) -> Tensor:
        return super().attend(q_TQD, k_SHD, v_SHD, view, scale * 1.001)


@pytest.mark.parametrize("kernels", [Kvlab(), Gathering()])
def test_right_kernels_pass(kernels: Any) -> None:
    judge(kernels)


@pytest.mark.parametrize(
    ("kernels", "rule"),
    [(TurnsRound(), "written where the tables say"), (ScalesWrongly(), "attends to its own tokens")],
)
def test_wrong_kernels_do_not(kernels: Any, rule: str) -> None:
    with pytest.raises(RuleError, match=rule):
        judge(kernels)


def test_a_kernel_for_one_geometry_is_judged_in_it() -> None:
    class Rows(Gathering):
        def slots(self, table_P: Tensor, position: Tensor, block_size: int | None) -> Tensor:
            return table_P[0] + position

    judge(Rows(), block_sizes=(None,))
    with pytest.raises(RuleError):
        judge(Rows(), block_sizes=(4,))


@pytest.mark.parametrize("strategy", ["paged", "contiguous"])
def test_a_run_uses_it_and_makes_the_same_tokens(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "a_package", sys.modules[__name__])
    small = ["workload=fixed", "workload.num_requests=3", "workload.prompt_len=20", "workload.output_len=6"]
    words = [f"strategy={strategy}", "model=tiny", "dtype=float64", "max_len=64", *small]
    ours = execute(compose(words).config, tmp_path)
    theirs = execute(compose([*words, "attention._target_=a_package.Gathering"]).config, tmp_path)
    assert theirs["kernel"] == "gathering"
    assert theirs["output_digest"] == ours["output_digest"]


def test_kernels_that_are_not_whole_are_one_line() -> None:
    with pytest.raises(UsageError, match="it lacks make_view, attend, kernel_name"):
        build_kernels({"_target_": "kvlab.engine.axes.Newest"})
