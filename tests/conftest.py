"""What tests of all folders share: where the public traces are, which kvlab does not carry; and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared/traces"


def pytest_configure() -> None:
    """In a shell's background Ctrl-C is ignored, by whatever is started there, too: sweeps could not be interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--traces", metavar="DIR", type=Path, default=BESIDE, help="a folder that has the public traces")


@pytest.fixture(scope="session")
def traces(pytestconfig: pytest.Config) -> Path:
    """The folder of the public traces, there or not."""
    return Path(pytestconfig.getoption("traces"))


@pytest.fixture(scope="session")
def public_trace(traces: Path) -> Callable[[str], Path]:
    """public_trace(file): its path; the test is skipped where it is not there."""

    def find(file: str) -> Path:
        if not (traces / file).is_file():
            pytest.skip(f"public trace {file} is not under {traces}; say where: pytest --traces DIR")
        return traces / file

    return find
