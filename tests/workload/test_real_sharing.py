"""The public traces that share, where they are at hand: their known statistics, and how much of them can be reused."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvlab.strategies.prefix import Prefix
from kvlab.strategy import Arrival, Memory
from kvlab.workload import jsonl
from kvlab.workload.make import make

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"sys": "1_sys_prompt", "passage": "2_passages", "history": "3_history", "user": "4_user_input",
         "web": "5_web_search"}  # fmt: skip
KEYS = {
    "sys_prompt": "sys",
    "passages_ids": "passages",
    "history": "history",
    "web_search": "web",
    "user_input": "user",
}


@pytest.fixture(scope="module")
def ragpulse(tmp_path_factory, public_trace):
    """The six files as they are published, from two that hold the same numbers."""
    folder = tmp_path_factory.mktemp("ragpulse")
    lines = gzip.decompress(public_trace("ragpulse/ragpulse_trace.jsonl.gz").read_bytes()).decode().splitlines()
    with (folder / "0_trace.jsonl").open("w") as file:
        for row in map(json.loads, lines):
            told = {key: row[key] for key in ("input_length", "output_length")}
            ids = {key: row[short] for key, short in KEYS.items()}
            written = {"timestamp": str(row["timestamp"]), **told, "hash_ids": ids, "session_id": f"s{row['session']}"}
            file.write(json.dumps(written) + "\n")
    with gzip.open(public_trace("ragpulse/ragpulse_segments.csv.gz"), "rt") as file:
        segments = list(csv.DictReader(file))
    for kind, name in KINDS.items():
        found = [row for row in segments if row["kind"] == kind]
        entries = [{f"{name[2:]}_id": int(row["segment_id"]), "token_length": int(row["tokens"])} for row in found]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return folder / "0_trace.jsonl"


def test_mooncake_has_its_known_statistics(public_trace):
    rows = jsonl.mooncake(public_trace("mooncake_fast25/conversation_trace.jsonl.gz"))
    assert len(rows) == 12_031
    assert np.mean(rows.prompt) == pytest.approx(12_035, abs=1)
    assert np.mean(rows.output) == pytest.approx(342.6, abs=0.1)
    assert rows.time_s[-1] == pytest.approx(3537, abs=1)
    assert len(set(rows.family)) == 7_373
    assert {int(content.names[0]) for content in rows.content} == {0}


def test_ragpulse_has_its_known_statistics(ragpulse):
    rows = jsonl.ragpulse(ragpulse)
    assert len(rows) == 7_106
    assert np.mean(rows.prompt) == pytest.approx(2_944, abs=1)
    assert np.mean(rows.output) == pytest.approx(283, abs=1)
    assert len(set(rows.family)) == 3_990
    separators = [int(content.ends[-1] - content.ends[-2]) for content in rows.content]
    assert (min(separators), max(separators)) == (6, 12)


@pytest.mark.slow
def test_ragpulse_hits_what_is_known_of_it(ragpulse):
    """31.5 % of its tokens, where nothing is evicted: through `prefix` with the very token ids, block 16."""
    config = {"name": "ragpulse", "path": str(ragpulse), "num_requests": None}
    workload = make(config, seed=0, max_len=20_000, vocab=49_152)
    total = sum(request.prompt_len for request in workload.requests)
    strategy = Prefix(Memory(total, 1, max_len=20_000, max_seqs=1, chunk=20_000), 16)
    hit = 0
    for request in workload.requests:
        length = request.prompt_len
        hit += strategy.admit(Arrival(request.id, length, length, length, length, request.prompt), length).hit
        strategy.drain()
        strategy.wrote(request.id, length, request.prompt)
        strategy.release(request.id)
    assert len(workload.requests) == 7_106
    assert 100 * hit / total == pytest.approx(31.5, abs=0.1)
