"""The PagedAttention paper's figures that need no clock: memory of models, shares of the pool, batches, sharing.

Orca and vLLM are presets (conf/preset), lengths are drawn from the bars of its Fig. 11, the pool is its 984 blocks of
16. Every request is there at the start; each step counts once, from step 300 until nobody waits any more.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlab.cost.rank import Rank, token_bytes
from kvlab.model.shape import Shape
from kvlab.model.shapes import Published, Sizes
from kvlab.reproduce import serving
from kvlab.reproduce.frame import Found, Lab, Measure
from kvlab.reproduce.serving import Steps

GIB = 1 << 30
SYSTEMS = {"Orca (Max)": "orca_max", "Orca (Pow2)": "orca_pow2", "Orca (Oracle)": "orca_oracle", "vLLM": "vllm_v0"}
TRACES = {"ShareGPT": "sharegpt_sosp23", "Alpaca": "alpaca_sosp23"}
REQUESTS = {"ShareGPT": 2000, "Alpaca": 6000}
RATED = {"ShareGPT": 1500, "Alpaca": 4500}  # requests at that rate
RATE = {"ShareGPT": 2, "Alpaca": 30}  # requests/s, Fig. 13's
WIDTHS = (2, 4, 6)
PARTS = {
    "token states": "token_state",
    "reservation": "reservation",
    "internal": "internal",
    "external and others": "external",
}
KV_GB = {"OPT-13B": 12, "OPT-66B": 21, "OPT-175B": 264}  # Table 1: an input, of all GPUs together
OPT_175B = Sizes(
    layers=96, q_heads=96, kv_heads=96, head_dim=128, hidden=12288, ffn=49152, vocab=50272, tied=True,
    max_position=2048, rope_theta=10000.0, rms_eps=1e-5, mlp_matrices=2,
)  # fmt: skip


class Load(NamedTuple):
    """What the systems of Figs. 2 and 13 serve, and in which pool."""

    requests: dict[str, int] = REQUESTS
    blocks: int = 984
    block_size: int = 16

    def overrides(self, system: str, trace: str, seed: int) -> list[str]:
        return [
            *POOL, f"block_size={self.block_size}", f"pool_blocks={self.blocks}", f"preset={SYSTEMS[system]}",
            f"workload={TRACES[trace]}", f"workload.num_requests={self.requests[trace]}", f"seed={seed}",
            "engine.max_preemptions=1000000", "engine.max_seqs=512",
        ]  # fmt: skip


AS_PUBLISHED = Load()

# memory_fraction: so that the pool is what the GPU leaves.
POOL = ["model=opt_13b", "gpu=a100_40", "max_len=2048", "cost.memory_fraction=0.92", "cost.kernel=vllm_sosp23"]


def table1(lab: Lab) -> dict[str, Found]:
    how = "Table 1's GB (taken as 2^30) for keys and values, over bytes of a token from the model's shape"
    found: dict[str, Found] = {}
    for model, memory in KV_GB.items():
        shape = _shape(model)
        each = token_bytes(shape, "float16")
        weights = 2 * Rank.of(shape, 1).stored_weights / 1e9
        found[f"{model}: slots"] = Found([memory * GIB / each / 1000], how)
        found[f"{model}: parameters"] = Found([weights], "weights of the shape, 2 bytes each, in 10^9 bytes")
    each = token_bytes(_shape("OPT-13B"), "float16")
    found["OPT-13B: a token"] = Found([each / 1024], "bytes of a token from the shape, in KiB")
    found["OPT-13B: a request of 2,048"] = Found([2048 * each / GIB], "2,048 of them, in GiB")
    return found


def fig2(lab: Lab, load: Load = AS_PUBLISHED) -> dict[str, Found]:
    how = f"preset {{}}, {load.requests['ShareGPT']:,} requests, all there at the start; mean over steps"
    found: dict[str, Found] = {}
    for system, preset in SYSTEMS.items():
        runs = [serve(lab, load, system, "ShareGPT", seed) for seed in lab.seeds]
        found |= {
            f"{system}: {name}": Found([run.share(part) for run in runs], how.format(preset))
            for name, part in PARTS.items()
        }
    return found


def fig13(lab: Lab, load: Load = AS_PUBLISHED) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for trace, count in load.requests.items():
        how = f"preset {{}}, {count:,} requests, all there at the start; sequences on the device, mean over steps"
        for system, preset in SYSTEMS.items():
            runs = [serve(lab, load, system, trace, seed) for seed in lab.seeds]
            found[f"{trace}: {system}"] = Found([run.batch() for run in runs], how.format(preset))
            if system == "vLLM":
                apart = "the same runs; a step that computes prompts and decodes counts as two iterations"
                own = [run.batch_of_iterations() for run in runs]
                found[f"{trace}: vLLM, prompts as iterations of their own"] = Found(own, apart)
        found |= _at_the_papers_rate(lab, load, trace)
    return found


def _at_the_papers_rate(lab: Lab, load: Load, trace: str) -> dict[str, Found]:
    rate = RATE[trace]
    count = RATED[trace]
    how = f"preset vllm_v0, {count:,} Poisson arrivals, to the last; sequences, mean over steps (SIMULATED)"
    extra = [f"workload.rate={rate}", f"workload.num_requests={count}"]
    runs = [serving.to_the_last_arrival(lab, [*load.overrides("vLLM", trace, seed), *extra]) for seed in lab.seeds]
    return {f"{trace}: vLLM, at {rate} requests/s on a modelled A100": Found([run.batch() for run in runs], how)}


def serve(lab: Lab, load: Load, system: str, trace: str, seed: int) -> Steps:
    return serving.saturated(lab, load.overrides(system, trace, seed))


def fig15(lab: Lab) -> dict[str, Found]:
    return _saved_by(lab, "parallel")


def fig15_beams(lab: Lab) -> dict[str, Found]:
    return _saved_by(lab, "beam")


def _saved_by(lab: Lab, kind: str) -> dict[str, Found]:
    how = "experiment=sharing, case {}, 1,000 requests at 7/s (SIMULATED clock): sharing_saving.whole"
    return {
        f"{kind} {width}": Found(
            [_saved(lab, "Alpaca", f"{kind}_{width}", seed) for seed in lab.seeds], how.format(f"{kind}_{width}")
        )
        for width in WIDTHS
    }


def text6_3(lab: Lab) -> dict[str, Found]:
    how = "experiment=sharing, ShareGPT, 200 requests at 0.2/s, case {}"
    cells = {"lowest": "parallel_2", "highest": "parallel_6"}
    return {
        name: Found([_saved(lab, "ShareGPT", case, seed) for seed in lab.seeds], how.format(case))
        for name, case in cells.items()
    }


def _saved(lab: Lab, trace: str, case: str, seed: int) -> float:
    overrides = ["experiment=sharing", f"workload={TRACES[trace]}", f"case={case}", f"seed={seed}"]
    return 100 * float(serving.metrics(lab, overrides)["sharing_saving.whole"])


def _shape(model: str) -> Shape:
    return OPT_175B if model == "OPT-175B" else Published({"name": model}).shape


FIGURES: dict[str, tuple[str, Measure]] = {
    "table1": ("arithmetic", table1),
    "fig2": ("bookkeeping", fig2),
    "fig13": ("bookkeeping", fig13),
    "fig15": ("bookkeeping", fig15),
    "fig15_beams": ("bookkeeping", fig15_beams),
    "text6_3": ("bookkeeping", text6_3),
}
