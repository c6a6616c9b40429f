"""From logits to tokens. What a request gets depends on its seed and the position alone, never on its batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.kernels.best import best_two

# Sequences, positions, temperatures and seeds of sampled rows, each [N].
Asked = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]
TIE_GAP = 1e-4  # a greedy choice by less than this may fall differently under another rounding


@dataclass(slots=True)
class Sampler:
    """Greedy where the temperature is 0, else by Gumbel's trick with a random stream per sequence and position."""

    ties: list[tuple[int, int]] = field(default_factory=list)  # (sequence, position) of close greedy choices

    @torch.inference_mode()
    def __call__(
        self,
        logits_NV: Tensor,
        id_N: NDArray[np.int64],
        position_N: NDArray[np.int64],
        temperature_N: NDArray[np.float64],
        seed_N: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        """Token ids [N]; position_N is where each will stand in its sequence. Overwrites the logits."""
        hot = np.flatnonzero(temperature_N > 0)
        for n in hot.tolist():
            noise_V = gumbel(int(seed_N[n]), int(id_N[n]), int(position_N[n]), logits_NV.shape[1])
            logits_NV[n] = logits_NV[n] / float(temperature_N[n]) + torch.from_numpy(noise_V).to(logits_NV.dtype)
        token_N, best_N, second_N = best_two(logits_NV)
        nan_N = best_N.isnan().numpy()
        assert not nan_N.any(), f"the logits of sequences {id_N[nan_N].tolist()} are not numbers"
        close_N = (best_N - second_N < TIE_GAP).numpy() & (temperature_N == 0)
        self.ties += zip(id_N[close_N].tolist(), position_N[close_N].tolist(), strict=True)
        return token_N.numpy().astype(np.int32)


@torch.inference_mode()
def best(logits_NV: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(token ids [N, count], their log-probabilities [N, count]), the most likely first; of equals the smaller id."""
    logprob_NV = logits_NV.double().log_softmax(dim=1)
    sorted_NV, order_NV = logprob_NV.sort(dim=1, descending=True, stable=True)
    return order_NV[:, :count].cpu().numpy(), sorted_NV[:, :count].cpu().numpy()


def gumbel(seed: int, id: int, position: int, size: int) -> NDArray[np.float64]:
    """Gumbel noise [size] of one position of one sequence: a counter-based stream, no state between calls."""
    bits = np.random.Philox(key=np.array([seed, id], np.uint64), counter=position << 64)
    # From raw bits, which numpy keeps the same in every version; its distributions may change.
    uniform = ((bits.random_raw(size) >> np.uint64(12)) + 0.5) / 2.0**52  # never 0 or 1
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
