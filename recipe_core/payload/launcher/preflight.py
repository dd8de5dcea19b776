"""Checks the machine, the files, the engine, the model and the ports before a launch."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .claims import Memory, Refusal, refused, show_gib
from .client import api_headers
from .engine import locate, same_version
from .errors import LauncherError
from .files import digest, verify_manifest
from .holders import holders
from .machine import Device, Machine, detect_machine
from .plan import VARIANT, LaunchPlan, Listed, Needs, Process, is_model_path
from .portability import answer_support
from .sections import is_loopback

# Drivers reserve a little more or less from release to release; a card of the same kind stays
# within this share.
_MEMORY_TOLERANCE = 0.03
_LOCAL = "Listen on this machine: --host 127.0.0.1"
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")


@dataclass(frozen=True, slots=True)
class Check:
    """``status`` is ok, warn or FAIL; only a FAIL stops the launch."""

    name: str
    status: str
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Preflight:
    """All checks, and what they read (a measurement records it)."""

    checks: tuple[Check, ...]
    machine: Machine
    engine_version: str | None

    @property
    def ok(self) -> bool:
        return all(check.status != "FAIL" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The checks as ``--json`` prints them."""
        checks = [asdict(check) for check in self.checks]
        return {
            "ok": self.ok,
            "checks": checks,
            "machine": self.machine.to_json(),
            "engine_version": self.engine_version,
        }


def measurement_head(plan: LaunchPlan, checked: Preflight, now: datetime) -> dict[str, Any]:
    """Return the head of every ``measurement.json``: its recipe, machine and engine."""
    return {
        "schema_version": 1,
        "created": now.astimezone(timezone.utc).isoformat(timespec="seconds"),
        "recipe": plan.name,
        "recipe_digest": digest(plan.root),
        "machine": checked.machine.to_json(),
        "engine": {
            "name": plan.engine.name,
            "version": checked.engine_version,
            "planned_version": plan.engine.version,
        },
    }


def preflight(plan: LaunchPlan, *, own_ports: frozenset[int] = frozenset()) -> Preflight:
    """Run every check; ``own_ports`` are rightly busy with this bundle's servers.

    Of a bundle that was changed nothing else is checked: that would run what its files name.
    """
    machine, files = detect_machine(), check_files(plan.root)
    if files.status == "FAIL":
        return Preflight((files,), machine, None)
    engine_check, version = check_installed_engine(plan)
    checks = [
        files,
        *(
            _with_holders(check, plan.needs.runtime)
            for check in check_machine(needs_here(plan), machine, running=bool(own_ports))
        ),
    ]
    if unmet(needs_here(plan), machine, running=True):
        checks += check_variants(plan.choices, machine, plan.nodes, plan.root)
    checks += [engine_check, *check_kernels(plan, machine, version)]
    if plan.needs_model:
        checks.append(check_model(plan))
    ports = [process.port for process in listening(plan)]
    checks += [check_port_free(plan, port) for port in ports if port not in own_ports]
    if plan.node:
        checks.append(check_head(plan))
    checks += check_key(plan)
    return Preflight(tuple(checks), machine, version)


def check_key(plan: LaunchPlan, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Yield who may ask the servers: nothing starts without a key that the bundle needs."""
    api, host = plan.api, plan.parameters.host
    try:
        headers = api_headers(api, environment)
    except LauncherError as error:
        yield Check("key", "FAIL", f"{error.field} {error.message}".rstrip("."), error.hint or "")
        return
    if headers:
        yield Check("key", "ok", f"callers send the key in {api.key_variable}")
    elif api.key_needed:
        detail = f"{api.key_variable} is not set, and the servers would answer anybody"
        hint = f"Set it to the key that callers send: export {api.key_variable}=KEY"
        yield Check("key", "FAIL", detail, hint)
    elif plan.kind == "serving" and not is_loopback(host):
        hint = "Put what checks callers in front, or listen on 127.0.0.1."
        if api.key_variable:
            hint = f"Set {api.key_variable} to a key that callers have to send."
        yield Check("key", "warn", f"whoever reaches {host} may use the servers", hint)


def needs_here(plan: LaunchPlan) -> Needs:
    """The needs of this node's processes alone, in the environment that they would get."""
    needs = plan.needs
    if needs.claim is not None and plan.processes:
        environment = {**os.environ, **plan.processes[0].env}
        needs = replace(needs, claim=needs.claim.within(environment))
    if plan.node is None:
        return needs
    devices = {device for process in plan.processes for device in process.devices}
    return replace(needs, count=len(devices) or 1)


def listening(plan: LaunchPlan) -> tuple[Process, ...]:
    """Processes that listen here: servers, and on node 0 the trainers' rendezvous."""
    return tuple(
        process
        for process in plan.processes
        if process.answers or (process.role == "trainer" and process.node == 0)
    )


def check_head(plan: LaunchPlan) -> Check:
    """Check that the address of node 0 resolves; nothing listens there yet."""
    head = plan.parameters.addresses[0]
    try:
        socket.getaddrinfo(head, None)
    except OSError as error:
        hint = "Set it to the address or name of node 0: --head ADDRESS"
        return Check("head", "FAIL", f"{head!r} does not resolve ({error.strerror})", hint)
    return Check("head", "ok", f"node 0 is {head}; this is node {plan.node} of {plan.nodes}")


def check_files(root: Path) -> Check:
    """Compare the files with the manifest."""
    try:
        count, findings = verify_manifest(root)
    except LauncherError as error:
        return Check("bundle", "FAIL", error.message, error.hint or "")
    differences = [
        ("missing", findings.missing),
        ("changed", findings.changed),
        ("added", findings.added),
    ]
    if not findings.sound:
        detail = "; ".join(
            f"{kind}: {_join_first_names(names)}" for kind, names in differences if names
        )
        hint = "The bundle has been changed; unpack it again or build it again."
        if not findings.missing and not findings.changed:
            hint = "Remove what was added; files of your own belong in run/."
        return Check("bundle", "FAIL", detail, hint)
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
    present = f"{count} x {' and '.join(names)}"
    if count < needs.count:
        hint = "Use a machine with enough devices, or plan again for this one with `recipe plan`."
        detail = f"{present}; the recipe needs {needs.count} x {needs.title}"
        yield Check("device", "FAIL", detail, hint)
    elif needs.names and not all(_is_listed_device(name, needs.names) for name in names):
        hint = f"The prediction is for {needs.title}; plan again for this device."
        yield Check("device", "warn", f"{present}; the recipe is for {needs.title}", hint)
    else:
        yield Check("device", "ok", present)
    yield check_device_memory(needs, machine, running=running)


def unmet(
    needs: Needs, machine: Machine, *, exact: bool = True, running: bool = False
) -> str | None:
    """Say why a machine does not meet the condition of a choice; None where it does.

    ``exact``: other devices than the named ones do not. ``running``: whatever uses its memory now.
    """
    checks = check_machine(needs, machine, running=running)
    failed = next((check for check in checks if check.status == "FAIL"), None)
    if failed is not None:
        return failed.detail
    if needs.at_most is not None and len(machine.devices) > needs.at_most:
        return f"it is for at most {needs.at_most} x {needs.title}"
    listed = all(_is_listed_device(device.name, needs.names) for device in machine.devices)
    return f"it is for {needs.title}" if exact and needs.names and not listed else None


def check_variants(
    choices: Sequence[Listed], machine: Machine, nodes: int, bundle: Path
) -> Iterator[Check]:
    """The recipe's variants for a machine that is not its own; nothing where it has none."""
    variants = [choice for choice in choices if choice.kind == VARIANT]
    pairs = [(choice, needs) for choice in variants for needs in choice.needs]
    fitting = [pair for pair in pairs if unmet(pair[1], machine, running=True) is None]
    titles = ", ".join(dict.fromkeys(choice.title for choice, _ in fitting or pairs))
    if fitting:
        hardware = f"{fitting[0][1].device}:{max(len(machine.devices), 1) * nodes}"
        hint = f"Build its bundle: recipe resolve {bundle} --hardware {hardware} -o OTHER.zip"
        if started := next((choice.name for choice, _ in fitting if not choice.advised), None):
            hint = f"`up` takes it: --choice {started}"
        noun = "variant" if len(fitting) == 1 else "variants"
        yield Check("variant", "warn", f"for {hardware} the recipe has the {noun} {titles}", hint)
    elif titles:
        detail = f"none of the recipe's variants ({titles}) is for this machine"
        yield Check("variant", "warn", detail, "Plan again for it: `recipe plan`.")


def _wrong_runtime(needs: Needs, machine: Machine) -> Check:
    vendor = {
        "cuda": "an NVIDIA GPU (CUDA)",
        "rocm": "an AMD GPU (ROCm)",
        "xpu": "an Intel GPU (XPU)",
        "metal": "an Apple GPU (Metal)",
    }
    present = vendor.get(machine.runtime, "no GPU")
    if machine.notes:
        present += f" ({'; '.join(machine.notes)})"
    required = f"{needs.count} x {needs.title}, {vendor[needs.runtime]}"
    tools = {"cuda": "nvidia-smi", "xpu": "xpu-smi discovery", "metal": "system_profiler"}
    tool = tools.get(needs.runtime, "rocm-smi or amd-smi")
    return Check(
        "device",
        "FAIL",
        f"the recipe needs {required}; this machine has {present}",
        f"Run it where `{tool}` lists the devices, or plan again for this machine with "
        "`recipe plan`.",
    )


def _is_listed_device(name: str, names: tuple[str, ...]) -> bool:
    return name.casefold() in {listed_name.casefold() for listed_name in names}


def check_device_memory(needs: Needs, machine: Machine, *, running: bool = False) -> Check:
    """Compare each device's memory with what the recipe uses; own servers that run hold theirs."""
    sizes = [device.memory_bytes for device in machine.devices if device.memory_bytes is not None]
    if not sizes:
        return Check("memory", "warn", "the device does not report its memory")
    if not needs.memory_bytes:
        return Check("memory", "warn", "the recipe does not state the memory")
    smallest, used = min(sizes), needs.used_bytes or 0
    present = f"{show_gib(smallest)} per device"
    if smallest < used:
        detail = f"{present}; the recipe uses {show_gib(used)}, {show_gib(used - smallest)} more"
        hint = "Use a device with more memory, or plan again for this one with `recipe plan`."
        return Check("memory", "FAIL", detail, hint)
    # The first devices are the ones that are used.
    first = machine.devices[: needs.count]
    free = [device.free_bytes for device in first if device.free_bytes is not None]
    if free and not running and min(free) < used:
        detail = f"{show_gib(min(free))} of {present} are free; the recipe uses {show_gib(used)}"
        hint = "Stop what else runs on the device, or plan again for what is left of it."
        return Check("memory", "FAIL", detail, hint)
    if not running and (refusal := _refused_on_devices(needs, first)):
        return Check("memory", "FAIL", refusal.detail, refusal.hint)
    if smallest < needs.memory_bytes * (1 - _MEMORY_TOLERANCE):
        detail = f"{present}; the recipe is for {show_gib(needs.memory_bytes)}"
        return Check("memory", "warn", detail, "Fewer requests than planned may fit.")
    return Check(
        "memory", "ok", f"{present}, {show_gib(used)} planned{_describe_claim(needs, smallest)}"
    )


def _refused_on_devices(needs: Needs, devices: Sequence[Device]) -> Refusal | None:
    """The first device of which too little is free for what the engine claims of it."""
    for device in devices if needs.claim else ():
        if needs.claim and device.free_bytes is not None and device.memory_bytes is not None:
            memory = Memory(f"device {device.index}", device.memory_bytes, device.free_bytes)
            refusal = refused(needs.claim, memory, needs.used_bytes or 0, exact=False)
            if refusal:
                return refusal
    return None


def _describe_claim(needs: Needs, total_bytes: int) -> str:
    """Say what the engine claims beside, in words; nothing where it claims what it uses."""
    return f", {show_gib(needs.claim.of(total_bytes))} claimed" if needs.claim else ""


def _with_holders(check: Check, runtime: str) -> Check:
    """A refusal for want of memory with the names of who holds it."""
    if check.name != "memory" or check.status != "FAIL":
        return check
    listed = [holder.text() for holder in holders(runtime)]
    return replace(check, detail="; ".join([check.detail, *listed]))


def check_ram(needs: Needs, machine: Machine, *, running: bool) -> Check:
    """Compare free memory with what a recipe for the CPU uses."""
    used = needs.used_bytes or 0
    if machine.available_bytes is None:
        detail = "/proc/meminfo cannot be read, so free memory is unknown"
        return Check("memory", "warn", detail, "The launcher is made for Linux.")
    memory = machine.memories[0] if machine.memories else None
    if memory is None and machine.memory_bytes is not None:
        memory = Memory("this machine", machine.memory_bytes, machine.available_bytes)
    claimed = _describe_claim(needs, memory.total_bytes) if memory else ""
    detail = f"{show_gib(machine.available_bytes)} available, {show_gib(used)} planned{claimed}"
    if machine.available_bytes < used and not running:
        missing = show_gib(used - machine.available_bytes)
        hint = f"Free {missing}, or plan a smaller split with `recipe plan`."
        return Check("memory", "FAIL", detail, hint)
    if needs.claim and memory and not running:
        refusal = refused(needs.claim, memory, used, exact=True)
        if refusal:
            return Check("memory", "FAIL", refusal.detail, refusal.hint)
    return Check("memory", "ok", detail)


def check_installed_engine(plan: LaunchPlan) -> tuple[Check, str | None]:
    """Check the engine (installed, complete, of the planned version), and return its version."""
    engine = plan.engine
    installed = locate(engine)
    if installed is None:
        detail = f"{engine.program!r} is neither next to this Python nor on PATH"
        return Check("engine", "FAIL", detail, f"Install it: {engine.install}"), None
    if installed.missing:
        detail = f"{engine.name} is installed, but it needs {_join_first_names(installed.missing)}"
        return Check("engine", "FAIL", detail, f"Install it: {engine.install}"), installed.version
    if installed.version is None:
        planned = f"{engine.name} {engine.version}"
        detail = f"{installed.program}: version unknown; the recipe is for {planned}"
        return Check("engine", "warn", detail), None
    if not same_version(installed.version, engine.version):
        detail = f"{engine.name} {installed.version}; the recipe is for {engine.version}"
        hint = f"Flags and speed may differ; for the planned version: {engine.install}"
        return Check("engine", "warn", detail, hint), installed.version
    return Check(
        "engine", "ok", f"{engine.name} {installed.version} ({installed.program})"
    ), installed.version


def check_kernels(plan: LaunchPlan, machine: Machine, version: str | None) -> Iterator[Check]:
    """Yield what the release that is installed says to the devices that are here."""
    support = plan.support
    if support is None or machine.runtime != plan.needs.runtime:
        return
    release = (version or plan.engine.version).split("+")[0]
    for check_fields in answer_support(
        support, plan.engine.name, release, machine.devices, plan.needs.names
    ):
        yield Check("kernels", *check_fields)


def check_model(plan: LaunchPlan) -> Check:
    """Check the model where the parameters say."""
    model = plan.parameters.model
    if not is_model_path(model):
        return _check_hub(plan, model)
    folder, hint = Path(model), "Set the folder of the model: --model FOLDER"
    making = plan.making
    if making is not None and model == making.served and not making.finished:
        detail = f"{making.output} has not been made yet ({making.title})"
        return Check("model", "FAIL", detail, "Make it first: python launch.py compress")
    if model.endswith(".gguf") and folder.is_file():
        return Check("model", "ok", model)
    if not folder.is_dir():
        return Check("model", "FAIL", f"{model} is not a folder", hint)
    if not (folder / "config.json").is_file():
        return Check("model", "FAIL", f"{model} has no config.json", hint)
    weights = any(any(folder.glob(pattern)) for pattern in _WEIGHTS)
    if plan.kind == "serving" and not weights:
        hint = "The engine cannot start without them, unless it makes dummy weights."
        return Check("model", "warn", f"{model} has no weight files", hint)
    return Check("model", "ok", model)


def _check_hub(plan: LaunchPlan, model: str) -> Check:
    environment = {**os.environ, **plan.processes[0].env}
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{caches}/huggingface"
    cache = Path(environment.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    if (cache / f"models--{model.replace('/', '--')}").is_dir():
        return Check("model", "ok", f"{model} (in {cache})")
    if environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        hint = "Unset HF_HUB_OFFLINE, or use a local folder: --model FOLDER"
        detail = f"{model} is not in {cache}, and HF_HUB_OFFLINE forbids the download"
        return Check("model", "warn", detail, hint)
    fetched = "--fetch" in plan.processes[0].argv
    who = "the bundle's start.py" if fetched else "the engine"
    return Check("model", "ok", f"{model} is not in {cache}; {who} will download it")


def check_port_free(plan: LaunchPlan, port: int) -> Check:
    """Check that a server could listen on the port."""
    host = plan.parameters.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # A server that just stopped leaves TIME_WAIT behind.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        detail = f"host {host!r} does not resolve ({error.strerror})"
        return Check("port", "FAIL", detail, _LOCAL)
    except OSError as error:
        return _port_refused(host, port, error)
    return Check("port", "ok", f"{host}:{port} is free")


def _port_refused(host: str, port: int, error: OSError) -> Check:
    if error.errno == errno.EADDRNOTAVAIL:
        return Check("port", "FAIL", f"{host} is not an address of this machine", _LOCAL)
    reason = f"cannot be used ({error.strerror})"
    if error.errno == errno.EADDRINUSE:
        reason = "is in use by another program"
    hint = f"Choose another: --port {port + 1000 if port < 64000 else 8000}"
    return Check("port", "FAIL", f"port {port} on {host} {reason}", hint)


def _join_first_names(names: tuple[str, ...], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
