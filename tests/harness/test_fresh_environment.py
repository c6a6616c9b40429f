"""Plugins as pip installs them, in an environment that has nothing else than what kvlab needs."""

from __future__ import annotations

import json
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("model=tiny", "dtype=float64", "max_len=256", "engine.clock=steps", "timing=false", "tracking=none")


class Environment:
    """A new virtual environment that finds the packages of this one."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        self.python = directory / "bin" / "python"
        (packages,) = directory.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
        (packages / "parent.pth").write_text("\n".join(lines))

    def run(self, *arguments: str | Path) -> str:
        done = subprocess.run([self.python, "-m", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def install(self, *what: str | Path) -> None:
        """As `pip install ...`, without asking the network for setuptools."""
        self.run("pip", "install", "--quiet", "--no-build-isolation", "--no-index", *what)

    def kvlab(self, *arguments: str) -> str:
        return self.run("kvlab.harness.cli", *arguments)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("fresh") / "venv")


@pytest.mark.slow
def test_from_nothing_to_a_table_in_three_commands(environment: Environment, tmp_path: Path) -> None:
    """What a new strategy's README and docs/plugins.md promise."""
    said = environment.kvlab("new-strategy", "zebra")
    assert "pip install -e zebra\n" in said
    environment.install("--editable", "zebra")
    table = environment.kvlab("sweep", "strategy=zebra,paged", "workload.num_requests=24", *SMALL)
    zebra, paged = (line_of(table, name) for name in ("zebra", "paged"))
    assert zebra[1:] == paged[1:], "it is paged under another name"
    assert environment.kvlab("check", "zebra", "--seeds", "14", "--steps", "60").endswith("ok\n")
    environment.run("pytest", "-q", "zebra/tests")


def line_of(table: str, name: str) -> list[str]:
    """The cells of a strategy's line, times aside."""
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {name} ")]
    return [cell.strip() for cell in line.strip("| ").split("|") if "(*)" not in cell]


@pytest.mark.slow
def test_the_example_package_is_installed_and_swept(environment: Environment, tmp_path: Path) -> None:
    source = tmp_path / "arena"
    subprocess.run(["cp", "-r", ROOT / "examples" / "arena", source], check=True)  # a build leaves files beside it
    environment.install(source)
    rows = {row["name"]: row for row in json.loads(environment.kvlab("strategies", "--json"))}
    assert rows["arena"]["from"] == "arena"
    environment.kvlab(
        "sweep", "strategy=contiguous,arena,paged", "workload=few_shot", "hydra.sweep.dir=out", "--no-report", *SMALL
    )
    results = {
        result["strategy"]: result
        for result in (json.loads(path.read_text()) for path in Path("out").glob("*/result.json"))
    }
    assert {result["status"] for result in results.values()} == {"ok"}
    assert len({result["output_digest"] for result in results.values()}) == 1
    assert results["arena"]["workload"]["source"] == "4 tasks with 96 tokens of examples each"
    batch = {name: result["mean_batch_size"] for name, result in results.items()}
    assert batch["contiguous"] < batch["arena"] <= batch["paged"]
    environment.run("pytest", "-q", "arena/tests")
