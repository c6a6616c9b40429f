"""experiments/peers without the peers: processes that are asked and stand still, and pages from figures."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from pathlib import Path

import pytest

from kvlab.errors import UsageError

PEERS = Path(__file__).resolve().parents[2] / "experiments" / "peers"
NAMES = ("__main__", "blocks", "environments", "page", "processes", "race", "side_llama", "works")
STUB = """
import os, signal, sys, time
from side import serve

def start(settings):
    def generate(prompts, outputs):
        return sum(outputs) - settings["short"]
    print("not an answer")
    return {"version": "stub 1", "pool_bytes": 0}, generate

serve(start)
"""


@pytest.fixture(scope="module")
def peers():
    """The scripts, by name; their names are forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PEERS)
        before = set(sys.modules)
        spec = importlib.util.spec_from_file_location("peers_main", PEERS / "__main__.py")
        main = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(main)
        yield {"__main__": main, **{name: importlib.import_module(name) for name in NAMES[1:]}}
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(PEERS)):
                del sys.modules[name]


@pytest.fixture
def stub(peers, tmp_path):
    """A peer's process that answers at once; `short`: tokens that it fails to generate."""
    opened = []

    def open(short=0):
        script = tmp_path / "stub.py"
        script.write_text(STUB)
        environ = {"PYTHONPATH": str(PEERS)}
        command = [sys.executable, str(script)]
        opened.append(peers["processes"].Process("stub", command, {"short": short}, environ, tmp_path / "log"))
        return opened[-1]

    yield open
    for process in opened:
        process.close()


def entry(peers, walls, **others):
    facts = {"version": "1", "pool_bytes": 2**30, "first_token_s": 1.0, "peak_pss_bytes": 3 * 2**30}
    return peers["race"].Entry(**{**facts, **others}, wall_s=walls)


def test_a_process_answers_in_lines_whatever_it_prints(stub):
    process = stub()
    assert process.facts == {"version": "stub 1", "pool_bytes": 0}
    answer = process.ask({"prompts": [[1], [2]], "outputs": [3, 4]})
    assert answer["output_tokens"] == 7
    assert answer["wall_s"] >= 0


def test_it_stands_still_but_while_it_is_let_run(stub):
    process = stub()
    state = Path(f"/proc/{process.process.pid}/stat")
    process.signal(signal.SIGSTOP)
    with process.running():
        assert process.ask({"prompts": [[1]], "outputs": [1]})["output_tokens"] == 1
    assert state.read_text().rpartition(")")[2].split()[0] == "T"
    assert process.pss() > 2**20
    assert process.cpu_s() > 0


def test_a_process_that_ends_is_one_line(peers, tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(UsageError, match=r"stub: ended with status 1 \(no such model\)"):
        peers["processes"].Process("stub", command, {}, {}, tmp_path / "log")


def test_what_is_no_answer_is_one_line(peers, tmp_path):
    """It ended in the traceback of a parser."""
    command = [sys.executable, "-c", "print('Loading...')"]
    with pytest.raises(UsageError, match=r"stub: 'Loading\.\.\.' is no answer; see .*log"):
        peers["processes"].Process("stub", command, {}, {}, tmp_path / "log")


def test_who_says_nothing_is_not_waited_for_for_ever(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(peers["processes"], "HANGS_S", 0.2)
    with pytest.raises(UsageError, match="stub: no answer in 0.2 seconds; see .*log"):
        peers["processes"].Process("stub", [sys.executable, "-c", "input(); input()"], {}, {}, tmp_path / "log")


def test_who_is_stopped_while_a_peer_loads_leaves_none_behind(peers, tmp_path, monkeypatch):
    """Nobody knew the process yet, and it went on loading by itself."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(peers["processes"].select, "select", interrupted)
    processes = []
    popen = peers["processes"].subprocess.Popen
    monkeypatch.setattr(
        peers["processes"].subprocess, "Popen", lambda *a, **k: processes.append(popen(*a, **k)) or processes[-1]
    )
    with pytest.raises(KeyboardInterrupt):
        peers["processes"].Process("stub", [sys.executable, "-c", "input(); input()"], {}, {}, tmp_path / "log")
    assert processes[0].returncode == -signal.SIGKILL


def test_a_model_that_was_made_half_is_made_again(peers, tmp_path, monkeypatch):
    """A folder that was there counted as the whole checkpoint."""
    environments = peers["environments"]
    monkeypatch.setattr(environments, "model_path", lambda: tmp_path / "model.gguf")

    def stopped(command):
        Path(command[-1]).mkdir(exist_ok=True)
        raise UsageError("stopped")

    monkeypatch.setattr(environments, "_run", stopped)
    with pytest.raises(UsageError, match="stopped"):
        environments._make(tmp_path / "smollm2", Path("python"), "checkpoint.py")
    assert not (tmp_path / "smollm2").exists()
    monkeypatch.setattr(environments, "_run", lambda command: (Path(command[-1]) / "weights").touch())
    environments._make(tmp_path / "smollm2", Path("python"), "checkpoint.py")
    assert [path.name for path in (tmp_path / "smollm2").iterdir()] == ["weights"]


def test_who_generates_too_little_is_found_out(peers, stub):
    work = peers["works"].Work("batch", [[1], [2]], [3, 3])
    with pytest.raises(UsageError, match="stub: batch: 5 tokens came, 6 were asked for"):
        peers["race"]._measure(stub(short=1), entry(peers, {}), work)


def test_who_is_slow_is_asked_once(peers, stub):
    work, slow = peers["works"].Work("batch", [[1]], [3]), entry(peers, {"batch": [31.0]})
    peers["race"]._measure(stub(), slow, work)
    assert slow.wall_s == {"batch": [31.0]}


def test_the_workload_has_the_published_lengths(peers):
    work = peers["works"].workload()
    assert (len(work.prompts), sum(map(len, work.prompts)), sum(work.outputs)) == (64, 10_279, 9_134)
    assert peers["works"].workload(2).outputs == [138, 91]
    assert {len(ids) for ids in peers["works"].batch(3, 128).prompts} == {128}


def test_rates_leave_the_prompts_out_of_decoding(peers):
    walls = {"batch 8, 1 of output": [0.5, 1.0], "batch 8, 128 of output": [2.5, 2.0], "workload": [2.0]}
    own = entry(peers, walls)
    assert own.rates("decode", 8) == [8 * 127 / 2.0, 8 * 127 / 1.0]
    assert own.rates("prefill", 8) == [8 * 128 / 0.5, 8 * 128 / 1.0]
    assert own.rates("workload", 10) == [5.0]


def test_who_is_slow_at_whole_answers_still_has_a_rate(peers):
    """Asked for them once and for first tokens in every repeat, it cost the others their page after half an hour."""
    walls = {"batch 64, 1 of output": [0.5, 1.0], "batch 64, 128 of output": [32.5]}
    assert entry(peers, walls).rates("decode", 64) == [64 * 127 / 32.0]


def test_ratios_are_of_one_repeat_or_of_the_only_one(peers):
    measured = {"kvlab": [10.0, 30.0], "vllm": [5.0, 10.0], "transformers": [2.0]}
    assert peers["page"].ratios(measured) == {"vllm": [2.0, 3.0], "transformers": [5.0, 15.0]}
    assert peers["page"].ratios({"kvlab": [10.0], "vllm": [5.0, 2.0]}) == {"vllm": [2.0, 5.0]}


def test_the_page_and_its_json(peers):
    walls = {"batch 8, 1 of output": [0.5], "batch 8, 128 of output": [2.5], "workload": [2.0]}
    entries = {"kvlab": entry(peers, walls), "vllm": entry(peers, {**walls, "workload": [4.0]})}
    work = peers["works"].workload()
    text = peers["page"].markdown(entries, work, [8], 2, "the command")
    assert "| workload " in text
    assert "| 4,567 | 2,284 | 2.00 [2.00-2.00] |" in text
    record = json.loads(json.dumps(peers["page"].record(entries, work, [8], "the command")))
    assert record["ratio_of_kvlab_to"]["workload"] == {"vllm": 2.0}
    assert record["engines"]["vllm"]["pss_beyond_pool_bytes"] == 2 * 2**30


def test_what_vllm_hashes_is_what_its_requests_cost_more(peers):
    told = {False: (4_000, 1_000), True: (5_000, 1_700)}

    def ask(message):
        manager_ns, request_ns = told[message["caching"]]
        return {"manager_ns": manager_ns, "request_ns": request_ns, "output_tokens": 10, "steps": 3}

    found = {name: {"vllm_ns": []} for name in ("paged", "prefix")}
    assert peers["blocks"]._theirs(ask, {}, found) == (3, 10)
    assert found == {"paged": {"vllm_ns": [400.0]}, "prefix": {"vllm_ns": [570.0]}}


def test_prompts_go_into_calls_of_at_most_a_batch(peers):
    llama = peers["side_llama"]
    groups = [*llama.Sequences.groups(None, [1000, 1000, 100, 2048, 1])]
    assert groups == [[0, 1], [2], [3], [4]]
    assert llama.BATCH == 2048


def test_the_first_token_of_a_start_with_cold_caches_does_not_count(peers, tmp_path, capsys, monkeypatch):
    seconds = iter([9.0, 2.0, 1.0, 4.0])
    monkeypatch.setattr(peers["race"], "first_token_s", lambda folder, threads: next(seconds))
    assert peers["__main__"].main(["first", str(tmp_path), "--repeats", "3"]) == 0
    assert capsys.readouterr().out.startswith("first token after, s: 2.00; each: 2.00, 1.00, 4.00\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["setup", "experiments/here"], "experiments/here: allowed is a folder outside the repository"),
        (["run", "/tmp", "ollama"], "ollama: no such peer; allowed is vllm, transformers, llama.cpp"),
        (["run", "/nowhere", "vllm"], "/nowhere: no environment of vllm there; setup makes it"),
        (["first", "/nowhere"], "/nowhere: no such folder; setup makes it"),
        (["run", "/tmp", "--batches", "1,two"], "--batches 1,two: allowed are whole numbers"),
        (["run", "/tmp", "--repeats", "0"], "--repeats 0: allowed is a whole number, 1 or more"),
    ],
)
def test_wrong_words_are_one_line(peers, arguments, line, capsys, monkeypatch):
    monkeypatch.chdir(PEERS.parents[1])
    assert peers["__main__"].main(arguments) == 2
    assert capsys.readouterr().err.startswith(line)
