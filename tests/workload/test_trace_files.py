"""Trace files: the formats, and one clear line for every way in which a file can be wrong."""

import gzip
import time

import pytest

from kvlab.errors import UsageError
from kvlab.workload.make import make

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.0806\n290,905,1195,0.32\n"
PLAIN = "prompt_len,output_len\n5,6\n7,8\n"


def load(path, **config):
    config = {"name": "azure_conv", "path": str(path), "num_requests": None} | config
    return make(config, seed=0, max_len=4096, vocab=None)


def lengths(workload):
    return [(r.prompt_len, r.output_len) for r in workload.requests]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE, [(374, 44), (396, 109)]),
        (LENGTHS, [(74, 918), (290, 905)]),
        (PLAIN, [(5, 6), (7, 8)]),
        ("\ufeff" + PLAIN.rstrip(), [(5, 6), (7, 8)]),
        ("note,output_len,prompt_len\nx,6,5\n\n", [(5, 6)]),
    ],
)
def test_formats_are_known_by_their_header(tmp_path, text, expected, packed, ending):
    data = text.replace("\n", ending).encode()
    path = tmp_path / ("trace.csv.gz" if packed else "trace.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    workload = load(path)
    assert lengths(workload) == expected
    assert workload.info["synthetic"] is False
    assert workload.info["source"] == path.name


def test_azure_times(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    assert [r.arrival_s for r in load(path, arrivals="file").requests] == [0.0, 4.314579]


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system cannot change its time zone")
def test_times_do_not_depend_on_the_zone_of_the_machine(tmp_path, monkeypatch):
    """Local time jumps an hour in a night in March; an hour and a half in a trace must stay that."""
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-03-26 01:45:00,1,1\n2023-03-26 03:15:00,1,1\n")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        assert [r.arrival_s for r in load(path, arrivals="file").requests] == [0.0, 5400.0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_result_does_not_call_file_lengths_lognormal(tmp_path):
    """Any workload may take a path; a formula's name beside a file's lengths would be a wrong label."""
    path = tmp_path / "trace.csv"
    path.write_text(PLAIN)
    assert load(path, name="lognormal").info["name"] == "file"
    assert load(path, name="azure_conv").info["name"] == "azure_conv"
    assert load(path, name="of_my_own").info["name"] == "of_my_own"


def test_head_and_random_rows(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_len,output_len\n" + "".join(f"{i},1\n" for i in range(1, 101)))
    assert lengths(load(path, num_requests=3)) == [(1, 1), (2, 1), (3, 1)]
    ten, twenty = (lengths(load(path, num_requests=n, sample="random")) for n in (10, 20))
    assert ten == twenty[:10]
    assert len(set(twenty)) == 20
    assert sorted(twenty) != twenty
    assert sorted(lengths(load(path, sample="random"))) == lengths(load(path))


def test_rows_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_len,output_len\n4000,96\n4000,97\n1,1\n")
    workload = load(path)
    assert [r.id for r in workload.requests] == [0, 2]
    assert workload.refused[0][:3] == (1, 4000, 97)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (PLAIN + "9\n", 4, "'9'; expected prompt_len and output_len as whole numbers, 1 or more"),
        (PLAIN + "9,9,9\n", 4, "'9,9,9'"),
        ("prompt_len,output_len\n0,5\n", 2, "'0,5'"),
        ("prompt_len,output_len\n5,-1\n", 2, "'5,-1'"),
        ("prompt_len,output_len\n5,1.5\n", 2, "'5,1.5'"),
        ("prompt_len,output_len\n1_0,5\n", 2, "'1_0,5'"),
        ("prompt_len,output_len\n5,99999999999\n", 2, "'5,99999999999'"),
        ("prompt_len,output_len\n\n5,5\n", 2, "''"),
        ("prompt_len,output_len,arrival_s\n5,5,nan\n", 2, "arrival_s (seconds)"),
        (LENGTHS + "10,10,21,1.0\n", 4, "num_total_tokens their sum"),
        (AZURE + "yesterday,1,1\n", 4, "TIMESTAMP (date and time)"),
        (AZURE + "2023-11-16 18:15:51.0,12", 4, "'2023-11-16 18:15:51.0,12'"),
    ],
)
def test_malformed_rows_name_file_line_and_what_is_expected(tmp_path, text, line, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path, num_requests=1)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"prompt_len,output_len\n", "has a header and no rows"),
        (b"prompt_len,output_len,prompt_len\n1,2,3\n", "line 1: column prompt_len is there 2 times"),
        (b'{"timestamp": 0}\n', "line 1: unknown header '{\"timestamp\": 0}'; columns known: TIMESTAMP,"),
        (b"\x89PNG\xff\xfe", "is not text"),
        (gzip.compress(AZURE.encode() * 50, mtime=0)[:-20], "truncated or corrupt gzip file"),
        (gzip.compress(AZURE.encode(), mtime=0)[:4], "truncated or corrupt gzip file"),
        (b"\x1f\x8bnonsense, not gzip at all", "truncated or corrupt gzip file"),
    ],
)
def test_wrong_files(tmp_path, data, words):
    path = tmp_path / "bad.csv.gz"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_corrupt_gzip_contents(tmp_path):
    data = bytearray(gzip.compress(AZURE.encode() * 50, mtime=0))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "bad.csv.gz"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="truncated or corrupt gzip file"):
        load(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UsageError, match=r"workload\.path=.*none\.csv: no such file"):
        load(tmp_path / "none.csv")
    with pytest.raises(UsageError, match=r"workload\.path=.*: cannot be read \(Is a directory\)"):
        load(tmp_path)


def test_more_requests_than_rows(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(PLAIN)
    with pytest.raises(UsageError, match=r"num_requests=3: trace\.csv has 2 rows"):
        load(path, num_requests=3)
    with pytest.raises(UsageError, match=r"workload\.sample=best: allowed are head, random"):
        load(path, sample="best")
