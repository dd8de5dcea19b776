"""A verdict on what somebody already has: a request, or an engine's command line."""

from __future__ import annotations

import shlex
from typing import Any

from recipe_core.advice import remedies
from recipe_core.engines.spec import Engine, engine, engine_names
from recipe_core.errors import InputError, NoAnswer
from recipe_core.hardware.catalog import device
from recipe_core.plan import PlanTable, chosen_plan, plan
from recipe_core.request import PlanRequest

DEFAULT_INPUT, DEFAULT_OUTPUT, DEFAULT_CONCURRENCY = 1024, 256, 64
_WEIGHTS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32"}


def check_request(request: PlanRequest, *, folders: bool = True) -> dict[str, Any]:
    """Whether the request's split (or any, when it states none) can run, why not, and the best split when another one is better.

    Returns:
        ``{"ok", "reasons", "candidate", "estimate", "better", "changes"}``.
    """
    table, row = chosen_plan(request, folders=folders)
    candidate, answer = table.candidate(row), table.estimate(row)
    best = plan(request, folders=folders)
    better = _better(best, table, row)
    return {
        "ok": answer["feasible"],
        "reasons": answer["reasons"],
        "candidate": candidate,
        "estimate": answer,
        "better": better,
        "changes": [remedy.to_json() for remedy in remedies(best)],
    }


def _better(best: PlanTable, table: PlanTable, row: int) -> dict[str, Any] | None:
    """The best split, when it is another one than the checked."""
    if not len(best.ranked):
        return None
    top = int(best.ranked[0])
    if best.candidate(top) == table.candidate(row):
        return None
    return {"candidate": best.candidate(top), "estimate": best.estimate(top)}


def request_of_command(command: str, hardware: str) -> tuple[PlanRequest, list[str]]:
    """The request an engine's command line means on a device, with the words that play no part in the estimate.

    Args:
        command: e.g. ``vllm serve MODEL --tensor-parallel-size 8``; words before the program are skipped.
        hardware: a device name, or ``device:count``.

    Raises:
        InputError: when the program is unknown, the model is missing or a value has the wrong type.
        NoAnswer: when an option this estimate depends on has a value it does not model.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the command cannot be split into words: {error}.", field="command") from None
    spec, rest = _program(words)
    options, model, unread = _read_options(spec, rest)
    candidate = _candidate(spec, options)
    name, _, count = hardware.partition(":")
    if count and not count.isdecimal():
        raise InputError(f"{hardware!r} is not a device or device:count.", field="hardware", hint="For example h100-sxm:8.")
    split = candidate["tp"] * candidate["pp"] * candidate["dp"]
    per_node = int(count) if count else max(split, 1) if split > device(name).node.devices else device(name).node.devices
    workload: dict[str, Any] = {"input_tokens": DEFAULT_INPUT, "output_tokens": DEFAULT_OUTPUT, "concurrency": DEFAULT_CONCURRENCY}
    limit = options.get("max_model_len")
    if limit is not None:
        workload |= {
            "max_context": limit,
            "input_tokens": max(1, min(DEFAULT_INPUT, limit // 2)),
            "output_tokens": max(1, min(DEFAULT_OUTPUT, limit // 4)),
        }
    request = {
        "model": model,
        "hardware": {"device": name, "per_node": per_node},
        "workload": workload,
        "candidate": candidate,
    }
    return PlanRequest.parse(request), unread


def _program(words: list[str]) -> tuple[Engine, list[str]]:
    for name in engine_names():
        spec = engine(name)
        if spec.program in words:
            if not spec.options:
                raise NoAnswer(f"{spec.title} command lines are not read by this version.", field="command", hint="Give a request instead.")
            after = words[words.index(spec.program) + 1 :]
            return spec, after[1:] if after[:1] == ["serve"] else after
    programs = ", ".join(engine(name).program for name in engine_names())
    raise InputError("no known engine in the command.", field="command", hint=f"Known programs: {programs}.")


def _read_options(spec: Engine, words: list[str]) -> tuple[dict[str, Any], str, list[str]]:
    """Known options by name, the model, and the words that were not read."""
    by_flag = {flag: name for name, option in spec.options.items() for flag in (option.flag, *option.short)}
    options: dict[str, Any] = {}
    model, unread, waiting = None, [], list(words)
    while waiting:
        word, _, glued = waiting.pop(0).partition("=")
        if word == "--model" or (not word.startswith("-") and model is None):
            model = (glued or (waiting.pop(0) if waiting else "")) if word == "--model" else word
        elif word in by_flag:
            name = by_flag[word]
            switch = spec.options[name].type == "switch"
            options[name] = True if switch else _value(spec, name, glued or (waiting.pop(0) if waiting else ""))
        else:
            unread.append(word)
            if not glued and word.startswith("-") and waiting and not waiting[0].startswith("-"):
                unread.append(waiting.pop(0))
    if not model:
        raise InputError("the command names no model.", field="command", hint="Write it after serve, or as --model.")
    return options, model, unread


def _value(spec: Engine, name: str, text: str) -> Any:
    option = spec.options[name]
    try:
        value = {"int": int, "float": float, "str": str}[option.type](text)
    except ValueError:
        raise InputError(f"{option.flag} takes {option.type}, not {text!r}.", field="command") from None
    spec.argv({name: value})  # the same type and choice check that building uses
    return value


def _candidate(spec: Engine, options: dict[str, Any]) -> dict[str, Any]:
    tp, pp, dp = (options.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline", "data"))
    weights = options.get("quantization") or _WEIGHTS.get(options.get("dtype", "auto"), "auto")
    cache = options.get("kv_cache_dtype", "auto")
    if options.get("enforce_eager"):
        raise NoAnswer("--enforce-eager is not modelled by this version.", field="command", hint="Leave it out to check the rest.")
    candidate = {
        "engine": spec.name,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "ep": tp * dp if options.get("enable_expert_parallel") else 1,
        "weight_dtype": weights,
        "kv_dtype": cache,
        "max_batched_tokens": options.get("max_num_batched_tokens"),
        "max_num_seqs": options.get("max_num_seqs"),
        "memory_fraction": options.get("gpu_memory_utilization"),
        "block_size": options.get("block_size"),
    }
    return {name: value for name, value in candidate.items() if value is not None}
