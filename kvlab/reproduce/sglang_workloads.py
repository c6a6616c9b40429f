"""The SGLang paper's workloads, as far as their shape and their lengths can be had; a list of programs by seed.

Shapes and numbers are those of the project's public benchmarks (github.com/sgl-project/sglang, folder benchmark,
Apache-2.0). Where a text is public and its tokens are not, words and punctuation marks were counted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
from numpy.random import Generator

from kvlab.reproduce.programs import Call, Piece, Program

QUESTIONS = 200  # of the few-shot and the tree benchmarks; the tree's are fewer here: each is 30 calls
TREES, BRANCHES, EPISODES, CHATS, TURNS = 32, 2, 100, 20, 4
FIVE_SHOTS = 637  # words and marks of the first five examples of GSM8K's test file
QUESTION = 24, 99  # the shortest and the longest of six questions there
ANSWER = 40, 122  # of five answers
ASKED = 59, 43, 29, 22  # of what tree_of_thought_deep asks for: a plan, its execution, a score, the final answer
SAID = 64, 256  # an answer of the tree; 256 is its max_tokens
EXAMPLES = 1340  # of what react puts first: 849 for its first three examples, the others by their characters
EPISODE = 4, 6  # thoughts in an episode of hotpotqa_100.jsonl, as its first six have
ASKS, THOUGHT, OBSERVATION = (11, 26), (28, 49), (7, 238)  # words and marks there
CHAT_QUESTION = 256, 512  # tokens, multi_turn_chat
CHAT_ANSWERS = {"short": (4, 8), "long": (256, 512)}


class Draw:
    """Lengths by seed, and names for texts that nobody else has."""

    def __init__(self, seed: int) -> None:
        self.rng: Generator = np.random.default_rng([seed, 2312])
        self.names: Iterator[int] = count(100)

    def length(self, bounds: tuple[int, int]) -> int:
        return int(self.rng.integers(bounds[0], bounds[1] + 1))

    def own(self, bounds: tuple[int, int]) -> Piece:
        return Piece(next(self.names), self.length(bounds))


def few_shot(seed: int) -> list[Program]:
    """Five examples, the same for all, and a question."""
    draw, shots = Draw(seed), Piece(0, FIVE_SHOTS)
    return [[Call((shots, draw.own(QUESTION)), draw.length(ANSWER))] for _ in range(QUESTIONS)]


def chat(seed: int, answers: str) -> list[Program]:
    """Conversations of four turns, each prompt all that was said and a new question."""
    draw = Draw(seed)
    return [
        [
            Call((draw.own(CHAT_QUESTION),), draw.length(CHAT_ANSWERS[answers]), turn - 1 if turn else None)
            for turn in range(TURNS)
        ]
        for _ in range(CHATS)
    ]


def tree_of_thought(seed: int) -> list[Program]:
    """Two answers to a plan's question, two to each of those, and so on, four deep: 30 calls."""
    draw = Draw(seed)
    return [_tree(draw) for _ in range(TREES)]


def _tree(draw: Draw) -> Program:
    calls, before = list[Call](), list[int | None]([None])
    question = draw.own(QUESTION)
    for depth, asked in enumerate(ASKED):
        new = (Piece(depth, asked), *(() if depth else (question,)))
        level = [Call(new, draw.length(SAID), after) for after in before for _ in range(BRANCHES)]
        before = list(range(len(calls), len(calls) + len(level)))
        calls += level
    return calls


def react(seed: int) -> list[Program]:
    """Episodes that are replayed: what a prompt goes on from is the recorded thought, not the answer."""
    draw, examples = Draw(seed), Piece(0, EXAMPLES)
    programs = []
    for _ in range(EPISODES):
        calls = [Call((examples, draw.own(ASKS)), draw.length(THOUGHT))]
        for step in range(draw.length(EPISODE) - 1):
            recorded = draw.own(THOUGHT), draw.own(OBSERVATION)
            calls.append(Call(recorded, draw.length(THOUGHT), step, answered=False))
        programs.append(calls)
    return programs


WORKLOADS: dict[str, Callable[[int], list[Program]]] = {
    "multi-turn chat, short answers": lambda seed: chat(seed, "short"),
    "multi-turn chat, long answers": lambda seed: chat(seed, "long"),
    "tree of thought": tree_of_thought,
    "ReAct agents": react,
    "few-shot": few_shot,
}


def branching(seed: int) -> list[Program]:
    """A random tree of prompts that all come at once, in an order drawn by chance: for the theorem on orders."""
    draw = Draw(seed)
    paths = list[tuple[Piece, ...]]([()])
    for _ in range(4):
        paths = [(*path, piece) for path in paths for piece in (draw.own((8, 64)) for _ in range(draw.length((2, 4))))]
    return [[Call(paths[place], draw.length((1, 16)))] for place in draw.rng.permutation(len(paths))]
