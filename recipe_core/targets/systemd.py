"""systemd: a unit that starts the bundle's launcher and keeps it running.

The launcher keeps the servers; systemd keeps the launcher, through reboots too. The unit is a
template, whose instance is the path of the bundle: so the file names no place. What confines it
holds under systemd of a user and of the machine alike; ``machine.conf`` is a drop-in for the latter
alone, which also gives up root.
"""

from __future__ import annotations

from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.objects import make_script

FOLDER = "targets/systemd"


def systemd_files(context: Context) -> dict[str, str]:
    """The template unit, for systemd of a user or of the machine, and a drop-in for the latter."""
    return {
        f"{FOLDER}/{context.name}@.service": systemd_unit(context),
        f"{FOLDER}/machine.conf": make_script("machine", name=context.name),
    }


def systemd_unit(context: Context) -> str:
    """The unit's text; the launcher tells systemd when it is ready, and that it still looks."""
    token = None if context.model_is_folder else "HF_TOKEN"
    variables = ["PATH", token, context.key_variable, "RECIPE_ARGUMENTS"]
    model_cache = context.parameters.model_cache
    cache = model_cache.replace("%", "%%") if model_cache and model_cache.startswith("/") else None
    return make_script(
        "unit",
        **context.supervision.model_dump(),
        name=context.name,
        variables=", ".join(filter(None, variables)),
        nodes=context.nodes,
        several_nodes=context.nodes > 1,
        starts=context.supervision.crash_budget + 1,
        grace_s=supervise.grace_s(context),
        cache=cache or "%C/huggingface",
        cache_path=f" {cache}" if cache else "",
    )
