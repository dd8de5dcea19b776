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
    USER_GROUP,
    answering_port,
    check_single,
    container_environment,
    container_memory_gib,
    container_mounts,
    container_values,
    device_groups,
    first_process,
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
from recipe_core.targets.pod import container_image, object_name

COMPOSE = "targets/compose/compose.yaml"
# images have curl or Python, not always both
_PROBE = (
    "curl -fsS {url} || python3 -c 'import urllib.request as r; r.urlopen(\"{url}\", timeout=5)'"
)


def compose_files(context: Context) -> dict[str, str]:
    """``compose.yaml``: one service per process.

    Raises:
        NoAnswer: for several nodes, or where no image is known.
    """
    check_single(context)
    services = {service_name(p): _compose_service(context, p) for p in in_start_order(context)}
    if owned := owned_volumes(context):
        services = {OWNER: _volume_owner_service(context, owned), **services}
    value = {"name": object_name(context), "services": services, "volumes": named_volumes(context)}
    return {COMPOSE: to_yaml({key: item for key, item in value.items() if item})}


def _compose_service(context: Context, process: Process) -> dict[str, Any]:
    values = container_values(context, process)
    argv = [fill_placeholders(word, values, IN_COMPOSE) for word in process.argv]
    ports, memory = published_ports(context, process), container_memory_gib(context, process)
    return {
        "image": container_image(context),
        "user": f"${{RECIPE_USER:-{USER_GROUP}}}",
        "entrypoint": argv[:1],
        "command": argv[1:],
        "environment": container_environment(context, process, IN_COMPOSE),
        **(
            {"network_mode": f"service:{service_name(first_process(context))}"}
            if share_a_network(context) and process is not first_process(context)
            else {}
        ),
        **({"ports": ports} if ports else {}),
        **_compose_devices(context, process),
        "shm_size": f"{shm_gib(process)}gb",
        **({"mem_limit": f"{memory}gb"} if memory else {}),
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true", *seccomp_options(context, process)],
        "logging": _compose_logging(),
        "volumes": [
            texts.quote_compose(f"{source}:{path}{':ro' if read_only else ''}")
            for source, path, read_only in container_mounts(context)
        ],
        **({"healthcheck": _service_health_check(context, process)} if process.answers else {}),
        **_service_dependencies(context, process),
        "restart": "unless-stopped",
        "stop_grace_period": f"{supervise.grace_s(context)}s",
    }


def _compose_devices(context: Context, process: Process) -> dict[str, Any]:
    if not process.devices or context.vendor == "cpu":
        return {}
    if context.vendor == "amd":
        return {
            "devices": ["/dev/kfd", "/dev/dri"],
            "group_add": device_groups(context),
        }
    if context.runtime == "xpu":
        return {"devices": ["/dev/dri"], "group_add": device_groups(context)}
    reservation = {
        "driver": context.vendor,
        "device_ids": [str(n) for n in process.devices],
        "capabilities": ["gpu"],
    }
    return {"deploy": {"resources": {"reservations": {"devices": [reservation]}}}}


def _service_health_check(context: Context, process: Process) -> dict[str, Any]:
    url = f"http://127.0.0.1:{answering_port(context, process)}{context.launch.health}"
    looks = supervise.hang_looks(context)
    return {
        "test": ["CMD-SHELL", _PROBE.format(url=url)],
        "interval": f"{looks.period_s}s",
        "timeout": f"{looks.period_s}s",
        "retries": looks.failures,
        "start_period": f"{supervise.start_s(context)}s",
    }


def _service_dependencies(context: Context, process: Process) -> dict[str, Any]:
    """A service starts once its volumes are its own, a router once its servers are ready."""
    owner = (
        {OWNER: {"condition": "service_completed_successfully"}} if owned_volumes(context) else {}
    )
    servers = [p for p in context.launch.processes if p.answers and p.role != "router"]
    behind = servers if process.role == "router" else []
    waits = owner | {service_name(p): {"condition": "service_healthy"} for p in behind}
    return {"depends_on": waits} if waits else {}


def _volume_owner_service(context: Context, owned: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "image": container_image(context),
        "user": "root",
        "entrypoint": ["chown", "-R"],
        "command": [f"${{RECIPE_USER:-{USER_GROUP}}}", *(path for _, path in owned)],
        "network_mode": "none",
        "mem_limit": "1gb",
        "init": True,
        "cap_drop": ["ALL"],
        "cap_add": OWNERS_CAPABILITIES,
        "security_opt": ["no-new-privileges:true"],
        "logging": _compose_logging(),
        "volumes": [texts.quote_compose(f"{source}:{path}") for source, path in owned],
        "restart": "no",
    }


def _compose_logging() -> dict[str, Any]:
    options = {"max-size": f"{LOG_MB}m", "max-file": str(LOG_FILES)}
    return {"driver": "json-file", "options": options}
