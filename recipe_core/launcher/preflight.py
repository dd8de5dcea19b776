"""Is this the machine, and is everything there? One line a question, each with a reason and a remedy."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import manifest
from .engine import locate, same_version
from .errors import LauncherError
from .machine import Machine, detect
from .plan import LaunchPlan, Needs, Process, is_path
from .variants import advice

# Drivers reserve a little more or less from release to release; a card of the same kind stays
# within this share.
_MEMORY_TOLERANCE = 0.03
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """``status`` is ok, warn or FAIL; only a FAIL stops the launch."""

    name: str
    status: str
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Preflight:
    """All answers, and what was seen on the way (a measurement records it)."""

    checks: tuple[Check, ...]
    machine: Machine
    engine_version: str | None

    @property
    def ok(self) -> bool:
        """True when nothing stops the launch."""
        return all(check.status != "FAIL" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The answers as ``--json`` prints them."""
        checks = [asdict(check) for check in self.checks]
        return {
            "ok": self.ok,
            "checks": checks,
            "machine": self.machine.to_json(),
            "engine_version": self.engine_version,
        }


def preflight(plan: LaunchPlan, *, own_ports: frozenset[int] = frozenset()) -> Preflight:
    """``own_ports`` are held by this bundle's running servers: busy, and rightly so."""
    machine = detect()
    engine_check, version = check_engine(plan)
    checks = [
        check_files(plan.root),
        *check_machine(needs_here(plan), machine, running=bool(own_ports)),
    ]
    checks += [*check_variants(plan, machine), engine_check]
    checks += [check_model(plan)] if plan.needs_model else []
    checks += [
        check_port(plan, process.port)
        for process in listening(plan)
        if process.port not in own_ports
    ]
    checks += [check_head(plan)] if plan.node else []
    return Preflight(tuple(checks), machine, version)


def needs_here(plan: LaunchPlan) -> Needs:
    """The part of the devices that this node's processes use."""
    if plan.node is None:
        return plan.needs
    here = {device for process in plan.processes for device in process.devices}
    return replace(plan.needs, count=len(here) or 1)


def listening(plan: LaunchPlan) -> tuple[Process, ...]:
    """Processes that take a port here: servers, and on node 0 the trainers' meeting point."""
    return tuple(
        process
        for process in plan.processes
        if process.answers or (process.role == "trainer" and process.node == 0)
    )


def check_head(plan: LaunchPlan) -> Check:
    """Look the address of node 0 up; nothing listens there yet."""
    head = plan.parameters.addresses[0]
    try:
        socket.getaddrinfo(head, None)
    except OSError as error:
        return Check(
            "head",
            "FAIL",
            f"{head!r} is unknown ({error.strerror})",
            "Give node 0's address or name: --head ADDRESS",
        )
    return Check("head", "ok", f"node 0 is {head}; this is node {plan.node} of {plan.nodes}")


def check_files(root: Path) -> Check:
    """Compare the files with what was built."""
    try:
        count, found = manifest.verify(root)
    except LauncherError as error:
        return Check("bundle", "FAIL", error.message, error.hint or "")
    differences = [
        ("missing", found.missing),
        ("changed", found.changed),
        ("added", found.added_code),
    ]
    if not found.sound:
        detail = "; ".join(f"{what}: {_some(names)}" for what, names in differences if names)
        return Check(
            "bundle",
            "FAIL",
            detail,
            "The bundle is not what was built; unpack it again or build it again.",
        )
    if found.added:
        return Check(
            "bundle", "warn", f"{count} files as built; not from the build: {_some(found.added)}"
        )
    return Check("bundle", "ok", f"{count} files as built")


def check_machine(needs: Needs, machine: Machine, *, running: bool = False) -> Iterator[Check]:
    """Compare the devices: kind, number, name, memory."""
    if needs.runtime == "cpu":
        yield Check("device", "ok", f"{machine.cpu_name}, {machine.cpus} CPUs")
        yield check_ram(needs, machine, running=running)
        return
    if machine.runtime != needs.runtime:
        yield _wrong_runtime(needs, machine)
        return
    count = len(machine.devices)
    names = sorted({device.name for device in machine.devices})
    found = f"{count} x {' and '.join(names)}"
    if count < needs.count:
        hint = "Use a machine with enough devices, or plan again for this one with `recipe plan`."
        yield Check(
            "device", "FAIL", f"{found}; the recipe needs {needs.count} x {needs.title}", hint
        )
    elif needs.names and not all(_known(name, needs.names) for name in names):
        hint = f"Expected figures are for {needs.title}; plan again for this device."
        yield Check("device", "warn", f"{found}; the recipe was made for {needs.title}", hint)
    else:
        yield Check("device", "ok", found)
    yield check_device_memory(needs, machine)


def check_variants(plan: LaunchPlan, machine: Machine) -> Iterator[Check]:
    """On other devices than the recipe's, or fewer of them: what the recipe says about such a machine."""
    needs = needs_here(plan)
    known = not needs.names or all(_known(device.name, needs.names) for device in machine.devices)
    enough = needs.runtime == "cpu" or len(machine.devices) >= needs.count
    if machine.runtime == needs.runtime and known and enough:
        return
    if found := advice(plan.variants, machine, plan.nodes, plan.root):
        yield Check("variant", "warn", *found)


def _wrong_runtime(needs: Needs, machine: Machine) -> Check:
    vendor = {"cuda": "an NVIDIA GPU (CUDA)", "rocm": "an AMD GPU (ROCm)"}
    have = vendor.get(machine.runtime, "no GPU")
    why = f" ({'; '.join(machine.notes)})" if machine.notes else ""
    tool = "nvidia-smi" if needs.runtime == "cuda" else "rocm-smi or amd-smi"
    detail = f"the recipe needs {needs.count} x {needs.title}, {vendor[needs.runtime]}; this machine has {have}{why}"
    return Check(
        "device",
        "FAIL",
        detail,
        f"Run it where `{tool}` lists the devices, or plan again for this machine with `recipe plan`.",
    )


def _known(name: str, names: tuple[str, ...]) -> bool:
    return name.casefold() in {known.casefold() for known in names}


def check_device_memory(needs: Needs, machine: Machine) -> Check:
    """Compare each device's memory with what the recipe uses."""
    sizes = [device.memory_bytes for device in machine.devices if device.memory_bytes is not None]
    if not sizes or not needs.memory_bytes:
        return Check(
            "memory",
            "warn",
            "the device does not say how much memory it has"
            if not sizes
            else "the recipe does not say",
        )
    least, wanted = min(sizes), needs.memory_bytes
    used = needs.used_bytes or 0
    if least < used:
        detail = (
            f"{_gib(least)} per device; the recipe uses {_gib(used)}, {_gib(used - least)} more"
        )
        return Check(
            "memory",
            "FAIL",
            detail,
            "Use a device with more memory, or plan again for this one with `recipe plan`.",
        )
    if least < wanted * (1 - _MEMORY_TOLERANCE):
        detail = f"{_gib(least)} per device; the recipe was made for {_gib(wanted)}"
        return Check("memory", "warn", detail, "There may be room for fewer requests than planned.")
    return Check("memory", "ok", f"{_gib(least)} per device, {_gib(used)} planned to be used")


def check_ram(needs: Needs, machine: Machine, *, running: bool) -> Check:
    """Compare free memory with what a recipe for the CPU uses."""
    used = needs.used_bytes or 0
    if machine.available_bytes is None:
        return Check(
            "memory",
            "warn",
            "/proc/meminfo cannot be read, so free memory is unknown",
            "The launcher is made for Linux.",
        )
    detail = f"{_gib(machine.available_bytes)} available, {_gib(used)} planned to be used"
    if machine.available_bytes < used and not running:
        return Check(
            "memory",
            "FAIL",
            detail,
            f"Free {_gib(used - machine.available_bytes)}, or plan a smaller split with `recipe plan`.",
        )
    return Check("memory", "ok", detail)


def check_engine(plan: LaunchPlan) -> tuple[Check, str | None]:
    """Look for the engine: installed, able to serve, of the planned version."""
    engine = plan.engine
    found = locate(engine)
    if found is None:
        detail = f"{engine.program!r} is neither beside this Python nor on PATH"
        return Check("engine", "FAIL", detail, f"Install it: {engine.install}"), None
    if found.missing:
        detail = f"{engine.name} is installed, but it cannot serve without {_some(found.missing)}"
        return Check("engine", "FAIL", detail, f"Install it: {engine.install}"), found.version
    if found.version is None:
        return Check(
            "engine",
            "warn",
            f"{found.program}: version unknown; the recipe is for {engine.name} {engine.version}",
        ), None
    if not same_version(found.version, engine.version):
        detail = f"{engine.name} {found.version}; the recipe is for {engine.version}"
        return Check(
            "engine",
            "warn",
            detail,
            f"Flags and speed may differ; for the planned one: {engine.install}",
        ), found.version
    return Check("engine", "ok", f"{engine.name} {found.version} ({found.program})"), found.version


def check_model(plan: LaunchPlan) -> Check:
    """Look for the model where the parameters say."""
    model = plan.parameters.model
    if not is_path(model):
        return _check_hub(plan, model)
    folder = Path(model)
    if not folder.is_dir():
        return Check(
            "model", "FAIL", f"{model} is not a folder", "Say where the model is: --model FOLDER"
        )
    if not (folder / "config.json").is_file():
        return Check(
            "model", "FAIL", f"{model} has no config.json", "Say where the model is: --model FOLDER"
        )
    if plan.kind == "serving" and not any(
        True
        for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pt")
        for _ in folder.glob(pattern)
    ):
        return Check(
            "model",
            "warn",
            f"{model} has no weight files",
            "The engine will not start unless it makes its own (dummy) weights.",
        )
    return Check("model", "ok", model)


def _check_hub(plan: LaunchPlan, model: str) -> Check:
    environment = {**os.environ, **plan.processes[0].env}
    home = (
        environment.get("HF_HOME")
        or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    )
    cache = Path(environment.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    if (cache / f"models--{model.replace('/', '--')}").is_dir():
        return Check("model", "ok", f"{model} (in {cache})")
    if environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        hint = "Unset HF_HUB_OFFLINE, or give a local folder: --model FOLDER"
        return Check(
            "model",
            "warn",
            f"{model} is not in {cache}, and HF_HUB_OFFLINE forbids the download",
            hint,
        )
    return Check("model", "ok", f"{model} is not in {cache}; the engine downloads it at the start")


def check_port(plan: LaunchPlan, port: int) -> Check:
    """Try whether a server could listen there."""
    host = plan.parameters.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # a server that just stopped leaves TIME_WAIT behind
            probe.bind(address)
    except socket.gaierror as error:
        return Check(
            "port",
            "FAIL",
            f"host {host!r} is unknown ({error.strerror})",
            "Listen on this machine: --host 127.0.0.1",
        )
    except OSError as error:
        return _port_refused(host, port, error)
    return Check("port", "ok", f"{host}:{port} is free")


def _port_refused(host: str, port: int, error: OSError) -> Check:
    if error.errno == errno.EADDRNOTAVAIL:
        return Check(
            "port",
            "FAIL",
            f"{host} is not an address of this machine",
            "Listen on this machine: --host 127.0.0.1",
        )
    reason = (
        "is in use by another program"
        if error.errno == errno.EADDRINUSE
        else f"cannot be used ({error.strerror})"
    )
    return Check(
        "port",
        "FAIL",
        f"port {port} on {host} {reason}",
        f"Choose another: --port {port + 1000 if port < 64000 else 8000}",
    )


def _some(names: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
