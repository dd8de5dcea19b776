"""Containers on one machine: docker (or podman) commands, and what compose shares with them."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any

from recipe_core.base import texts
from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Process
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units, port_values
from recipe_core.targets.node_script import IN_COMPOSE, PLAIN, VISIBLE, Syntax, fill_placeholders
from recipe_core.targets.objects import make_script
from recipe_core.targets.pod import (
    CACHE,
    HOME,
    ROOT,
    RUN,
    USER,
    container_image,
    mounted_model,
    object_name,
)
from recipe_core.targets.resources import GIB

LOG_MB, LOG_FILES = 100, 3  # an engine logs every request; nothing else bounds a container's log
SCRIPT = "targets/docker/run.sh"
BUNDLE = "../.."  # from a target's folder
USER_GROUP = f"{USER}:{USER}"  # of processes in containers, unless RECIPE_USER names others
OWNER = "prepare"  # the service that gives volumes to that user
OWNERS_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def docker_files(context: Context) -> dict[str, str]:
    """``run.sh``: one command per process, for docker or, given as argument, podman.

    Raises:
        NoAnswer: for several nodes, or where no image is known.
    """
    check_single(context)
    commands = []
    if owned := owned_volumes(context):
        commands.append(f'"$engine" run {_join_option_lines(_chown_words(context, owned))}')
    for p in in_start_order(context):
        commands += [
            *_device_choice_line(context, p),
            f'"$engine" run {_join_option_lines(_docker_run_words(context, p))}',
        ]
    key = context.key_variable
    script = make_script(
        "run",
        nvidia=context.vendor == "nvidia",
        log_mb=LOG_MB,
        log_files=LOG_FILES,
        logs_mb=LOG_MB * LOG_FILES,
        key=key,
        key_message=key_message(key) if key else "",
        usual=USER_GROUP,
        commands="\n".join(commands),
    )
    return {SCRIPT: script}


def check_single(context: Context) -> None:
    """Raise NoAnswer for several nodes, unknown images, and devices no container is given."""
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
    container_image(context)


def service_name(process: Process) -> str:
    return process.name.lower()


def share_a_network(context: Context) -> bool:
    """Return whether processes call each other, and so share one network as on a bare machine."""
    (unit,) = launch_units(context.launch)
    return len(unit.leader) > 1


def in_start_order(context: Context) -> list[Process]:
    """Processes in start order: a router comes after the servers behind it."""
    return sorted(context.launch.processes, key=lambda process: process.role == "router")


def first_process(context: Context) -> Process:
    return in_start_order(context)[0]


def answering_port(context: Context, process: Process) -> int:
    """Count the port of a process from the first one."""
    return context.parameters.port + process.port_offset


def published_ports(context: Context, process: Process) -> list[str]:
    """Port mappings of a process; on a shared network the first service publishes them all."""
    answering = [process]
    if share_a_network(context):
        is_first = process is first_process(context)
        answering = [p for p in context.launch.processes if p.answers] if is_first else []
    host = _publish_address(context.parameters.host)
    return [f"{host}:{answering_port(context, p)}:{answering_port(context, p)}" for p in answering]


def _publish_address(host: str) -> str:
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


def container_values(context: Context, process: Process) -> dict[str, str]:
    return {
        "model": mounted_model(context),
        "host": "0.0.0.0",  # noqa: S104 - inside the container; the host publishes on its own
        "port": str(answering_port(context, process)),
        "root": ROOT,
        "run": RUN,
        "head": "127.0.0.1",
        "node0": "127.0.0.1",
        **port_values(context.launch, context.parameters.port),
    }


def container_environment(
    context: Context, process: Process, syntax: Syntax
) -> dict[str, str | None]:
    """The process's variables; None: passed through from the environment of whoever starts it."""
    values = container_values(context, process)
    # USER: torch looks it up, and no entry of passwd has this user's number
    variables: dict[str, str | None] = {"HF_HOME": CACHE, "HOME": HOME, "USER": "recipe"}
    variables |= {
        key: fill_placeholders(value, values, syntax) for key, value in process.env.items()
    }
    if not context.model_is_folder:
        variables["HF_TOKEN"] = None
    if (key := context.key_variable) and process.answers:
        # compose itself refuses to start without it; the script does before its first command
        variables[key] = f"${{{key}:?{key_message(key)}}}" if syntax is IN_COMPOSE else None
    # These devices are all shown to a container, so processes that share a node are told theirs.
    shared = len(context.launch.processes) > 1 and process.devices
    if context.runtime in ("rocm", "xpu") and shared:
        variables[VISIBLE[context.runtime]] = ",".join(map(str, process.devices))
    return variables


def key_message(variable: str) -> str:
    return f"set {variable} to the key that callers send"


def container_memory_gib(context: Context, process: Process) -> int | None:
    """The most host memory of a process: its devices' share of the node's; None for all of it."""
    share = context.host_share_bytes(len(process.devices))
    return share // GIB if share else None


def shm_gib(process: Process) -> int:
    """Size the shared memory of a process, in GiB (assumed: 4 a device, 8 at least)."""
    return max(8, 4 * len(process.devices))


def container_mounts(context: Context) -> list[tuple[str, str, bool]]:
    """Per mount: source (a folder or a volume's name), path in the container, whether read-only.

    Raises:
        NoAnswer: for a folder that cannot be mounted, and for what is neither folder nor name.
    """
    cache = context.parameters.model_cache or "models"
    folder = [(context.model_source, context.model_source, True)] if context.model_is_folder else []
    files = [(BUNDLE, ROOT, True)] if context.mounted else []
    mounts = [(cache, CACHE, False), *folder, ("run", RUN, False), ("home", HOME, False), *files]
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


def named_volumes(context: Context) -> dict[str, dict[str, Any]]:
    return {source: {} for source, _, _ in container_mounts(context) if not _is_path(source)}


def seccomp_options(context: Context, process: Process) -> list[str]:
    return ["seccomp=unconfined"] if context.vendor == "amd" and process.devices else []


def _docker_volume(context: Context, source: str) -> str:
    """A volume under the recipe's name; a folder as it is."""
    return f"{object_name(context)}-{source}" if source in named_volumes(context) else source


def owned_volumes(context: Context) -> list[tuple[str, str]]:
    """Volumes that the engine writes to, which are root's when they are made, and their places.

    Folders of the host are left as they are.
    """
    return [
        (source, path)
        for source, path, read_only in container_mounts(context)
        if not read_only and not _is_path(source)
    ]


def _chown_words(context: Context, owned: list[tuple[str, str]]) -> list[str]:
    """Words of the ``docker run`` that does the same."""
    volumes = [
        word
        for source, path in owned
        for word in ("--volume", f"{_docker_volume(context, source)}:{path}")
    ]
    return [
        "--rm",
        "--user",
        "root",
        "--network=none",
        "--cap-drop=ALL",
        *(f"--cap-add={name}" for name in OWNERS_CAPABILITIES),
        "--security-opt=no-new-privileges",
        *volumes,
        "--entrypoint",
        "chown",
        container_image(context),
        "-R",
        _Shell('"$user"'),
        *(path for _, path in owned),
    ]


def device_groups(context: Context) -> list[str]:
    """Numbers of the host's groups that may open its devices: the image's names are others'."""
    return [str(group) for group in context.parameters.device_groups]


def given_files(context: Context, process: Process) -> list[str]:
    """Files of devices that a container is given all of; none where it is given some by number."""
    if not process.devices:
        return []
    if context.vendor == "amd":
        return ["/dev/kfd", "/dev/dri"]
    return ["/dev/dri"] if context.runtime == "xpu" else []


def _docker_run_words(context: Context, process: Process) -> list[str]:
    """Words of one ``docker run``, without the program."""
    values = container_values(context, process)
    argv = [fill_placeholders(word, values, PLAIN) for word in process.argv]
    options = [
        "--detach",
        "--name",
        f"{object_name(context)}-{service_name(process)}",
        "--restart",
        "unless-stopped",
        "--stop-timeout",
        str(supervise.grace_s(context)),
        "--init",
        "--user",
        _Shell('"$user"'),
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        *(f"--security-opt={name}" for name in seccomp_options(context, process)),
        _Shell('"${logs[@]}"'),
    ]
    if memory := container_memory_gib(context, process):
        options += ["--memory", f"{memory}g"]
    if share_a_network(context) and process is not first_process(context):
        options += [
            "--network",
            f"container:{object_name(context)}-{service_name(first_process(context))}",
        ]
    options += [word for port in published_ports(context, process) for word in ("--publish", port)]
    options += _docker_devices(context, process)
    options += ["--shm-size", f"{shm_gib(process)}g"]
    for source, path, read_only in container_mounts(context):
        mount = f"{_docker_volume(context, source)}:{path}{':ro' if read_only else ''}"
        options += ["--volume", _Shell(f'"$PWD":{path}:ro') if source == BUNDLE else mount]
    for key, value in container_environment(context, process, PLAIN).items():
        options += ["--env", key if value is None else f"{key}={value}"]
    return [*options, "--entrypoint", argv[0], container_image(context), *argv[1:]]


def _docker_devices(context: Context, process: Process) -> list[str]:
    if not process.devices or context.vendor == "cpu":
        return []
    if files := given_files(context, process):
        groups = [word for group in device_groups(context) for word in ("--group-add", group)]
        return [*(f"--device={file}" for file in files), *groups]
    return [_Shell('"${devices[@]}"')]


def _device_choice_line(context: Context, process: Process) -> list[str]:
    """The line before a command that says which devices it gets."""
    if context.vendor != "nvidia" or not process.devices:
        return []
    return [f"gpus {','.join(map(str, process.devices))}"]


class _Shell(str):
    """A word that the shell still has to expand."""


def _join_option_lines(words: list[str]) -> str:
    """Words as a command, one option per line."""
    lines: list[str] = []
    for word in words:
        shown = word if isinstance(word, _Shell) else texts.quote_shell(word)
        if lines and not word.startswith(("-", '"${')):
            lines[-1] += f" {shown}"
        else:
            lines.append(shown)
    return " \\\n    ".join(lines)
