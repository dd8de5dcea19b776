"""Containers on one machine: a compose file, and the same as docker (or podman) commands."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any

from recipe_core.base import quoting
from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Process
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.fill import IN_COMPOSE, PLAIN, Syntax, fill
from recipe_core.targets.layout import layout
from recipe_core.targets.node_script import VISIBLE
from recipe_core.targets.pod import (
    CACHE,
    GIB,
    ROOT,
    RUN,
    image,
    mounted_model,
    object_name,
    port_values,
)

_BEGIN = """#!/bin/bash
# Argument: docker (the default) or podman.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine="${1:-docker}\""""
_GPUS = """gpus() {  # docker wants the list in quotes of its own, podman CDI device names
    if [ "$engine" = docker ]; then
        printf -- '--gpus "device=%s"' "$1"
    else
        printf -- '--device nvidia.com/gpu=%s ' ${1//,/ }
    fi
}"""
_LOGS = """logs() {  # podman keeps one file, of the size of docker's together
    if [ "$engine" = docker ]; then
        echo "--log-driver json-file --log-opt max-size=%(size)sm --log-opt max-file=%(files)s"
    else
        echo "--log-driver k8s-file --log-opt max-size=%(all)sm"
    fi
}"""
LOG_MB, LOG_FILES = 100, 3  # an engine logs every request; nothing else bounds a container's log
COMPOSE, SCRIPT = "targets/compose/compose.yaml", "targets/docker/run.sh"
BUNDLE = "../.."  # from a target's folder
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# images have curl or Python, not always both
_PROBE = (
    "curl -fsS {url} || python3 -c 'import urllib.request as r; r.urlopen(\"{url}\", timeout=5)'"
)


def compose(context: Context) -> dict[str, str]:
    """``compose.yaml``: one service per process.

    Raises:
        NoAnswer: for several nodes, or where no image is known.
    """
    _check_single(context)
    services = {_name(p): _service(context, p) for p in _started(context)}
    value = {"name": object_name(context), "services": services, "volumes": _named_volumes(context)}
    return {COMPOSE: to_yaml({key: item for key, item in value.items() if item})}


def docker(context: Context) -> dict[str, str]:
    """``run.sh``: one command per process, for docker or, given as argument, podman.

    Raises:
        NoAnswer: for several nodes, or where no image is known.
    """
    _check_single(context)
    logs = _LOGS % {"size": LOG_MB, "files": LOG_FILES, "all": LOG_MB * LOG_FILES}
    lines = [_BEGIN, *([_GPUS] if context.vendor == "nvidia" else []), logs]
    if variable := context.key_variable:
        lines.append(f': "${{{variable}:?{_told(variable)}}}"')
    lines += [f'"$engine" run {_lines(_run(context, p))}' for p in _started(context)]
    return {SCRIPT: "\n".join(lines) + "\n"}


def _check_single(context: Context) -> None:
    if context.nodes > 1:
        raise NoAnswer(
            f"it starts containers on one machine; the recipe uses {context.nodes} nodes.",
            hint="Use Kubernetes or Slurm.",
        )
    if context.runtime not in ("cuda", "rocm", "xpu", "cpu"):
        raise NoAnswer(
            f"passing {context.vendor} devices to a container is not supported here.",
            hint="Start the program on the machine itself."
            if context.vendor == "apple"
            else "Use Kubernetes.",
        )
    image(context)


def _name(process: Process) -> str:
    return process.name.lower()


def _together(context: Context) -> bool:
    """Whether processes call each other, and so share one network as on a bare machine."""
    (unit,) = layout(context.launch)
    return len(unit.leader) > 1


def _started(context: Context) -> list[Process]:
    """Processes in start order: a router comes after the servers behind it."""
    return sorted(context.launch.processes, key=lambda process: process.role == "router")


def _first(context: Context) -> Process:
    """The process whose network the others join."""
    return _started(context)[0]


def _port(context: Context, process: Process) -> int:
    return context.parameters.port + process.port_offset


def _published(context: Context, process: Process) -> list[str]:
    """Port mappings of a process; on a shared network the first service publishes them all."""
    answering = [process]
    if _together(context):
        first = process is _first(context)
        answering = [p for p in context.launch.processes if p.answers] if first else []
    host = _ip(context.parameters.host)
    return [f"{host}:{_port(context, p)}:{_port(context, p)}" for p in answering]


def _ip(host: str) -> str:
    """The address to publish at; raises NoAnswer for a name, which containers cannot have there."""
    try:
        address = ip_address(host)
    except ValueError:
        raise NoAnswer(
            f"a container is published at an IP address, not at {host}.",
            field="parameters.host",
            hint="Set host: 127.0.0.1, or 0.0.0.0 for all.",
        ) from None
    return f"[{address}]" if address.version == 6 else str(address)


def _values(context: Context, process: Process) -> dict[str, str]:
    return {
        "model": mounted_model(context),
        "host": "0.0.0.0",  # noqa: S104 - inside the container; the host publishes on its own
        "port": str(_port(context, process)),
        "root": ROOT,
        "run": RUN,
        "head": "127.0.0.1",
        "node0": "127.0.0.1",
        **port_values(context.launch, context.parameters.port),
    }


def _environment(context: Context, process: Process, syntax: Syntax) -> dict[str, str | None]:
    """The process's variables; None: passed through from the environment of whoever starts it."""
    known = _values(context, process)
    variables: dict[str, str | None] = {"HF_HOME": CACHE}
    variables |= {key: fill(value, known, syntax) for key, value in process.env.items()}
    if not context.model_is_folder:
        variables["HF_TOKEN"] = None
    if (key := context.key_variable) and process.answers:
        # compose itself refuses to start without it; the script does before its first command
        variables[key] = f"${{{key}:?{_told(key)}}}" if syntax is IN_COMPOSE else None
    # These devices are all shown to a container, so processes that share a node are told theirs.
    shared = len(context.launch.processes) > 1 and process.devices
    if context.runtime in ("rocm", "xpu") and shared:
        variables[VISIBLE[context.runtime]] = ",".join(map(str, process.devices))
    return variables


def _told(variable: str) -> str:
    return f"set {variable} to the key that callers send"


def _capabilities(context: Context) -> list[str]:
    """What root of a container keeps: reading and writing folders of the host that others own."""
    return ["DAC_OVERRIDE"] if any(_is_path(source) for source, _, _ in _mounts(context)) else []


def _memory_gib(context: Context, process: Process) -> int | None:
    """The most host memory of a process: its devices' share of the node's; None for all of it."""
    share = context.host_share_bytes(len(process.devices))
    return share // GIB if share else None


def _shm_gib(process: Process) -> int:
    return max(8, 4 * len(process.devices))


def _mounts(context: Context) -> list[tuple[str, str, bool]]:
    """Per mount: source (a folder or a volume's name), path in the container, whether read-only.

    Raises:
        NoAnswer: for a folder that cannot be mounted, and for what is neither folder nor name.
    """
    cache = context.parameters.model_cache or "models"
    folder = [(context.model_source, context.model_source, True)] if context.model_is_folder else []
    files = [(BUNDLE, ROOT, True)] if context.mounted else []
    mounts = [(cache, CACHE, False), *folder, ("run", RUN, False), *files]
    for source, _, _ in mounts:
        if ":" in source or not (_is_path(source) or _VOLUME.fullmatch(source)):
            raise NoAnswer(
                f"{source!r:.80} cannot be mounted in a container.",
                field="parameters.model_cache" if source == cache else "parameters.model",
                hint="Name a folder whose path has no colon, or a volume in letters and digits.",
            )
    return mounts


def _is_path(source: str) -> bool:
    return source.startswith(("/", "."))


def _named_volumes(context: Context) -> dict[str, dict[str, Any]]:
    return {source: {} for source, _, _ in _mounts(context) if not _is_path(source)}


def _service(context: Context, process: Process) -> dict[str, Any]:
    known = _values(context, process)
    argv = [fill(word, known, IN_COMPOSE) for word in process.argv]
    ports, memory = _published(context, process), _memory_gib(context, process)
    return {
        "image": image(context),
        "entrypoint": argv[:1],
        "command": argv[1:],
        "environment": _environment(context, process, IN_COMPOSE),
        **(
            {"network_mode": f"service:{_name(_first(context))}"}
            if _together(context) and process is not _first(context)
            else {}
        ),
        **({"ports": ports} if ports else {}),
        **_compose_devices(context, process),
        "shm_size": f"{_shm_gib(process)}gb",
        **({"mem_limit": f"{memory}gb"} if memory else {}),
        "init": True,
        "cap_drop": ["ALL"],
        **({"cap_add": kept} if (kept := _capabilities(context)) else {}),
        "security_opt": ["no-new-privileges:true", *_unconfined(context, process)],
        "logging": {
            "driver": "json-file",
            "options": {"max-size": f"{LOG_MB}m", "max-file": str(LOG_FILES)},
        },
        "volumes": [
            quoting.compose(f"{source}:{place}{':ro' if read else ''}")
            for source, place, read in _mounts(context)
        ],
        **({"healthcheck": _health(context, process)} if process.answers else {}),
        **_waits(context, process),
        "restart": "unless-stopped",
        "stop_grace_period": f"{supervise.grace_s(context)}s",
    }


def _unconfined(context: Context, process: Process) -> list[str]:
    """AMD's runtime needs system calls that the default seccomp profile blocks."""
    return ["seccomp=unconfined"] if context.vendor == "amd" and process.devices else []


def _compose_devices(context: Context, process: Process) -> dict[str, Any]:
    if not process.devices or context.vendor == "cpu":
        return {}
    if context.vendor == "amd":
        return {
            "devices": ["/dev/kfd", "/dev/dri"],
            "group_add": ["video", "render"],
        }
    if context.runtime == "xpu":
        return {"devices": ["/dev/dri"], "group_add": ["video", "render"]}
    reservation = {
        "driver": context.vendor,
        "device_ids": [str(n) for n in process.devices],
        "capabilities": ["gpu"],
    }
    return {"deploy": {"resources": {"reservations": {"devices": [reservation]}}}}


def _health(context: Context, process: Process) -> dict[str, Any]:
    url = f"http://127.0.0.1:{_port(context, process)}{context.launch.health}"
    looks = supervise.hang(context)
    return {
        "test": ["CMD-SHELL", _PROBE.format(url=url)],
        "interval": f"{looks.period_s}s",
        "timeout": f"{looks.period_s}s",
        "retries": looks.failures,
        "start_period": f"{supervise.start_s(context)}s",
    }


def _waits(context: Context, process: Process) -> dict[str, Any]:
    """A router starts once the servers behind it are ready."""
    servers = [p for p in context.launch.processes if p.answers and p.role != "router"]
    if process.role != "router" or not servers:
        return {}
    return {"depends_on": {_name(p): {"condition": "service_healthy"} for p in servers}}


def _run(context: Context, process: Process) -> list[str]:
    """Words of one ``docker run``, without the program."""
    known = _values(context, process)
    argv = [fill(word, known, PLAIN) for word in process.argv]
    options = [
        "--detach",
        "--name",
        f"{object_name(context)}-{_name(process)}",
        "--restart",
        "unless-stopped",
        "--stop-timeout",
        str(supervise.grace_s(context)),
        "--init",
        "--cap-drop=ALL",
        *(f"--cap-add={name}" for name in _capabilities(context)),
        "--security-opt=no-new-privileges",
        *(f"--security-opt={name}" for name in _unconfined(context, process)),
        _Shell("$(logs)"),
    ]
    if memory := _memory_gib(context, process):
        options += ["--memory", f"{memory}g"]
    if _together(context) and process is not _first(context):
        options += ["--network", f"container:{object_name(context)}-{_name(_first(context))}"]
    options += [word for port in _published(context, process) for word in ("--publish", port)]
    options += _docker_devices(context, process)
    options += ["--shm-size", f"{_shm_gib(process)}g"]
    for source, place, read in _mounts(context):
        is_volume = source in _named_volumes(context)
        volume = f"{object_name(context)}-{source}" if is_volume else source
        mount = f"{volume}:{place}{':ro' if read else ''}"
        options += ["--volume", _Shell(f'"$PWD":{place}:ro') if source == BUNDLE else mount]
    for key, value in _environment(context, process, PLAIN).items():
        options += ["--env", key if value is None else f"{key}={value}"]
    return [*options, "--entrypoint", argv[0], image(context), *argv[1:]]


def _docker_devices(context: Context, process: Process) -> list[str]:
    if not process.devices or context.vendor == "cpu":
        return []
    if context.vendor == "amd":
        groups = ["--group-add", "video", "--group-add", "render"]
        return ["--device=/dev/kfd", "--device=/dev/dri", *groups]
    if context.runtime == "xpu":
        return ["--device=/dev/dri", "--group-add", "video", "--group-add", "render"]
    return [_Shell(f"$(gpus {','.join(map(str, process.devices))})")]


class _Shell(str):
    """A word that the shell still has to expand."""


def _lines(words: list[str]) -> str:
    """Words as a command, one option per line."""
    lines: list[str] = []
    for word in words:
        shown = word if isinstance(word, _Shell) else quoting.shell(word)
        if lines and not word.startswith(("-", "$(")):
            lines[-1] += f" {shown}"
        else:
            lines.append(shown)
    return " \\\n    ".join(lines)
