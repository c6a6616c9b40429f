"""The settings of a run on a device, as the command line takes them."""

from __future__ import annotations

import pytest

from kvlab.errors import UsageError

pytest.importorskip("hydra", reason="a GPU box need not have it")

from kvlab.harness.compose import Composer


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["device=gpu"], "device=gpu: allowed is cpu, cuda or cuda:N"),
        (["pool_fraction=0.5"], "pool_fraction=0.5: allowed with device=cuda only; give pool_bytes"),
        (["device=cuda", "pool_fraction=1.5"], "pool_fraction=1.5: allowed is a number above 0, at most 1"),
        (["device=cuda", "pool_fraction=0.5", "pool_bytes=1GiB"], "pool_bytes and pool_fraction: both are given"),
        (["device=cuda", "executor=simulated"], "device=cuda: allowed with executor=simulated is cpu"),
        (["engine.cuda_graphs=maybe"], "engine.cuda_graphs=maybe: allowed is true or false"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, words):
    with Composer() as composer, pytest.raises(UsageError) as caught:
        composer.compose(overrides)
    assert str(caught.value).startswith(words)


def test_a_device_and_its_share_are_taken():
    with Composer() as composer:
        config = composer.compose(["device=cuda:1", "pool_fraction=0.8", "engine.cuda_graphs=false"]).config
    assert (config["device"], config["pool_fraction"], config["engine"]["cuda_graphs"]) == ("cuda:1", 0.8, False)
