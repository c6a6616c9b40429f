"""What tests of all folders share: the public traces, which kvlab does not carry; Ctrl-C; torch on one thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # heavy, and many tests do without
    from kvlab.harness.compose import Composer

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


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """torch on one thread, until threads(n) says otherwise."""
    with _on_one_thread() as change:
        yield change


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For a whole module, whose fixtures compute."""
    with _on_one_thread():
        yield


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    """Turns words into configurations, for a whole module."""
    from kvlab.harness.compose import Composer

    with Composer() as composer:
        yield composer


@contextmanager
def _on_one_thread() -> Iterator[Callable[[int], None]]:
    """Two wait for each other longer than small work takes; and forks of a process cannot use its threads."""
    import torch  # many tests do without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)
