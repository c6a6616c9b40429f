"""One long request among many short ones. The others are the same, prompt for prompt, however long it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvlab.errors import UsageError
from kvlab.request import Request
from kvlab.workload.knobs import Config, number, shown, whole
from kvlab.workload.make import Workload
from kvlab.workload.make import make as make_others
from kvlab.workload.prompts import draw_prompt

OWN = ("tenant_prompt_len", "tenant_output_len", "tenant_after")
OTHERS = ("mean", "sigma", "cap", "prompt_share", "num_requests", "rate")
TENANT = 1 << 41  # stands where an id does when its prompt is drawn, and is none


def make(config: Config, *, seed: int, max_len: int, vocab: int | None, temperature: float = 0.0) -> Workload:
    """Requests of the resolved node tenant.yaml. Raises UsageError for a wrong knob, or a tenant that cannot fit."""
    _check_names(config)
    prompt_len, output_len = whole(config, "tenant_prompt_len"), whole(config, "tenant_output_len")
    if prompt_len + output_len > max_len:
        raise UsageError(
            f"workload.tenant_prompt_len={prompt_len}: with tenant_output_len={output_len}, allowed is at most "
            f"max_len={max_len} together"
        )
    node = {"name": "lognormal", **{knob: config[knob] for knob in OTHERS}}
    others = make_others(node, seed=seed, max_len=max_len, vocab=vocab, temperature=temperature)
    if not others.requests:
        raise UsageError(f"workload.cap={config['cap']}: none of the others fits into max_len={max_len}")
    place = round(number(config, "tenant_after", 0, 1) * (len(others.requests) - 1))
    own_seed, prompt = draw_prompt(seed, TENANT, prompt_len, vocab)
    at = others.requests[place]
    tenant = Request(at.id, prompt_len, output_len, max_len, at.arrival_s, prompt, temperature, own_seed)
    before, after = others.requests[:place], [replace(r, id=r.id + 1) for r in others.requests[place:]]
    refused = [r if r.id < at.id else r._replace(id=r.id + 1) for r in others.refused]
    return Workload([*before, tenant, *after], refused, _about(others, tenant))


def _check_names(config: Config) -> None:
    allowed = ("_target_", "name", *OWN, *OTHERS)
    if unknown := [knob for knob in config if knob not in allowed]:
        raise UsageError(f"workload.{unknown[0]}: workload tenant has no such knob; it has {', '.join(allowed[2:])}")
    if missing := [knob for knob in (*OWN, *OTHERS) if knob not in config]:
        raise UsageError(f"workload.{missing[0]}={shown(None)}: workload tenant needs it")
    if config["cap"] is None:
        raise UsageError("workload.cap=null: allowed is a whole number; the others are to be short")


def _about(others: Workload, tenant: Request) -> dict[str, Any]:
    words = f"one of {tenant.prompt_len} + {tenant.output_len} tokens among others of {others.info['source']}"
    kept = ("synthetic", "arrivals", "rate_per_s")
    return {"source": words, "tenant_id": tenant.id, **{key: others.info[key] for key in kept}}
