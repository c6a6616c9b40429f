"""Speculative decoding as a workload: `tokens` drafts a step, of which as many are right as a seed says.

Right drafts come from a tape: what a run of the same work without drafts has said. The model verifies each one, so
the output is the same whatever the tape holds; tokens that were written for drafts that it refuses are truncated.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.draws import even, mixed
from kvlab.engine.launch import Launch
from kvlab.engine.sequence import BRANCH_BITS, Tokens
from kvlab.errors import UsageError

if TYPE_CHECKING:
    from kvlab.engine.scheduler import Scheduler


class Speculation:
    """Drafts for the sequences that decode. tape(sequences [N], positions [N]) are the tokens that are right [N].

    chance: of a draft to be right, if those before it are.
    """

    def __init__(self, tokens: int, chance: float, seed: int, tape: Tokens) -> None:
        self.tokens, self.chance, self.tape = tokens, chance, tape
        self.salts = range(seed * 64, seed * 64 + tokens)  # one for each draft

    def prepare(self, scheduler: Scheduler) -> None:
        """Before a step: how many drafts each lane gets, and the drafts behind its known tokens."""
        lanes = scheduler.lanes
        order = lanes.order
        known_B, left_B = lanes.known[order], lanes.known[order] - lanes.stored[order]
        single_B = (left_B == 1) & (known_B > lanes.prompt[order]) & (lanes.beams[order] == 0)
        lanes.drafts[order] = np.where(single_B, np.minimum(self.tokens, lanes.end[order] - known_B - 1), 0)
        lane_N = order[single_B]
        if lanes.ids is None or not len(lane_N):
            return
        position_NK = lanes.known[lane_N, None] + np.arange(self.tokens)
        inside_NK = np.arange(self.tokens) < lanes.drafts[lane_N, None]
        id_NK = np.broadcast_to(lanes.id[lane_N, None], position_NK.shape)
        right_NK = self.tape(id_NK.ravel(), position_NK.ravel()).reshape(position_NK.shape)
        wrong_NK = np.arange(self.tokens) >= self.right(lanes.id[lane_N], lanes.known[lane_N])[:, None]
        drafts_NK = np.where(wrong_NK, np.where(right_NK > 0, right_NK - 1, 1), right_NK)  # the token beside it
        lane_NK = np.broadcast_to(lane_N[:, None], position_NK.shape)
        lanes.ids[lane_NK[inside_NK], position_NK[inside_NK]] = drafts_NK[inside_NK]

    def right(self, id_N: NDArray[np.int64], known_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leading drafts that are right [N]; of a sequence at a position always the same."""
        draws_NK = np.stack([even(mixed(id_N, known_N, salt)) for salt in self.salts], axis=1)
        counts_N: NDArray[np.int64] = np.cumprod(draws_NK < self.chance, axis=1).sum(axis=1)
        return counts_N

    def settle(self, scheduler: Scheduler, launch: Launch, token_M: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Sampled rows [M] that stand: of a sequence with drafts the one behind the right ones, which are kept."""
        lanes, of_M = scheduler.lanes, launch.sampled()
        known_B = lanes.known[launch.lane_B]
        drafted_B = np.where(launch.samples_B, launch.stop_B - known_B, 0)
        stands_M: NDArray[np.bool_] = drafted_B[of_M] == 0
        index_N = np.flatnonzero(drafted_B > 0)
        if not len(index_N):
            return stands_M
        lane_N, known_N = launch.lane_B[index_N], known_B[index_N]
        first_N = np.searchsorted(of_M, index_N)
        kept_N = np.minimum(self._kept(scheduler, lane_N, known_N, first_N, token_M), drafted_B[index_N])
        stands_M[first_N + kept_N] = True
        lanes.known[lane_N] += kept_N
        lanes.stored[lane_N] = known_N + kept_N
        scheduler.tally.drafted_tokens += int(drafted_B.sum())
        scheduler.tally.accepted_tokens += int(kept_N.sum())
        for lane in lane_N[kept_N < drafted_B[index_N]].tolist():
            scheduler.metered.truncate(int(lanes.id[lane]), int(lanes.stored[lane]))
            lanes.asks[lane] = True
        return stands_M

    def _kept(
        self,
        scheduler: Scheduler,
        lane_N: NDArray[np.int64],
        known_N: NDArray[np.int64],
        first_N: NDArray[np.int64],
        token_M: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Leading drafts that are what the model says [N], end-of-text left out; may count beyond the drafts."""
        lanes = scheduler.lanes
        if lanes.ids is None:
            return self.right(lanes.id[lane_N], known_N)
        step = np.arange(self.tokens)
        answer_NK = token_M[np.minimum(first_N[:, None] + step, len(token_M) - 1)]
        draft_NK = lanes.ids[lane_N[:, None], np.minimum(known_N[:, None] + step, lanes.ids.shape[1] - 1)]
        same_NK = (answer_NK == draft_NK) & ~(np.isin(answer_NK, scheduler.eos) & (lanes.final[lane_N] < 0)[:, None])
        kept_N: NDArray[np.int64] = np.cumprod(same_NK, axis=1).sum(axis=1)
        return kept_N


def speculation_of(config: dict[str, Any], tape: Tokens | None = None) -> Speculation | None:
    """What a resolved configuration asks for; tape: where it names none. UsageError: it needs one."""
    engine = config["engine"]
    count = int(engine.get("draft_tokens") or 0)
    if not count:
        return None
    directory = engine.get("draft_tape")
    if tape is None and directory is None:
        raise UsageError(
            f"engine.draft_tokens={count}: drafts need engine.draft_tape=DIR, a run of the same work without drafts"
        )
    right = tape or read_tape(Path(str(directory)))
    return Speculation(count, float(engine["draft_accept"]), int(config["seed"]), right)


def read_tape(directory: Path) -> Tokens:
    """What a run has said, from its outputs.jsonl. UsageError: there is none. Positions that it lacks are token 0."""
    try:
        lines = (directory / "outputs.jsonl").read_text().splitlines()
    except OSError as error:
        allowed = f"allowed is the directory of a run ({error.strerror})"
        raise UsageError(f"engine.draft_tape={directory}: {allowed}") from None
    said = {entry["id"] + (entry.get("branch", 0) << BRANCH_BITS): entry["tokens"] for entry in map(json.loads, lines)}
    prompt = _prompts(directory)

    def tokens(id_N: NDArray[np.int64], position_N: NDArray[np.int64]) -> NDArray[np.int32]:
        found = list[int]()
        for id, position in zip(id_N.tolist(), position_N.tolist(), strict=True):
            output, index = said.get(id, []), position - prompt.get(id & ((1 << BRANCH_BITS) - 1), 0)
            found.append(output[index] if 0 <= index < len(output) else 0)
        return np.array(found, np.int32)

    return tokens


def _prompts(directory: Path) -> dict[int, int]:
    """Prompt lengths of the requests of a run."""
    with (directory / "requests.csv").open(newline="") as file:
        return {int(row["id"]): int(row["prompt_len"]) for row in csv.DictReader(file)}
