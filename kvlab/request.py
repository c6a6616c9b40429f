"""What a client asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt and its limits. Lengths are tokens, times seconds from the start of the run."""

    id: int  # 0, 1, 2 ... in order of arrival
    prompt_len: int
    output_len: int | None  # tokens it will generate, end-of-text ignored; None: until end-of-text or the limit
    limit: int  # tokens, prompt included, that the client declared it may ever hold
    arrival_s: float = 0.0
    prompt: NDArray[np.int32] | None = None  # read-only [prompt_len]; None: a run of lengths only
    temperature: float = 0.0  # 0: greedy
    seed: int = 0
    n: int = 1  # samples of the same prompt
    beams: int = 0  # width of a beam search; 0: none, tokens are sampled
    priority: int = 0  # the higher, the earlier it starts; who gives way says the axis `victim`
    space: int = 0  # requests of different spaces (adapter, salt, image) never share

    @property
    def final(self) -> int | None:
        """Tokens, prompt included, once it is done; None while only the model knows."""
        return None if self.output_len is None else self.prompt_len + self.output_len
