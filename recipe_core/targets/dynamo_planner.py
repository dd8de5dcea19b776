"""Dynamo: the configuration of its planner, for a graph that serves this recipe's engine.

The bundle starts Dynamo by its launcher; a DynamoGraphDeployment is the user's. Its planner reads
this file (``--config``), or a DynamoGraphDeploymentRequest has it under ``features.planner``.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import engine, engine_names
from recipe_core.targets.context import Context
from recipe_core.targets.scale import dynamo
from recipe_core.targets.scale.bounds import refuse_policy

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
    refuse_policy(scaling, ("dynamo",), "Dynamo's planner")
    settings: dict[str, Any] = {
        "backend": _planner_backend(context),
        **dynamo.planner_settings(context, scaling),
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
