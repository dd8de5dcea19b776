"""How a serving split is started: processes, their options, and how to ask them.

Each engine has a module here, found by its name. Options are typed and rendered to argv, never to a
string.
"""

from __future__ import annotations

from dataclasses import replace

from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.serving import Setting, no_such_cache
from recipe_core.launch.process import Deployment, Launch, LaunchFolder
from recipe_core.launch.user_options import check_environment
from recipe_core.models.tensors import MATRIX_ROLES, Quantization
from recipe_core.models.variants import stored_as

MODULES = LaunchFolder("recipe_core.launch.serving", "launch", "(deployment: Deployment) -> Launch")


def launch_deployment(deployment: Deployment) -> Launch:
    """The processes of a deployment.

    Raises:
        NoAnswer: when the engine cannot be started this way: weights that the checkpoint does not
            hold, a cache dtype it cannot be told, groups that do not pack into nodes; or when no
            module starts the engine.
        InputError: for the user's own options and variables.
    """
    setting = with_made_checkpoint(deployment)
    engine = setting.engine
    if setting.needs_other_checkpoint:
        stored = setting.model.weight_dtype
        dtype = setting.weight_dtype
        message = f"{setting.model.name} stores {stored} weights, which {engine.title} cannot load"
        checkpoint = stored_as(setting.model.name, dtype)
        advice = f"Name {checkpoint}, which" if checkpoint else "Name a checkpoint that"
        hint = (
            f"{advice} stores {dtype}, have it made (options.compression), or use "
            "weight_dtype: auto."
        )
        raise NoAnswer(f"{message} as {dtype}.", field="candidate.weight_dtype", hint=hint)
    if not setting.cache_can_be_had:
        message = f"{no_such_cache(setting)}."
        raise NoAnswer(message, field="candidate.kv_dtype", hint="Use kv_dtype: auto.")
    launch_engine = MODULES.function(engine.name, engine.launcher)
    environment = check_environment(deployment.environment)
    checked = replace(deployment, setting=setting, environment=environment)
    started: Launch = launch_engine(checked)
    return started


def with_made_checkpoint(deployment: Deployment) -> Setting:
    """The setting with the checkpoint that is made: stored in its format, as engines see it."""
    compression, setting = deployment.compression, deployment.setting
    if compression is None or compression.format == "gguf":
        return setting
    stored = Quantization(setting.weight_dtype, MATRIX_ROLES, scheme=compression.tool)
    return replace(setting, model=replace(setting.model, quantization=stored))


__all__ = ["Deployment", "Launch", "launch_deployment"]
