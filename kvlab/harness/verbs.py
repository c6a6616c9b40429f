"""The verbs of the command `kvlab`: their names, what they are for, where they are, and what `kvlab --help` says.

A verb is a module with add_arguments(parser) and run(args) -> exit status; its module is imported when it is used.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    name: str
    arguments: str
    help: str
    module: str
    examples: tuple[str, ...]


VERBS = (
    Verb(
        "run",
        "[NAME=VALUE ...]",
        "one run: a strategy serves a workload",
        "kvlab.harness.run",
        (
            "kvlab run strategy=vattention max_len=2048 seed=1",
            "kvlab run model=tiny dtype=float64 workload=fixed workload.num_requests=8 --json",
            "kvlab run executor=simulated model=llama_3_8b gpu=h100 dtype=bfloat16",
        ),
    ),
    Verb(
        "sweep",
        "[NAME=VALUE,VALUE ...]",
        "every combination of the values, each a run",
        "kvlab.harness.sweep",
        (
            "kvlab sweep strategy=contiguous,paged,vattention block_size=8,16,32 seed='range(0,3)'",
            "kvlab sweep 'strategy=glob(*)' model=tiny timing=false --dry-run",
            "kvlab sweep --resume multirun/2030-01-31/12-00-00 --retry-failed",
            "kvlab sweep experiment=capacity hydra/launcher=submitit_slurm hydra.launcher.partition=cpu",
        ),
    ),
    Verb(
        "report",
        "DIR ...",
        "tables and figures from the runs in directories",
        "kvlab.harness.report",
        (
            "kvlab report multirun/2030-01-31/12-00-00",
            "kvlab report DIR --rows strategy --cols block_size --value tokens_per_s",
            "kvlab report AFTER --against BEFORE --value tokens_per_s",
            "kvlab report DIR DIR --csv runs.csv",
        ),
    ),
    Verb(
        "reproduce",
        "NAME",
        "published numbers beside ours",
        "kvlab.harness.reproduce",
        ("kvlab reproduce article",),
    ),
    Verb(
        "config",
        "show [NAME=VALUE ...]",
        "the configuration of a run, every value resolved",
        "kvlab.harness.config",
        ("kvlab config show strategy=vattention max_len=2048", "kvlab config show preset=vllm_v1 --json"),
    ),
    Verb(
        "strategies",
        "",
        "the strategies that are installed, and what each can do",
        "kvlab.harness.strategies",
        ("kvlab strategies", "kvlab strategies --json"),
    ),
    Verb(
        "check",
        "NAME",
        "the contract against a strategy: random lives that a memory remembers",
        "kvlab.harness.check",
        (
            "kvlab check paged",
            "kvlab check vattention --seed 17 --steps 400",
            "kvlab check strategy._target_=my.module.Mine --seeds 50",
        ),
    ),
    Verb(
        "new-strategy",
        "NAME",
        "a package with a strategy of your own, which passes the contract at once",
        "kvlab.harness.new_strategy",
        ("kvlab new-strategy my_arena", "kvlab new-strategy my_arena --dir ~/strategies/my_arena"),
    ),
    Verb(
        "generate",
        "--prompt TEXT",
        "text from the model under a strategy",
        "kvlab.harness.generate",
        ("kvlab generate --prompt 'The capital of France is' --max-tokens 32 strategy=vattention",),
    ),
    Verb(
        "bench",
        "NAME",
        "what a part of kvlab costs on this machine: bookkeeping, kernels, and more",
        "kvlab.harness.bench",
        (
            "kvlab bench bookkeeping",
            "kvlab bench bookkeeping --only paged,token_pool --json",
            "kvlab bench kernels dtype=bfloat16 length=2048 block_sizes=16,64",
            "kvlab bench compiled --out experiments/gpu_variants.md",
            "kvlab bench tune device=cuda block_sizes=16",
        ),
    ),
    Verb("fetch", "model", "download the model", "kvlab.harness.fetch", ("kvlab fetch model",)),
    Verb(
        "doctor",
        "",
        "what works on this machine, and what to do about the rest",
        "kvlab.harness.doctor",
        ("kvlab doctor",),
    ),
    Verb(
        "demo",
        "",
        "three strategies on a real model at equal bytes: tables and figures",
        "kvlab.harness.demo",
        ("kvlab demo",),
    ),
)
OVERRIDES = """\
Overrides are NAME=VALUE; a sweep takes several values: a,b,c or range(0,3) or choice(a,b) or glob(*).
  strategy, model, workload, admission, victim, preemption, forecast, eviction, attention, experiment, tracking
                                             names: a wrong one lists those that exist
  preset                                     a real system's strategy, axes and settings; what is given beside it wins:
    orca_max, orca_pow2, orca_oracle, vllm_v0, vllm_v1, sglang, lightllm, vattention, hf_dynamic
  seed, max_len, block_size, page_group_bytes, dtype, timing, pool_bytes (720MiB) or pool_blocks
  device=cuda                                a GPU; pool_fraction: the pool as a share of what it leaves
  executor=simulated                         a GPU that is not there: gpu, vmm, cost (names), gpu.NAME, cost.NAME,
                                             kv_dtype, tensor_parallel; docs/simulation.md
  workload.NAME, model.NAME, strategy.NAME   what the chosen one has: workload.num_requests=64 workload.rate=2.5
  engine.max_seqs, engine.chunk, engine.token_budget, engine.max_preemptions, engine.wait_for_prefix, engine.queue,
    engine.fork, engine.clock, engine.temperature, engine.threads, engine.cuda_graphs, engine.memory_map (for a picture)
  slo.ttft_s, slo.tpot_s                     what counts as served well: limits in seconds
  hydra.run.dir=DIR, hydra.sweep.dir=DIR     where results go
  hydra/launcher=submitit_slurm, submitit_local, ray
                                             a sweep on other machines; hydra.launcher.NAME; docs/clusters.md"""
WITH_OVERRIDES = ("run", "sweep", "generate", "config")


def usage() -> str:
    """What `kvlab --help` prints."""
    width = max(len(f"{verb.name} {verb.arguments}") for verb in VERBS)
    verbs = "\n".join(f"  {f'{verb.name} {verb.arguments}':{width}}  {verb.help}" for verb in VERBS)
    examples = "\n".join(f"  {verb.examples[0]}" for verb in VERBS)
    return f"""\
usage: kvlab VERB ...   (kvlab VERB --help says more; kvlab --version)

The lab bench for KV-cache memory management: the memory strategy is the only thing that changes.

{verbs}

{OVERRIDES}

Exit status: 0 ok, 1 failed, 2 refused or wrongly used, 130 interrupted.

examples:
{examples}"""
