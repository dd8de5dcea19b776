"""Ray Serve: ``ray.serve.llm`` starts the engine itself, by the launch's options and its policy."""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.texts import PLACEHOLDER
from recipe_core.request.scaling import Scaling
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units
from recipe_core.targets.monitoring import warm_up_s
from recipe_core.targets.names import cluster_names
from recipe_core.targets.pod import recipe_object
from recipe_core.targets.replica_words import ReplicaWords

# Ray Serve scales by requests that run or wait in a replica or on the way to it; its names are
# those of ``AutoscalingConfig`` of Ray 2.5x.
WORDS = ReplicaWords(
    title="Ray Serve",
    name="ray-serve",
    metric="in-flight",
    fixed="num_replicas",
    scaled="autoscaling_config",
    target="target_ongoing_requests",
)


def ray_deployment_replicas(scaling: Scaling) -> dict[str, Any]:
    """The part of a deployment's configuration that sets its number of replicas.

    Raises:
        NoAnswer: for another policy, and for what Ray Serve cannot be told.
    """
    config = WORDS.write_replicas(scaling)
    if scaling.window_s == 0:
        raise NoAnswer("Ray Serve averages over more than 0 s.", field="options.scaling.window_s")
    return config


FILE = "targets/ray-serve/serve.yaml"
ENGINE = "vllm"  # the only one that ray.serve.llm starts
# Ray's own server listens, names the model and places ranks; there the engine has none of these.
_RAYS = {
    "host",
    "port",
    "served_model_name",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "headless",
    "distributed_executor_backend",
}
_DATA_PARALLEL = "data_parallel_size"


def ray_serve_files(context: Context) -> dict[str, str]:
    """``serve.yaml`` for ``serve run`` or ``serve deploy``.

    Raises:
        NoAnswer: for other engines, pools, the engine's own data parallelism, policies of scaling
            that are not Ray Serve's, and where callers need a key.
    """
    _check_ray_engine(context)
    value = ray_serve_config(context)
    if context.parameters.api_key_secret:
        raise NoAnswer(
            "Ray Serve itself answers, and asks no caller for a key; VLLM_API_KEY changes nothing.",
            field="parameters.api_key_secret",
            hint="Use another target, or a gateway that checks callers before Ray's proxy.",
        )
    return {FILE: to_yaml(value)}


def _check_ray_engine(context: Context) -> None:
    if context.engine != ENGINE:
        raise NoAnswer(
            f"ray.serve.llm starts {ENGINE}, not {context.engine}.", field="candidate.engine"
        )
    if any(p.role not in ("server", "worker") for p in context.launch.processes):
        raise NoAnswer(
            "prefill and decode pools need a router, which this target has not.",
            field="candidate.prefill",
        )
    if context.launch.options.get(_DATA_PARALLEL, 1) > 1:
        raise NoAnswer(
            "ray.serve.llm runs engine data parallelism with another application builder.",
            field="candidate.dp",
        )


def ray_serve_config(context: Context) -> dict[str, Any]:
    """The file that ``serve deploy`` reads."""
    supervision = context.supervision
    return recipe_object(
        context,
        "ray-serve",
        host=context.parameters.host,
        port=context.parameters.port,
        model=context.launch.api_model,
        source=context.model_source,
        accelerator=None if context.slice_of else cluster_names().ray.names.get(context.device),
        options=_ray_engine_options(context),
        replicas=_ray_replica_config(context),
        period_s=supervise.hang_looks(context).period_s,
        timeout_s=supervise.ray_timeout_s(context),
        drain_s=supervision.drain_s,
        starts=supervision.crash_budget,
        environment=_ray_environment(context) or None,
    )


def _ray_environment(context: Context) -> dict[str, str]:
    """Variables of an engine; Ray knows its nodes' addresses, so values that name one are left out.

    Raises:
        NoAnswer: for a value with a dollar sign. Ray expands variables in such values when it
            starts a worker, and knows no way to write the sign itself.
    """
    variables = context.launch.processes[0].env
    environment = {k: value for k, value in variables.items() if not PLACEHOLDER.search(value)}
    for name, value in environment.items():
        if "$" in value:
            raise NoAnswer(
                f"Ray would expand the $ in the value of {name}.",
                field=f"options.environment.{name}",
                hint="Use another target, or a value without it.",
            )
    return environment


def _ray_engine_options(context: Context) -> dict[str, Any]:
    options = {
        name: value
        for name, value in context.launch.options.items()
        if name not in _RAYS and value is not False
    }
    if context.nodes > 1:
        options["distributed_executor_backend"] = "ray"
    return options


def _ray_replica_config(context: Context) -> dict[str, Any]:
    """The number of replicas: by the request's policy, else by the load of the estimate."""
    if context.scaling is not None:
        return ray_deployment_replicas(context.scaling)
    p, copies = context.parameters, launch_units(context.launch)[0].copies
    if p.min_replicas == p.max_replicas:
        return {"num_replicas": copies * p.min_replicas}
    bounds = {"min_replicas": copies * p.min_replicas, "max_replicas": copies * p.max_replicas}
    load = context.workload.get("concurrency")
    target = {"target_ongoing_requests": max(1, round(load / copies))} if load else {}
    delays = {"upscale_delay_s": 30, "downscale_delay_s": warm_up_s(context)}
    return {"autoscaling_config": {**bounds, **target, **delays}}
