"""Mooncake's and RAGPulse's lines of JSON: equal hash ids are equal tokens, others are not, and bad lines are named."""

import gzip
import json

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.workload.content import KEPT, Words
from kvlab.workload.make import make

VOCAB = 1000


def line(timestamp, input_length, hash_ids, output_length=7):
    return {
        "timestamp": timestamp, "input_length": input_length, "output_length": output_length, "hash_ids": hash_ids
    }  # fmt: skip


LINES = [
    line(0, 1300, [0, 1, 2]),
    line(3000, 1024, [0, 1]),
    line(3000, 1400, [0, 1, 2]),
    line(6000, 513, [0, 9]),
    line(9000, 40, [8]),
]


@pytest.fixture
def trace(tmp_path):
    def written(lines, name="trace.jsonl.gz"):
        path = tmp_path / name
        text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        return str(path)

    return written


def mooncake(path, vocab=VOCAB, seed=1, **knobs):
    config = {"name": "mooncake", "path": path, "num_requests": None, **knobs}
    return make(config, seed=seed, max_len=10_000, vocab=vocab)


def common(a, b):
    size = min(len(a), len(b))
    return int(np.argmin(np.append(a[:size] == b[:size], False)))


def test_prompts_share_what_their_hash_ids_say_and_no_more(trace):
    prompts = [request.prompt for request in mooncake(trace(LINES)).requests]
    assert [len(prompt) for prompt in prompts] == [1300, 1024, 1400, 513, 40]
    assert common(prompts[0], prompts[1]) == 1024
    assert common(prompts[0], prompts[2]) == 1300  # one last block is the beginning of the other
    assert common(prompts[0], prompts[3]) == 512
    assert common(prompts[0], prompts[4]) == 0
    for prompt in prompts:
        assert not prompt.flags.writeable
        assert prompt.dtype == np.int32
        assert 0 <= prompt.min() <= prompt.max() < VOCAB


def test_tokens_come_from_the_seed_and_the_hash_id_alone(trace):
    first, again = mooncake(trace(LINES)), mooncake(trace(LINES[2:], "later.jsonl"))
    assert np.array_equal(first.requests[2].prompt, again.requests[0].prompt)
    assert common(first.requests[0].prompt, mooncake(trace(LINES), seed=2).requests[0].prompt) < 3


@pytest.mark.parametrize("vocab", [2, 7, 256, 49152])
def test_no_two_hash_ids_have_equal_tokens(vocab):
    """Tokens drawn at random would be equal for some pair sooner or later; the first ones spell the id."""
    words = Words(3, vocab)
    names = [*range(300), *(vocab**power for power in range(1, 8) if vocab**power < 2**63), 2**63 - 2]
    assert len({words.of(name, 64).tobytes() for name in names}) == len(set(names))


def test_what_is_kept_of_drawn_tokens_is_bounded_and_changes_nothing():
    words = Words(0, 100)
    first = words.of(1, 50)
    size = KEPT // 4
    for name in range(2, 10):
        words.of(name, size)
    assert words.tokens <= KEPT
    assert 1 not in words.kept
    assert np.array_equal(words.of(1, 80)[:50], first)


def test_arrivals_scale_and_samples(trace):
    path = trace(LINES)
    assert [r.arrival_s for r in mooncake(path, arrivals="file", time_scale=0.5).requests] == [0, 1.5, 1.5, 3, 4.5]
    scaled = [request.prompt for request in mooncake(path, scale=0.125).requests]
    assert [len(prompt) for prompt in scaled] == [162, 128, 175, 64, 5]
    assert common(scaled[0], scaled[2]) == 162
    assert common(scaled[0], scaled[1]) == 128
    info = mooncake(path).info
    assert (info["name"], info["synthetic"], info["source"]) == ("mooncake", False, "trace.jsonl.gz")


def test_whole_families_are_sampled(trace):
    """Ten conversations of four turns behind one common block: rows drawn one by one would tear them apart."""
    lines = [line(1000 * turn, 600 + turn, [0, 100 + family]) for turn in range(4) for family in range(10)]
    for seed in range(5):
        made = mooncake(trace(lines), sample="families", num_requests=8, seed=seed).requests
        second = [request.prompt[512:600].tobytes() for request in made]
        assert sorted(second.count(block) for block in set(second)) == [4, 4]
        assert [request.prompt_len for request in made] == [600, 600, 601, 601, 602, 602, 603, 603]


def test_lengths_alone_need_no_tokens(trace):
    assert all(request.prompt is None for request in mooncake(trace(LINES), vocab=None).requests)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "line 2: '{'"),
        ("[1]", "line 2: '\\[1\\]'"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1}, "line 2: lacks hash_ids"),
        (line(0, 0, []), "line 2: 0 is no whole number from 1"),
        (line(0, 5, [1], output_length=2.5), "line 2: 2.5 is no whole number"),
        (line(0, 513, [1]), "line 2: 1 hash_ids for 513 tokens, which are 2 blocks"),
        (line(0, 5, [-1]), "line 2: -1 is no whole number from 0"),
        (line(0, 5, [2**63]), "line 2: 9223372036854775808 is no whole number"),
        (line(0, 5, [True]), "line 2: True is no whole number"),
        (line("soon", 5, [1]), "line 2: could not convert"),
        (line(True, 5, [1]), "line 2: timestamp True is no number"),
    ],
)
def test_a_bad_line_is_named_with_what_is_allowed(trace, bad, said):
    with pytest.raises(UsageError, match=f"trace.jsonl.gz, {said}.*expected timestamp in milliseconds"):
        mooncake(trace([LINES[0], bad]))


def test_what_a_file_says_of_sharing_is_not_overruled(trace):
    with pytest.raises(UsageError, match="workload.shared_prefix=0.5: allowed is 0 where a file says"):
        mooncake(trace(LINES), shared_prefix=0.5)


LENGTHS = {"1_sys_prompt": {1: 30}, "2_passages": {2: 20, 3: 10}, "3_history": {4: 5}, "4_user_input": {6: 2, 7: 3},
           "5_web_search": {5: 4}}  # fmt: skip


def pulse(timestamp, input_length, session, passages, user, web=()):
    parts = {"sys_prompt": [1], "passages_ids": passages, "history": [4], "web_search": [*web], "user_input": [user]}
    return {
        "timestamp": str(timestamp), "input_length": input_length, "output_length": 9, "hash_ids": parts,
        "session_id": session,
    }  # fmt: skip


def ragpulse(trace, lines):
    for file, lengths in LENGTHS.items():
        key = f"{file[2:]}_id"
        trace([{key: name, "token_length": tokens} for name, tokens in lengths.items()], f"{file}.jsonl")
    config = {"name": "ragpulse", "path": trace(lines, "0_trace.jsonl"), "num_requests": None, "arrivals": "file"}
    return make(config, seed=0, max_len=1000, vocab=VOCAB)


def test_ragpulse_parts_are_equal_wherever_they_stand(trace):
    made = ragpulse(
        trace, [pulse(60, 79, "b", [3, 2], 7, [5]), pulse(0, 75, "a", [2, 3], 6), pulse(90, 76, "a", [2, 3], 7)]
    )
    prompts = [request.prompt for request in made.requests]
    assert [request.arrival_s for request in made.requests] == [0, 60, 90]
    assert [len(prompt) for prompt in prompts] == [75, 79, 76]
    assert common(prompts[0], prompts[1]) == 30  # the system prompt; then other passages
    assert common(prompts[0], prompts[2]) == 65  # all but the question
    assert np.array_equal(prompts[0][30:50], prompts[1][40:60])  # passage 2
    assert np.array_equal(prompts[1][69:72], prompts[2][65:68]), "question 7, behind a web search or not"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (pulse(0, 75, "a", [99], 6), "hash id 99 has no length in the files beside it"),
        (pulse(0, 60, "a", [2, 3], 6), "parts of 67 tokens in an input of 60"),
        ({**pulse(0, 75, "a", [2], 6), "hash_ids": {}}, "lacks sys_prompt"),
    ],
)
def test_ragpulse_bad_lines(trace, bad, said):
    with pytest.raises(UsageError, match=f"0_trace.jsonl, line 1: {said}; expected timestamp in seconds"):
        ragpulse(trace, [bad])
