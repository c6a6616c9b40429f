"""Into how many pieces decode cuts each sequence, so that a small launch fills the machine."""

from __future__ import annotations

from functools import cache, lru_cache

import torch

MULTIPROCESSORS = 132  # of an H100 or H200: what counts where there is no device
RESIDENT = 4  # programs on a multiprocessor, of the committed configurations for 16-bit heads up to 128
MOST = 128  # pieces
START, JOIN = 2, 6  # what starting a program and joining pieces cost, in loop turns


def splits_for(programs: int, longest: int, tile: int, multiprocessors: int = MULTIPROCESSORS) -> int:
    """Pieces of a sequence of `longest` tokens, where one piece each makes `programs` programs.

    The least of an estimate in loop turns: the machine takes its fill of programs at a time, each of which
    goes through the tiles of a piece.
    """
    return _best(programs, -(-longest // tile), RESIDENT * multiprocessors)


@lru_cache(4096)
def _best(programs: int, tiles: int, room: int) -> int:
    def turns(splits: int) -> int:
        waves = -(-programs * splits // room)
        return waves * (-(-tiles // splits) + START) + (JOIN if splits > 1 else 0)

    return min(range(1, max(1, min(MOST, tiles)) + 1), key=turns)


@cache
def multiprocessors_of(device: torch.device) -> int:
    """Of the device; those of an H100 where it is none."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
