"""Tables: a golden one, holes, footnotes, digests, and raw numbers for programs."""

from __future__ import annotations

import csv
import io
import json

from kvlab.harness.groups import group
from kvlab.harness.results import load
from kvlab.harness.table import digest_cells, markdown, raw, to_csv

GOLDEN = """\
| strategy   | token state | reservation | internal | external |       mean batch |            tokens/s | preemptions | committed | digest     |   n |
| ---------- | ----------: | ----------: | -------: | -------: | ---------------: | ------------------: | ----------: | --------: | ---------- | --: |
| contiguous |      10.0 % |       5.0 % |   80.0 % |    5.0 % |    4.0 [4.0-4.0] | 101.0 [100.0-102.0] |           2 |     4 MiB | = 00aabbcc |   3 |
| paged      |      90.0 % |       2.0 % |    1.0 % |    7.0 % | 36.0 [36.0-36.0] | 901.0 [900.0-902.0] |           2 |     4 MiB | = 00aabbcc |   3 |
| vattention |      80.0 % |      10.0 % |    2.0 % |    8.0 % | 32.0 [32.0-32.0] | 801.0 [800.0-802.0] |           2 |     4 MiB | = 00aabbcc |   3 |
"""  # noqa: E501


def rows(directory):
    return group(load(directory)[0])


def test_golden(sweep):
    assert markdown(rows(sweep)) == GOLDEN


def test_goodput_is_shown_where_there_are_limits(write_run):
    sweep = write_run("a", goodput=0.5).parent
    assert "goodput" not in markdown(rows(sweep))
    write_run("b", goodput=0.5, config={"slo": {"ttft_s": 1.0, "tpot_s": None}})
    head, _, line = markdown(rows(sweep)).splitlines()[:3]
    at = [cell.strip() for cell in head.split("|")].index("goodput")
    assert line.split("|")[at].strip() == "50.0 %"


def test_large_numbers_have_separators_in_markdown_and_none_in_csv(write_run):
    sweep = write_run("a", config={"max_len": 1024}, tokens_per_s=12345.678).parent
    write_run("b", config={"max_len": 512}, num_preemptions=123456)
    table = rows(sweep)
    text = markdown(table)
    assert "12,345.7" in text
    assert "123,456" in text
    assert "| 1,024 " in text
    line = list(csv.DictReader(io.StringIO(to_csv(table))))[1]
    assert (line["max_len"], line["tokens_per_s"], line["tokens_per_s_max"]) == ("1024", "12345.678", "12345.678")


def test_holes_name_their_reason_once(write_run, sweep):
    for seed in (0, 1):
        write_run(f"r{seed}", "rows", seed, status="refused", reason="no request fits")
    write_run("p3", "paged", 3, {"block_size": 16}, status="failed", reason="the disk is full")
    text = markdown(rows(sweep))
    (line,) = [line for line in text.splitlines() if line.startswith("| rows")]
    assert "refused [2]" in line
    assert line.count(" - |") == 7
    assert "[2] rows: refused (seed 0,1): no request fits" in text
    assert "90.0 % [1]" in text
    assert "[1] paged: failed (seed 3): the disk is full" in text
    assert "3 of 4" in text


def test_a_run_of_which_nothing_is_known_is_a_row(write_run, sweep):
    (write_run("lost") / "result.json").write_text("{")
    text = markdown(rows(sweep))
    assert "| lost " in text
    assert "lost: failed: unreadable result.json" in text
    assert raw(rows(sweep))[-1]["tokens_per_s"] is None


def test_times_that_cannot_be_trusted_are_marked(write_run, sweep):
    assert "(*)" not in markdown(rows(sweep))
    write_run("noisy", "paged", 3, {"block_size": 16}, timing_valid=False)
    text = markdown(rows(sweep))
    assert text.count("(*)") == 2
    assert "901.5 [900.0-903.0] (*)" in text


def test_digests(write_run, sweep):
    assert digest_cells(rows(sweep)) == ["= 00aabbcc"] * 3
    write_run("x", "xotic", 1, output_digest="ffffffff00", num_ties=3)
    cells = digest_cells(rows(sweep))
    assert cells == ["00aabbcc", "00aabbcc", "00aabbcc", "differs (seed 1)"]


def test_digests_that_part_at_close_choices_only(write_run, sweep):
    """In float32 another batch rounds otherwise: that is told from a wrong token by the runs' own outputs."""
    other = write_run("x", "xotic", 1, output_digest="ffffffff00")
    first = next(run for run in load(sweep)[0] if run.seed == 1).path
    for path, tokens in ((first, [1, 2, 3]), (other, [1, 9, 9])):
        line = {"id": 0, "tokens": tokens, "ties": [1]}
        (path / "outputs.jsonl").write_text(json.dumps(line))
    assert digest_cells(rows(sweep))[-1] == "1 tie"
    (other / "outputs.jsonl").write_text(json.dumps({"id": 0, "tokens": [7, 2, 3], "ties": []}))
    assert digest_cells(rows(sweep))[-1] == "differs (seed 1)"


def test_a_digest_alone_claims_nothing(write_run):
    (cell,) = digest_cells(rows(write_run("a")))
    assert cell == "00aabbcc"


def test_cached_is_a_column_only_where_something_was_cached(write_run, sweep):
    assert "cached" not in markdown(rows(sweep))
    write_run("p", "prefix", waste={"reservation": 0.0, "internal": 0.0, "cached": 0.25, "external": 0.25})
    assert "25.0 %" in markdown(rows(sweep))


def test_requests_that_were_not_served_are_a_column(write_run, sweep):
    """tokens/s of a strategy that refused half of the work stood beside the others' without a word."""
    assert "refused" not in markdown(rows(sweep))
    write_run("r", "rows", num_refused=5)
    assert " refused " in markdown(rows(sweep)).splitlines()[0]


def test_every_metric_is_in_the_raw_rows_with_its_runs(sweep):
    line = raw(rows(sweep))[1]
    assert (line["strategy"], line["n"], line["holes"]) == ("paged", 3, 0)
    assert line["ttft_s.p99"] == 1.5
    assert line["utilization.whole_min"] == 0.45
    assert len(line["runs"].split()) == 3


def test_a_run_in_which_nothing_waited_is_said_to_compare_nothing(write_run, sweep):
    """It has no saturated window; a pool that nobody had to wait for does not tell strategies apart."""
    assert "Nothing waited" not in markdown(rows(sweep))
    write_run("p", "paged", 3, {"block_size": 16}, saturated_steps=0)
    assert "a run of paged: its shares are those of the whole run" in markdown(rows(sweep))


def test_a_trace_is_shown_by_its_file_name_where_that_tells_it(write_run):
    """A table of traces was as wide as the path of the directory in which they lay."""
    sweep = write_run("a", config={"workload.path": "/data/here/one.csv"}).parent
    write_run("b", config={"workload.path": "/data/here/two.csv"})
    table = rows(sweep)
    assert "| one.csv " in markdown(table)
    assert "/data" not in markdown(table)
    assert table[0].label == "paged, workload.path one.csv"
    assert raw(table)[1]["workload.path"] == "/data/here/two.csv"
    write_run("c", config={"workload.path": "/data/there/two.csv"})
    assert "/data/there/two.csv" in markdown(rows(sweep))


def test_simulated_rows_beside_measured_ones_are_marked(write_run, sweep):
    """Only the caption said that there were any, not which; and the CSV said nothing."""
    write_run("there", "paged", 0, {"gpu": {"name": "h100"}}, simulated=True, tokens_per_s=5000.0)
    table = rows(sweep)
    text = markdown(table)
    assert "5,000.0 (s)" in text
    assert text.count("(s)") == 2
    assert "(s) Simulated: seconds of a cost model; the others were measured." in text
    assert sorted(line["simulated"] for line in raw(table)) == [False, False, False, True]
    alone = [row for row in table if row.runs[0].values.get("simulated")]
    assert "(s)" not in markdown(alone)
