"""What holds of every estimate, whatever is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from recipe_core.estimates.serving.starts import DOUBT
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec, MoeMlp
from recipe_core.recipe.figures import is_pooled_estimate
from recipe_core.request.serving_workload import LOADS

Request = dict[str, Any]
Answer = dict[str, Any]
Check = Callable[[Request, Answer], bool | None]
"""Whether an answer has a property; None where it does not apply."""

READ_SHARE = 0.65
"""Of the weights of a dense model, what a token must read: embeddings are looked up, and small
tensors may stay in the processor's cache."""


@cache
def spec(name: str) -> ModelSpec:
    """A model of the catalog."""
    return load_model_spec(name)


def near(value: float, expected: float, rounding: float = 1e-9) -> bool:
    return math.isclose(value, expected, rel_tol=rounding, abs_tol=1e-15)


def numbers(value: Any) -> Iterator[float]:
    """Every number of an answer."""
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def finite(_: Request, answer: Answer) -> bool:
    return all(0 <= value < math.inf for value in numbers(answer))


def _figures(answer: Answer) -> Any:
    return answer.get("serving") or answer["training"]


def in_band(_: Request, answer: Answer) -> bool:
    figures = {**answer["cost"], **answer["energy"], **_figures(answer)}
    ends = [
        (figures[name], low, high)
        for name, of in answer["intervals"].items()
        for low, high in (answer["bands"][name], *of.values())
    ]
    return len(ends) > 0 and all(low <= value <= high for value, low, high in ends)


_PARTS = ("weights_bytes", "kv_needed_bytes", "activations_bytes", "runtime_bytes")


def memory_adds_up(_: Request, answer: Answer) -> bool:
    memory = answer["memory"]
    if "training" in answer:
        stages = memory.get("stages") or [memory]
        parts = [name for name in stages[0] if name.endswith("_bytes")]
        skipped = {"total_bytes", "usable_bytes", "capacity_bytes", "host_bytes"}
        sums = [sum(stage[name] for name in parts if name not in skipped) for stage in stages]
        measured = answer["training"]["memory_by_stage_bytes"]
        return near(max(sums), memory["total_bytes"]) and all(map(near, sums, measured))
    pools = [memory, *(memory.get("stages") or ())]
    return all(near(sum(pool[name] for name in _PARTS), pool["total_bytes"]) for pool in pools)


def times_add_up(_: Request, answer: Answer) -> bool:
    parts = answer["breakdown_s"]
    if "training" in answer:
        return near(sum(parts["step"].values()), answer["training"]["step_s"])
    phases = (("decode", "tpot_s"), ("prefill", "ttft_s"))
    return all(near(sum(parts[name].values()), answer["serving"][time]) for name, time in phases)


def starts_in_memory(request: Request, answer: Answer) -> bool | None:
    """Weights leave some of the memory that may be used for a cache; encoders keep none."""
    doubted = any(note.startswith(DOUBT) for note in answer["notes"])
    if "training" in answer or doubted or spec(request["model"]).is_encoder:
        return None
    memory = answer["memory"]
    return bool(memory["kv_cache_bytes"] > 0 and memory["weights_bytes"] < memory["usable_bytes"])


def _requests_per_s(request: Request, answer: Answer) -> float:
    serving = answer["serving"]  # embeddings and scores have no other output
    tokens = 1 if is_pooled_estimate(answer) else request["workload"]["output_tokens"]
    return serving["output_tokens_per_s"] / tokens


def little(request: Request, answer: Answer) -> bool | None:
    """Requests in flight are throughput times latency; all of a full queue stay at first."""
    mode = request["workload"].get("mode")
    if mode not in ("closed", "static"):
        return None
    in_flight = _requests_per_s(request, answer) * answer["serving"]["request_latency_s"]
    return near(in_flight, request["workload"][LOADS[mode]], 1e-6)


def serves_what_arrives(request: Request, answer: Answer) -> bool | None:
    if request["workload"].get("mode") != "open":
        return None
    return near(_requests_per_s(request, answer), request["workload"]["request_rate"], 1e-6)


def reads_weights(request: Request, answer: Answer) -> bool | None:
    """Every step reads the weights of every stage, at no more than the data sheet's bandwidth."""
    workload, model = request["workload"], spec(request["model"])
    plain = workload["kind"] == "serving" and "speculative" not in workload
    plain = plain and not is_pooled_estimate(answer)  # which decodes nothing
    if not plain or any(isinstance(layer.mlp, MoeMlp) for layer, _ in model.kinds):
        return None
    memory = answer["memory"]
    weights = sum(stage["weights_bytes"] for stage in memory.get("stages") or [memory])
    looked_up = 0 if model.tied_embeddings else model.vocabulary * model.hidden
    read = READ_SHARE * weights * (1 - looked_up / model.parameters)
    bandwidth = device_profile(request["hardware"]["device"]).memory_bandwidth_bytes_per_s.value
    return bool(answer["serving"]["tpot_s"] >= read / bandwidth)


def _devices(request: Request) -> int:
    candidate = request["candidate"]
    return int(candidate["tp"] * candidate["pp"] * candidate["dp"])


def below_peak(request: Request, answer: Answer) -> bool:
    """No more products than the devices' fastest units make."""
    if "training" in answer:
        return bool(answer["training"]["mfu"] <= 1)
    workload = request["workload"]
    model, place = spec(request["model"]), device_profile(request["hardware"]["device"])
    prompt = workload["input_tokens"] * (1 - workload.get("prefix_hit", 0.0))
    outputs = 0 if is_pooled_estimate(answer) else workload["output_tokens"]
    tokens = _requests_per_s(request, answer) * (prompt + outputs)
    ends = 2 * model.vocabulary * model.hidden
    flops = 2 * max(model.active_parameters - ends, 0) * tokens
    peak = max(rate.value for rate in place.peak_flops_per_s.values())
    return bool(flops <= _devices(request) * peak)


def per_device(request: Request, answer: Answer) -> bool:
    figures = _figures(answer)
    name = "output_tokens_per_s" if "serving" in answer else "tokens_per_s"
    return near(figures[f"{name}_per_gpu"] * _devices(request), figures[name])


def trains_its_batch(request: Request, answer: Answer) -> bool | None:
    if "training" not in answer:
        return None
    workload, figures = request["workload"], answer["training"]
    tokens = workload["global_batch"] * workload["sequence_length"]
    return near(figures["tokens_per_s"] * figures["step_s"], tokens)


PROPERTIES: dict[str, Check] = {
    "finite and not negative": finite,
    "within its band": in_band,
    "memory parts add up": memory_adds_up,
    "times add up": times_add_up,
    "weights leave room for a cache": starts_in_memory,
    "throughput per device": per_device,
    "Little's law (closed, static)": little,
    "open loop serves what arrives": serves_what_arrives,
    "decoding reads the weights": reads_weights,
    "below the peak rate": below_peak,
    "a step trains its batch": trains_its_batch,
}
