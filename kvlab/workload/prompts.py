"""Token ids and sampling seeds of a request, from (seed, id) alone.

Raw PCG64 output is used, which numpy keeps the same in every version; its distributions may change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def draw_prompt(seed: int, id: int, length: int, vocab: int | None) -> tuple[int, NDArray[np.int32] | None]:
    """(sampling seed below 2^31, token ids [length] in [0, vocab), read-only; None without a vocabulary).

    A shorter prompt of the same (seed, id) is the beginning of a longer one.
    """
    bits = np.random.PCG64(np.random.SeedSequence((seed, id)))
    sampling_seed = int(bits.random_raw()) >> 33
    if vocab is None:
        return sampling_seed, None
    # Of 64 random bits, the remainder favours small ids by less than one part in 10^13.
    ids = (bits.random_raw(length) % np.uint64(vocab)).astype(np.int32)
    ids.flags.writeable = False
    return sampling_seed, ids
