"""Random requests with a stated split, each with seven neighbours that differ in one thing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from typing import Any

from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import engine, engine_names
from recipe_core.hardware.cluster import device, device_names, in_nodes
from recipe_core.model.catalog import catalog_ids, load_model
from recipe_core.model.spec import ModelSpec
from recipe_core.request.serving_workload import LOADS

Request = dict[str, Any]
LOAD_RANGES = {"closed": (1, 2048), "open": (0.02, 200.0), "static": (1, 512), "offline": (1, 5000)}
LONGEST = 131_072
ONE_TOKEN, DOUBLED = "one token more", "doubled"


@cache
def spec(name: str) -> ModelSpec:
    """A model of the catalog."""
    return load_model(name)


def draw(seed: int, index: int) -> dict[str, Request]:
    """Request ``index`` of a run and its neighbours, by what differs; "base" is the request."""
    rng = random.Random(f"{seed}/{index}")
    base = _training(rng) if rng.random() < 0.2 else _serving(rng)
    neighbours = TRAINING if base["workload"]["kind"] == "training" else SERVING
    return {"base": base, **{name: change(base) for name, change in neighbours.items()}}


# Requests


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _whole(rng: random.Random, low: int, high: int) -> int:
    return round(_log_uniform(rng, low, max(low, high)))


def _hardware(rng: random.Random) -> dict[str, Any]:
    return in_nodes(rng.choice(device_names()), 8, 16)


def _tp(rng: random.Random, model: ModelSpec, capacity: float, bytes_each: float) -> int:
    """A random degree, but seldom one whose weights cannot fit."""
    tp = rng.choice((1, 1, 2, 4, 8))
    while tp < 8 and model.parameters * bytes_each > 0.8 * capacity * tp and rng.random() < 0.9:
        tp *= 2
    return tp


def _serving(rng: random.Random) -> Request:
    name, hardware = rng.choice(catalog_ids()), _hardware(rng)
    model, place = spec(name), device(hardware["device"])
    runs = [one for one in engine_names() if place.runtime in engine(one).runtimes]
    engines = runs or engine_names()
    stored = 1.0 if model.weight_dtype.startswith("fp8") else 2.0
    tp = _tp(rng, model, place.usable_memory_bytes, stored)
    pp, dp = rng.choice((1, 1, 1, 2, 4)), rng.choice((1, 1, 2, 4, 8))
    ep = tp * dp if model.is_moe and rng.random() < 0.4 else 1
    candidate = {"engine": rng.choice(engines), "tp": tp, "pp": pp, "dp": dp, "ep": ep}
    if rng.random() < 0.2:
        candidate["kv_dtype"] = "fp8"
    if rng.random() < 0.1:
        candidate["max_batched_tokens"] = rng.choice((512, 2048, 8192, 32_768))
    mode = rng.choice(("closed", "closed", "open", "static", "offline"))
    longest = min(model.max_context, LONGEST) - 2
    input_tokens = _whole(rng, 1, longest - 1)
    load = _log_uniform(rng, *LOAD_RANGES[mode])
    workload = {
        "kind": "serving",
        "mode": mode,
        "input_tokens": input_tokens,
        "output_tokens": _whole(rng, 1, min(longest - input_tokens, 8192)),
        LOADS[mode]: load if mode == "open" else round(load),
    }
    if rng.random() < 0.2:
        workload["prefix_hit"] = round(rng.uniform(0, 0.95), 2)
    if rng.random() < 0.1:
        acceptance = round(rng.uniform(0.3, 0.9), 2)
        workload["speculative"] = {"tokens": rng.randint(1, 4), "acceptance": acceptance}
    return {"model": name, "hardware": hardware, "workload": workload, "candidate": candidate}


def _training(rng: random.Random) -> Request:
    name, hardware = rng.choice(catalog_ids()), _hardware(rng)
    model, place = spec(name), device(hardware["device"])
    dp, micro_batch = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 4))
    candidate = {
        "engine": rng.choice(list(training_data().frameworks)),
        "tp": _tp(rng, model, place.usable_memory_bytes, 4.0),
        "pp": rng.choice((1, 1, 2, 4)),
        "dp": dp,
        "micro_batch": micro_batch,
        "zero_stage": rng.choice((0, 1, 2, 3)),
        "recompute": rng.choice(("none", "selective", "full")),
    }
    workload = {
        "kind": "training",
        "method": rng.choice(("pretrain", "finetune", "lora")),
        "sequence_length": 64 * _whole(rng, 2, min(model.max_context - 1, 32_768) // 64),
        "global_batch": dp * micro_batch * rng.choice((2, 4, 8, 16, 32)),
    }
    return {"model": name, "hardware": hardware, "workload": workload, "candidate": candidate}


# Neighbours

Change = Callable[[Request], Request]


def _changed(part: str, change: Callable[[dict[str, Any]], None]) -> Change:
    def apply(base: Request) -> Request:
        out = deepcopy(base)
        change(out[part])
        return out

    return apply


def _longer(field: str) -> Change:
    return _changed("workload", lambda part: part.update({field: part[field] + 1}))


def _twice(field: str) -> Change:
    return _changed("candidate", lambda part: part.update({field: 2 * part[field]}))


def _stated(field: str, value: Any) -> Change:
    return _changed("candidate", lambda part: part.update({field: value}))


def _more_ranks(field: str) -> Change:
    """A doubled degree; experts that are shared stay shared by all."""

    def change(part: dict[str, Any]) -> None:
        part[field] *= 2
        if part["ep"] > 1:
            part["ep"] = part["tp"] * part["dp"]

    return _changed("candidate", change)


def _twice_the_load(workload: dict[str, Any]) -> None:
    workload[LOADS[workload["mode"]]] *= 2


SERVING: dict[str, Change] = {
    "input + 1": _longer("input_tokens"),
    "output + 1": _longer("output_tokens"),
    "load doubled": _changed("workload", _twice_the_load),
    "tp doubled": _more_ranks("tp"),
    "dp doubled": _more_ranks("dp"),
    "fp8": _stated("weight_dtype", "fp8"),
    "bf16": _stated("weight_dtype", "bf16"),
}
TRAINING: dict[str, Change] = {
    "sequence + 1": _longer("sequence_length"),
    "batch doubled": _changed(
        "workload", lambda part: part.update(global_batch=2 * part["global_batch"])
    ),
    "tp doubled": _twice("tp"),
    "dp doubled": _twice("dp"),
    "fp8": _stated("precision", "fp8"),
    "all recomputed": _stated("recompute", "full"),
    "all divided": _stated("zero_stage", 3),
}


def draws(seed: int, count: int) -> Iterator[dict[str, Request]]:
    """The first requests of a run, each with its neighbours."""
    return (draw(seed, index) for index in range(count))
