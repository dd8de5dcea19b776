"""Servers that know nothing of each other: the same command for each, on ports of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import engine_groups, group_processes
from recipe_core.launch.user_options import check_options


def _no_variables(_: int) -> dict[str, str]:
    return {}


def launch_replicas(
    deployment: Deployment,
    program: Sequence[str],
    options: dict[str, Any],
    environment: dict[str, str] | None = None,
    numbered: Callable[[int], dict[str, str]] = _no_variables,
    **api: Any,
) -> Launch:
    """One server a replica: the program with its options and the user's.

    ``environment``: variables of all, without it those by the rules; ``numbered``: those of a
    server by its number. ``api``: the launch's other fields.
    """
    engine = deployment.setting.engine
    extra = check_options(deployment.engine_options, engine, engine.options, options)
    argv = (*program, *engine.argv(options | extra))
    variables = rules.rule_environment(deployment) if environment is None else environment
    started = group_processes(
        engine_groups(deployment),
        lambda group, rank: argv,
        lambda group, rank: variables | numbered(group.number),
    )
    return Launch(processes=tuple(started), options=options | extra, **api)
