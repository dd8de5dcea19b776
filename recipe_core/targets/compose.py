"""Containers on one machine: a compose file."""

from __future__ import annotations

from typing import Any

from recipe_core.base import texts
from recipe_core.base.documents import to_yaml
from recipe_core.launch.process import Process
from recipe_core.targets import supervise
from recipe_core.targets.containers import (
    LOG_FILES,
    LOG_MB,
    OWNER,
    OWNERS_CAPABILITIES,
    answering_port,
    check_single,
    container_environment,
    container_memory_gib,
    container_mounts,
    container_values,
    device_groups,
    first_process,
    given_files,
    in_start_order,
    named_volumes,
    owned_volumes,
    published_ports,
    seccomp_options,
    service_name,
    share_a_network,
    shm_gib,
)
from recipe_core.targets.context import Context
from recipe_core.targets.node_script import IN_COMPOSE, fill_placeholders
from recipe_core.targets.pod import container_image, recipe_object

COMPOSE = "targets/compose/compose.yaml"


def compose_files(context: Context) -> dict[str, str]:
    """``compose.yaml``: one service per process.

    Raises:
        NoAnswer: for several nodes, or where no image is known.
    """
    check_single(context)
    services = {service_name(p): _compose_service(context, p) for p in in_start_order(context)}
    if owned := owned_volumes(context):
        services = {OWNER: _volume_owner_service(context, owned), **services}
    value = recipe_object(
        context, "compose", services=services, volumes=named_volumes(context) or None
    )
    return {COMPOSE: to_yaml(value)}


def _compose_service(context: Context, process: Process) -> dict[str, Any]:
    values = container_values(context, process)
    argv = [fill_placeholders(word, values, IN_COMPOSE) for word in process.argv]
    first, looks = first_process(context), supervise.hang_looks(context)
    joins = share_a_network(context) and process is not first
    return recipe_object(
        context,
        "compose-service",
        image=container_image(context),
        program=argv[:1],
        words=argv[1:],
        environment=container_environment(context, process, IN_COMPOSE),
        network=f"service:{service_name(first)}" if joins else None,
        ports=published_ports(context, process) or None,
        **_compose_devices(context, process),
        shm_gib=shm_gib(process),
        memory_gib=container_memory_gib(context, process) or None,
        seccomp=seccomp_options(context, process),
        **_LOGGING,
        mounts=[
            texts.quote_compose(f"{source}:{path}{':ro' if read_only else ''}")
            for source, path, read_only in container_mounts(context)
        ],
        answers=process.answers,
        url=f"http://127.0.0.1:{answering_port(context, process)}{context.launch.health}",
        period_s=looks.period_s,
        failures=looks.failures,
        start_s=supervise.start_s(context) if process.answers else None,
        waits=_service_dependencies(context, process) or None,
        grace_s=supervise.grace_s(context),
    )


_LOGGING = {"log_mb": LOG_MB, "log_files": LOG_FILES}


def _compose_devices(context: Context, process: Process) -> dict[str, Any]:
    """Device files with the groups that own them, or numbers of devices for the vendor's driver."""
    files = given_files(context, process)
    numbers = [str(n) for n in process.devices] if context.vendor != "cpu" and not files else []
    return {
        "devices": files or None,
        "groups": device_groups(context) if files else None,
        "device_ids": numbers or None,
        "vendor": context.vendor,
    }


def _service_dependencies(context: Context, process: Process) -> dict[str, Any]:
    """A service starts once its volumes are its own, a router once its servers are ready."""
    owner = (
        {OWNER: {"condition": "service_completed_successfully"}} if owned_volumes(context) else {}
    )
    servers = [p for p in context.launch.processes if p.answers and p.role != "router"]
    behind = servers if process.role == "router" else []
    return owner | {service_name(p): {"condition": "service_healthy"} for p in behind}


def _volume_owner_service(context: Context, owned: list[tuple[str, str]]) -> dict[str, Any]:
    return recipe_object(
        context,
        "compose-owner",
        image=container_image(context),
        paths=[path for _, path in owned],
        capabilities=OWNERS_CAPABILITIES,
        **_LOGGING,
        mounts=[texts.quote_compose(f"{source}:{path}") for source, path in owned],
    )
