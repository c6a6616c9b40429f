"""Conversations of several turns: each prompt is what was said so far, and turns come one after another."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from kvlab.errors import UsageError
from kvlab.model.fetch import model_path
from kvlab.model.load import open_source
from kvlab.workload.conversations import words
from kvlab.workload.make import make

TALK = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "What is a block?"},
    {"from": "gpt", "value": "Sixteen slots, usually."},
    {"from": "human", "value": "And a row?"},
    {"from": "gpt", "value": "Slots in a row."},
]
OTHER = [
    {"from": "gpt", "value": "Hello!"},
    {"from": "human", "value": "What is a block?"},
    {"from": "gpt", "value": "A thing."},
    {"from": "human", "value": "Thanks"},
]


@pytest.fixture
def turns(tmp_path):
    def made(conversations, vocab=50_000, seed=0, **knobs):
        path = tmp_path / "talk.json"
        text = conversations if isinstance(conversations, str) else json.dumps(conversations)
        path.write_text(text)
        config = {"name": "sharegpt_turns", "path": str(path), "num_requests": None, **knobs}
        return make(config, seed=seed, max_len=1000, vocab=vocab)

    return made


def test_a_prompt_is_the_history_and_the_new_message(turns):
    made = turns([{"conversations": TALK}, {"conversations": OTHER}])
    said = [words(message["value"]) for message in TALK]
    assert [request.prompt_len for request in made.requests] == [
        sum(map(len, said[:2])), sum(map(len, said[:4])), len(words("Hello! What is a block?"))
    ]  # fmt: skip
    assert [request.output_len for request in made.requests] == [5, 5, 3]
    first, second, other = (request.prompt for request in made.requests)
    assert np.array_equal(second[: len(first)], first)
    assert np.array_equal(first[3:], other[2:]), "equal words are equal tokens in any conversation"
    assert made.info["tokens"] == "words and punctuation marks, counted without a tokenizer"


def test_turns_come_a_think_time_after_one_another(turns):
    talks = [{"conversations": TALK}, {"conversations": TALK}, {"conversations": OTHER}]
    assert [r.arrival_s for r in turns(talks, think_s=4.0).requests] == [0, 0, 0, 4, 4]
    poisson = turns(talks, think_s=4.0, rate=0.1, seed=3).requests
    begins = sorted(request.arrival_s for request in turns(OTHER_THRICE, rate=0.1, seed=3).requests)
    expected = sorted([*begins, begins[0] + 4, begins[1] + 4])
    assert [request.arrival_s for request in poisson] == pytest.approx(expected)
    assert [request.id for request in poisson] == [0, 1, 2, 3, 4]


OTHER_THRICE = [{"conversations": OTHER}] * 3


def test_without_a_think_time_they_come_in_file_order(turns):
    lengths = [r.prompt_len for r in turns([{"conversations": TALK}] * 2, think_s=None).requests]
    assert lengths == [8, 17, 8, 17]


def test_whole_conversations_are_sampled(turns):
    made = turns([{"conversations": TALK}] * 9, sample="families", num_requests=4, think_s=1.0).requests
    assert sorted(request.prompt_len for request in made) == [8, 8, 17, 17]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("[", "is no JSON"),
        ({"conversations": TALK}, "holds dict"),
        ([{"conversations": TALK}, {"messages": TALK}], "conversation 2: has no list of messages"),
        ([{"conversations": [{"from": "cat", "value": "miaow"}]}], "conversation 1: .*'cat'"),
        ([{"conversations": [{"from": "human", "value": None}]}], "conversation 1: "),
        ([{"conversations": TALK[:2]}], "no message is answered"),
    ],
)
def test_what_is_no_conversation_is_named(turns, bad, said):
    with pytest.raises(UsageError, match=f"talk.json(, |: ){said}.*expected a list of"):
        turns(bad)


def test_the_words_of_a_file_are_not_scaled(turns):
    with pytest.raises(UsageError, match="workload.scale=0.5: allowed is 1 where the file's own words are the prompt"):
        turns([{"conversations": TALK}], scale=0.5)


def test_tokens_are_those_of_a_tokenizer(turns, monkeypatch):
    """One that puts a 1 before every text: within a conversation, it stands before none of the messages."""
    tokenizer = SimpleNamespace(encode=lambda text: [1, *map(ord, text)])
    monkeypatch.setattr("kvlab.model.load.open_source", lambda config: SimpleNamespace(tokenizer=tokenizer, name="m"))
    made = turns([{"conversations": TALK}], tokenizer="a_folder")
    assert bytes(made.requests[0].prompt.tolist()).decode() == "Be brief.What is a block?"
    assert made.requests[0].output_len == len(TALK[2]["value"])
    assert made.info["tokens"] == "tokenizer of m"
    with pytest.raises(
        UsageError, match="workload.tokenizer=a_folder: has token id 116; the model's vocabulary ends at 1"
    ):
        turns([{"conversations": TALK}], tokenizer="a_folder", vocab=110)


def test_smollm2_s_tokenizer(turns):
    if not model_path().exists():
        pytest.skip(f"{model_path()} is not there; `kvlab fetch model` downloads it")
    first, second = turns([{"conversations": TALK}], tokenizer="smollm2").requests
    assert np.array_equal(second.prompt[: first.prompt_len], first.prompt)
    decoded = open_source({"name": "smollm2"}).tokenizer.decode(second.prompt.tolist())
    assert decoded == "".join(message["value"] for message in TALK[:4])


def test_a_model_s_folder_without_a_tokenizer(turns, tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such file or directory"):
        turns([{"conversations": TALK}], tokenizer=str(tmp_path / "nowhere"))
