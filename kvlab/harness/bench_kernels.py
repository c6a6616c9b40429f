"""`kvlab bench kernels`: how fast attention reads, over rows and over blocks, as a table and a line of JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvlab.bench.pages import PAGES
from kvlab.engine.attentions.limits import LIMITS
from kvlab.errors import UsageError
from kvlab.harness import output, provenance
from kvlab.harness.compose import Composer
from kvlab.harness.kernels_table import markdown
from kvlab.harness.progress import Bar

if TYPE_CHECKING:
    from kvlab.bench.device import Device
    from kvlab.bench.pools import Attention, Plan, Shape

OPS = ("decode", "prefill", "append", "copy")
DTYPES = ("float32", "bfloat16", "float16")
ATTENTIONS = ("kvlab", "sdpa", "flash_attn", "flashinfer")
DENSE = "sdpa_dense"  # not an engine's: torch over equally long rows in one call, on a CPU
LAYOUTS = ("token_major", "head_major")
COMMON = {"attention": "kvlab,sdpa", "threads": "1"}
DEFAULTS = {  # by device; a batch and a length belong together
    "cpu": COMMON | {
        "batch": "32", "length": "512", "q_heads": "9", "kv_heads": "3", "head_dim": "64",
        "dtype": "float32,bfloat16", "block_sizes": "16,64", "ops": "decode",
        "attention": f"kvlab,sdpa,{DENSE}", "layout": "token_major", "pages": "4k",
    },
    "cuda": COMMON | {
        "batch": "64,8", "length": "4096,16384", "q_heads": "32", "kv_heads": "8", "head_dim": "128",
        "dtype": "bfloat16", "block_sizes": "16,64,256", "ops": ",".join(OPS),
    },
}  # fmt: skip
COLD_BYTES = {"cpu": 128 * 2**20, "cuda": 512 * 2**20}  # several times what caches hold
MOST = dict.fromkeys(("batch", "length", "q_heads", "kv_heads", "head_dim", "block_sizes"), 2**31) | {"threads": 1024}
LEAST_S = 0.02  # of a sample
HELP = f"""\
kernels takes its shapes as NAME=VALUE, several values with commas (batch and length go together, pair by pair):
  device=cpu or cuda, batch, length (tokens), q_heads, kv_heads, head_dim, threads
  dtype={",".join(DTYPES)}  block_sizes=16,64  attention={",".join(ATTENTIONS)}  ops={",".join(OPS)}
  with device=cpu also layout={",".join(LAYOUTS)}  pages={",".join(PAGES)} (transparent huge pages, of 2 MiB)
  and attention={DENSE} (torch over rows, all in one call)
  without any: {" ".join(f"{name}={value}" for name, value in DEFAULTS["cpu"].items())}
  device=cuda: {" ".join(f"{name}={value}" for name, value in DEFAULTS["cuda"].items() if name != "threads")}
Its last line is JSON with units in the keys; with --json it is the only one."""


def run(args: argparse.Namespace) -> int:
    values = parse(args.overrides)
    shapes, attentions = _shapes(values), _attentions(values)
    from kvlab.bench.device import open_device
    from kvlab.bench.kernels import measure
    from kvlab.record.others import OthersShare

    device = open_device(values["device"][0], int(values["threads"][0]))
    plan = _plan(values, attentions, device, args.repeats)
    _check_memory(shapes, plan, device)
    others, rows = OthersShare(), []
    with Bar("shapes", len(shapes)) as bar:
        for done, shape in enumerate(shapes):
            rows += measure(shape, plan, _moving(bar, done, len(shapes)))
    facts = _facts(args, values, device, others.share()) | {"left_out": _left_out(plan, values["attention"])}
    text = markdown(facts, rows)
    if args.out:
        output.write(args.out, text)
    if not args.json:
        print(text)
    print(json.dumps({**facts, "rows": rows}))
    return 0


def parse(overrides: list[str]) -> dict[str, list[str]]:
    """Every name with its values. UsageError: an unknown name, or a value that it cannot have."""
    given = dict(_pair(line) for line in overrides)
    device = given.pop("device", "cpu")
    if device not in DEFAULTS:
        raise UsageError(f"device={device}: allowed is {', '.join(DEFAULTS)}")
    if foreign := [name for name in given if name not in DEFAULTS[device]]:
        raise UsageError(f"{foreign[0]}={given[foreign[0]]}: allowed with device=cpu only")
    values = {name: text.split(",") for name, text in (DEFAULTS[device] | given).items()}
    attentions = (*ATTENTIONS, DENSE) if device == "cpu" else ATTENTIONS
    choices = {"dtype": DTYPES, "attention": attentions, "ops": OPS, "layout": LAYOUTS, "pages": PAGES}
    for name, allowed in choices.items():
        if wrong := [value for value in values.get(name, []) if value not in allowed]:
            raise UsageError(f"{name}={wrong[0]}: allowed is {', '.join(allowed)}")
    for name, most in MOST.items():
        if wrong := [value for value in values[name] if not _is_whole(value) or not 1 <= int(value) <= most]:
            raise UsageError(f"{name}={wrong[0]}: allowed is a whole number from 1 to {most}")
    for name in ("q_heads", "kv_heads", "head_dim", "threads", "layout", "pages"):
        if len(values.get(name, [])) > 1:
            raise UsageError(f"{name}={','.join(values[name])}: allowed is one value")
    if int(values["q_heads"][0]) % int(values["kv_heads"][0]):
        raise UsageError(f"q_heads={values['q_heads'][0]}: allowed is a multiple of kv_heads={values['kv_heads'][0]}")
    return {"device": [device], **values}


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _pair(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals or name not in ("device", *DEFAULTS["cpu"]):
        raise UsageError(f"{line}: allowed is NAME=VALUE with one of device, {', '.join(DEFAULTS['cpu'])}")
    return name, value


def _shapes(values: dict[str, list[str]]) -> list[Shape]:
    from kvlab.bench.pools import Shape

    batches, lengths = values["batch"], values["length"]
    pairs = max(len(batches), len(lengths))
    if {len(batches), len(lengths)} - {1, pairs}:
        raise UsageError(f"batch={','.join(batches)} length={','.join(lengths)}: allowed are as many, or one of either")
    batches, lengths = (x * pairs if len(x) == 1 else x for x in (batches, lengths))
    q_heads, kv_heads, head_dim = (int(values[name][0]) for name in ("q_heads", "kv_heads", "head_dim"))
    return [
        Shape(int(batch), int(length), q_heads, kv_heads, head_dim, dtype)
        for dtype in values["dtype"]
        for batch, length in zip(batches, lengths, strict=True)
    ]


def _plan(values: dict[str, list[str]], attentions: dict[str, Attention], device: Device, repeats: int) -> Plan:
    from kvlab.bench import pages
    from kvlab.bench.moves import moves_on
    from kvlab.bench.pools import Plan

    (name,) = values["device"]
    if name == "cpu":
        pages.check(values["pages"][0])
    return Plan(
        device=name,
        attentions=attentions,
        moves=moves_on(name),
        ops=tuple(values["ops"]),
        block_sizes=tuple(int(size) for size in values["block_sizes"]),
        clock=device.clock,
        repeats=repeats,
        least_s=LEAST_S,
        cold_bytes=COLD_BYTES[name],
        tile=_tile(values),
        pages=values["pages"][0] if name == "cpu" else None,
    )


def _tile(values: dict[str, list[str]]) -> int:
    with Composer() as composer:
        tile: int = composer.compose([f"layout={values.get('layout', ['token_major'])[0]}"]).config["layout"]["tile"]
    return tile


def _left_out(plan: Plan, asked: list[str]) -> list[str]:
    """In words, what was asked for that an attention cannot do."""
    return [f"{name} (it takes layout=token_major)" for name in asked if name not in plan.attentions] + [
        f"{name} with blocks of {size} (allowed are multiples of {attention.block_multiple})"
        for name, attention in plan.attentions.items()
        for size in plan.block_sizes
        if size % attention.block_multiple
    ]


def _check_memory(shapes: list[Shape], plan: Plan, device: Device) -> None:
    """UsageError: what is measured takes more than is free."""
    from kvlab.bench.pools import needed_bytes

    free = provenance.available_bytes() if device.free_bytes is None else device.free_bytes
    for shape in shapes:
        needed = needed_bytes(shape, plan)
        if free is not None and needed > free:
            sizes = ",".join(map(str, plan.block_sizes))
            raise UsageError(
                f"batch={shape.batch} length={shape.length} block_sizes={sizes}: "
                f"it needs about {needed:,} bytes, free are {free:,}"
            )


def _attentions(values: dict[str, list[str]]) -> dict[str, Attention]:
    """By name; without one that does not know the layout."""
    from kvlab.bench.dense import DenseSdpa
    from kvlab.bench.pools import Attention
    from kvlab.engine.kernels import build_kernels

    found, (device,) = {}, values["device"]
    with Composer() as composer:
        for name in values["attention"]:
            if name == DENSE:
                if values["layout"] == ["token_major"]:
                    found[name] = Attention(DenseSdpa(), rows_only=True)
                continue
            node = composer.compose([f"attention={name}"]).config["attention"]
            limits = LIMITS.get(node["_target_"])
            multiple = limits.block_multiple if limits and device == "cuda" else 1
            found[name] = Attention(build_kernels(node, device), multiple)
    return found


def _facts(
    args: argparse.Namespace, values: dict[str, list[str]], device: Device, share: float | None
) -> dict[str, Any]:
    brief, versions = provenance.brief("torch", "triton"), provenance.versions()
    on_cpu = f"{brief['cpu']}, {brief['cores']} cores"
    return {
        "bench": "kernels",
        "device": values["device"][0],
        "machine": f"{device.name}, {on_cpu}" if device.name else on_cpu,
        "clock": device.clock_words,
        "threads": int(values["threads"][0]),
        "layout": values.get("layout", ["token_major"])[0],
        "pages": values["pages"][0] if "pages" in values else None,
        "repeats": args.repeats,
        "others_cpu_share": share,
        **{name: brief[name] for name in ("torch", "triton", "python", "commit")},
        "dirty": versions["dirty"],
        "command": " ".join(["kvlab bench kernels", *args.overrides, f"--repeats {args.repeats}"]),
    }


def _moving(bar: Bar, done: int, total: int) -> Callable[[int, int], None]:
    return lambda part, parts: bar.to(done + part / parts, total)
