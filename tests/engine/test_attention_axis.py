"""`attention`: other kernels than ours under every strategy, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.engine.attentions import limits
from kvlab.engine.attentions.sdpa import Sdpa
from kvlab.engine.kernels import build_kernels
from kvlab.errors import UsageError
from kvlab.harness.compose import Composer, compose
from kvlab.run import execute, plan
from kvlab.testing.kernels import judge

pytestmark = pytest.mark.usefixtures("threads")

SMALL = ["workload=lognormal", "workload.num_requests=6", "model=tiny", "max_len=64", "workload.scale=0.1"]
FLASH_ATTN, FLASHINFER = (
    {"_target_": f"kvlab.engine.attentions.{path}", "name": path.split(".")[0]}
    for path in ("flash_attn.FlashAttn", "flashinfer.FlashInfer")
)
NAMES = ("sdpa", "flash_attn", "flashinfer")
SDPA = {"_target_": "kvlab.engine.attentions.sdpa.Sdpa", "name": "sdpa"}


def test_sdpa_reads_what_the_tables_say():
    judge(Sdpa())


@pytest.mark.parametrize("strategy", ["paged", "contiguous", "vattention", "prefix"])
def test_a_run_with_sdpa_makes_the_same_tokens(strategy: str, tmp_path: Path) -> None:
    """vattention's rows end in memory that kills whoever touches it."""
    words = [f"strategy={strategy}", "dtype=float64", "page_group_bytes=4096", *SMALL]
    ours, theirs = (execute(compose([*words, *more]).config, tmp_path) for more in ([], ["attention=sdpa"]))
    assert theirs["kernel"].startswith("torch sdpa")
    assert ours["kernel"] != theirs["kernel"]
    assert theirs["output_digest"] == ours["output_digest"]


@pytest.mark.parametrize(("name", "package"), [("flash_attn", "flash-attn"), ("flashinfer", "flashinfer-python")])
def test_packages_for_gpus_are_refused_on_a_cpu_before_anything_runs(name: str, package: str) -> None:
    words = f"attention={name}: it needs device=cuda, and its package .pip install {package}.*allowed.* is kvlab, sdpa"
    with pytest.raises(UsageError, match=words):
        plan(compose([f"attention={name}", *SMALL]).config)
    with pytest.raises(UsageError, match=words):
        build_kernels({"_target_": compose([f"attention={name}"]).config["attention"]["_target_"]}, "cpu")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="attention=flashinfer: it is not installed; pip install flashinfer-python"):
        limits.check(FLASHINFER, "cuda", "bfloat16", None, 128)


@pytest.mark.parametrize(
    ("node", "dtype", "block_size", "head_dim", "words"),
    [
        (SDPA, "float32", None, 64, "attention=sdpa on device=cuda with dtype=float32: allowed is bfloat16, float16"),
        (SDPA, "bfloat16", 16, 20, "attention=sdpa with heads of 20: allowed are multiples of 8 up to 256"),
        (FLASH_ATTN, "bfloat16", 16, 64, "attention=flash_attn with block_size=16: allowed are multiples of 256"),
        (FLASHINFER, "bfloat16", 16, 96, "attention=flashinfer with heads of 96: allowed are 64, 128, 256"),
    ],
)
def test_what_a_kernel_cannot_do_is_one_line(node, dtype, block_size, head_dim, words, monkeypatch):
    monkeypatch.setattr(limits, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match=words):
        limits.check(node, "cuda", dtype, block_size, head_dim)


@pytest.mark.parametrize(
    ("node", "block_size"), [(SDPA, 16), (SDPA, None), (FLASH_ATTN, 512), (FLASH_ATTN, None), (FLASHINFER, 1)]
)
def test_what_it_can_do_is_not_refused(node, block_size, monkeypatch):
    monkeypatch.setattr(limits, "find_spec", lambda name: object())
    limits.check(node, "cuda", "bfloat16", block_size, 128)


def test_on_a_cpu_sdpa_takes_everything_and_a_plugin_is_left_alone():
    limits.check(SDPA, "cpu", "float64", 3, 20)
    limits.check({"_target_": "a.plugin"}, "cuda", "float64", 3, 20)


class OfAPlugin:
    def make_view(self): ...
    def attend(self): ...
    def kernel_name(self): ...


def test_a_plugin_without_on_runs_on_cpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.engine.kernels.build", lambda node, key: OfAPlugin())
    assert isinstance(build_kernels({"_target_": "a.Plugin"}, "cpu"), OfAPlugin)
    with pytest.raises(UsageError, match="attention._target_=a.Plugin: it has no method `on`"):
        build_kernels({"_target_": "a.Plugin"}, "cuda")


def test_limits_are_those_of_the_classes_that_the_configuration_names() -> None:
    """Whoever renames a class would otherwise switch its checks off."""
    with Composer() as composer:
        found = [composer.compose([f"attention={name}"]).config["attention"] for name in NAMES]
    assert {node["_target_"] for node in found} == set(limits.LIMITS)
