"""Sampling where the logits are: only token ids, and whether the choice was close, come back to the host.

N rows of logits, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvlab.engine.cuda.platform import Platform
from kvlab.engine.sampling import TIE_GAP, Sampler, gumbel

NAN, CLOSE = 1, 2  # what a row's second number says


class DeviceSampler(Sampler):
    """The same choices as Sampler's: greedy, or with the noise of each sequence and position, made on the host."""

    @torch.inference_mode()
    def heat(
        self,
        logits_NV: Tensor,
        id_N: NDArray[np.int64],
        position_N: NDArray[np.int64],
        temperature_N: NDArray[np.float64],
        seed_N: NDArray[np.int64],
        *,
        platform: Platform,
    ) -> None:
        """Overwrite the rows that have a temperature, so that their greedy choice is the sample."""
        for n in np.flatnonzero(temperature_N > 0).tolist():
            noise_V = gumbel(int(seed_N[n]), int(id_N[n]), int(position_N[n]), logits_NV.shape[1])
            hot_V = platform.send(noise_V).to(logits_NV.dtype)
            logits_NV[n] = logits_NV[n] / float(temperature_N[n]) + hot_V

    @staticmethod
    @torch.inference_mode()
    def answer(logits_NV: Tensor) -> Tensor:
        """answer_2N, int64: the tokens, and NAN or CLOSE or 0 of each. Overwrites the logits; fits into a graph."""
        best_N, token_N = logits_NV.max(dim=1)
        nan_N = best_N.isnan()  # one in a row is its maximum
        logits_NV.scatter_(1, token_N[:, None], float("-inf"))
        close_N = best_N - logits_NV.amax(dim=1) < TIE_GAP
        return torch.stack((token_N, nan_N * NAN + close_N * CLOSE))

    def tokens(
        self,
        answer_2N: NDArray[np.int64],
        id_N: NDArray[np.int64],
        position_N: NDArray[np.int64],
        temperature_N: NDArray[np.float64],
    ) -> NDArray[np.int32]:
        """Token ids [N] from what came back."""
        token_N, said_N = answer_2N
        nan_N = said_N & NAN != 0
        assert not nan_N.any(), f"the logits of sequences {id_N[nan_N].tolist()} are not numbers"
        close_N = (said_N & CLOSE != 0) & (temperature_N == 0)
        self.ties += zip(id_N[close_N].tolist(), position_N[close_N].tolist(), strict=True)
        chosen_N: NDArray[np.int32] = token_N.astype(np.int32)
        return chosen_N
