"""What follows a launch in a random life: prefills are told, drafts accepted or dropped, as a seed decides."""

from __future__ import annotations

import random

from kvlab.testing import honesty
from kvlab.testing.character import Character
from kvlab.testing.sequence import Sequence
from kvlab.testing.trial import Trial, Write


class Landing:
    """The end of launches, for one trial."""

    def __init__(self, trial: Trial, character: Character, rng: random.Random) -> None:
        self.trial, self.character, self.rng = trial, character, rng

    def land(self) -> None:
        """The launch in flight is over, if there is one."""
        for write in self.trial.complete():
            if self._was_drafting(write):
                self._judge(write)
            elif write.start < write.sequence.prompt or self.rng.random() < 0.3:
                self.trial.tell(write.sequence)
            if write.sequence.behind:  # it wrote behind a part of a block that its parent may have published
                honesty.cache_is_true(self.trial, [write.sequence.behind])
                write.sequence.behind = None

    def _was_drafting(self, write: Write) -> bool:
        return write.stop - write.start > 1 and write.start >= write.sequence.prompt

    def _judge(self, write: Write) -> None:
        """Keep one token at least; what follows is something else."""
        rng, sequence = self.rng, write.sequence
        keep = rng.randint(write.start + 1, write.stop)
        if keep < write.stop:
            self.drop(sequence, keep)

    def drop(self, sequence: Sequence, keep: int) -> None:
        """Its tokens from `keep` on are others than was thought."""
        sequence.ids[keep:] = self.character.tokens(len(sequence.ids) - keep)
        sequence.rechain(keep)
        sequence.known = min(sequence.known, keep)
        self.trial.truncate(sequence, keep)
