"""Dynamo: the configuration of its planner, for a graph that serves this recipe's engine.

The bundle starts Dynamo by its launcher; a DynamoGraphDeployment is the user's. Its planner reads
this file (``--config``), or a DynamoGraphDeploymentRequest has it under ``features.planner``.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import engine, engine_names
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.policies.predictive import PREDICTOR
from recipe_core.scaling.policies.rows import default_of
from recipe_core.targets.context import Context
from recipe_core.targets.layout import replica_devices
from recipe_core.targets.scale.policy import refuse_fields, refuse_policy, whole_seconds

WHERE = "Dynamo's planner"
TIMES = {
    "interval_s": "load_adjustment_interval_seconds",
    "window_s": "throughput_adjustment_interval_seconds",
}
# By limit of the objective: the planner's name, and what it takes where none is stated.
LIMITS = {
    "ttft_ms": ("ttft_ms", 1e3 * default_of("dynamo", "ttft_s")),
    "tpot_ms": ("itl_ms", 1e3 * default_of("dynamo", "itl_s")),
}
_POOLS = ("prefill", "decode")


def planner_settings(context: Context, scaling: Scaling) -> dict[str, Any]:
    """Both rules of the planner, for engines that do prefill and decode.

    Raises:
        NoAnswer: for pools, and for what the planner cannot be told.
    """
    refuse_fields(scaling, WHERE, ("headroom",))
    if any(process.role in _POOLS for process in context.launch.processes):
        raise NoAnswer(
            "the planner scales each pool by itself; what was simulated keeps them together.",
            field="candidate.prefill",
        )
    devices = replica_devices(context.launch)
    limits = {name: context.limits.get(limit) or usual for limit, (name, usual) in LIMITS.items()}
    times = {name: whole_seconds(scaling, field) for field, name in TIMES.items()}
    return {
        "environment": "kubernetes",
        "mode": "agg",
        "optimization_target": "sla",
        "enable_throughput_scaling": True,
        "enable_load_scaling": True,
        **limits,
        "min_endpoint": scaling.min_replicas,
        "max_gpu_budget": scaling.max_replicas * devices,
        "decode_engine_num_gpu": devices,
        "load_predictor": PREDICTOR,
        **{name: seconds for name, seconds in times.items() if seconds is not None},
        **_down_sensitivity(scaling),
    }


def _down_sensitivity(scaling: Scaling) -> dict[str, int]:
    """Return how far below the limits, in percent, engines must be before one of them ends."""
    if scaling.tolerance is None:
        return {}
    percent = 100 * (1 - scaling.tolerance)
    if abs(percent - round(percent)) > 1e-6:
        raise NoAnswer(
            f"tolerance is {scaling.tolerance:g}; the planner takes whole percents.",
            field="options.scaling.tolerance",
            hint=f"Set {round(scaling.tolerance, 2):g}.",
        )
    return {"load_scaling_down_sensitivity": round(percent)}


FILE = "targets/dynamo-planner/planner.yaml"
# Engines that Dynamo's workers run, by what the planner calls them.
BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


def dynamo_planner_files(context: Context) -> dict[str, str]:
    """``planner.yaml``.

    Raises:
        NoAnswer: where the request chose no policy ``dynamo``, for engines that Dynamo does not
            run, pools, and what the planner cannot be told.
    """
    scaling = context.scaling
    if scaling is None:
        raise NoAnswer(
            "Dynamo's planner scales by a policy of its own, which the request has not.",
            field="options.scaling",
            hint="Set options.scaling with policy dynamo.",
        )
    refuse_policy(scaling, "dynamo-planner", "Dynamo's planner")
    settings: dict[str, Any] = {
        "backend": _planner_backend(context),
        **planner_settings(context, scaling),
    }
    return {FILE: to_yaml(settings)}


def _planner_backend(context: Context) -> str:
    """The engine in Dynamo's workers: the recipe's, or the one that it wraps."""
    name = context.engine
    if name in engine_names():
        name = engine(name).wraps or name
    if name not in BACKENDS:
        raise NoAnswer(
            f"Dynamo runs {', '.join(BACKENDS)}, not {context.engine}.", field="candidate.engine"
        )
    return BACKENDS[name]
