"""Checks: each judges one thing of a plan and this machine, and says what to do about it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .api import api_headers, is_loopback
from .devices import list_holders
from .engine import Installed, same_version
from .errors import LauncherError, PreflightError
from .files import verify_manifest
from .machine import Machine, Memory
from .needs import Needs, refuse_claim, show_gib
from .plan import LaunchPlan, is_model_path
from .portability import answer_support

# Checks that another choice may pass on the same machine.
MACHINE_CHECKS = frozenset({"device", "memory"})
# Drivers reserve a little more or less from release to release; a card of the same kind stays
# within this share.
_MEMORY_TOLERANCE = 0.03
_LOCAL = "Listen on this machine: --host 127.0.0.1"
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_AGAIN = "plan again for this one with `recipe plan`."
_VENDORS = {
    "cuda": ("an NVIDIA GPU (CUDA)", "nvidia-smi"),
    "rocm": ("an AMD GPU (ROCm)", "rocm-smi or amd-smi"),
    "xpu": ("an Intel GPU (XPU)", "xpu-smi discovery"),
    "metal": ("an Apple GPU (Metal)", "system_profiler"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """``status`` is ok, warn or FAIL; only a FAIL stops the launch."""

    name: str
    status: str
    detail: str
    hint: str = ""

    @property
    def failed(self) -> bool:
        return self.status == "FAIL"

    @property
    def error(self) -> PreflightError:
        """The failure as an error."""
        return PreflightError(self.name, self.detail, self.hint)


@dataclass(frozen=True, slots=True)
class Situation:
    """A plan on this machine, and the engine that is installed.

    ``running``: what runs of it holds its memory, and is rightly on ``own_ports``. ``holders``: a
    refusal for want of memory names who holds it.
    """

    plan: LaunchPlan
    machine: Machine
    installed: Installed | None = None
    own_ports: Collection[int] = ()
    running: bool = False
    holders: bool = False

    @property
    def needs(self) -> Needs:
        """The needs of this node's processes alone, in the environment that they would get."""
        plan, needs = self.plan, self.plan.needs
        if needs.claim is not None and plan.processes:
            environment = {**os.environ, **plan.processes[0].env}
            needs = replace(needs, claim=needs.claim.within(environment))
        if plan.node is None:
            return needs
        devices = {device for process in plan.processes for device in process.devices}
        return replace(needs, count=len(devices) or 1)


def lacks(name: str, has: str, need: str, fix: str = "", status: str = "FAIL") -> Check:
    """Say what is here, what is needed, and what to do."""
    return Check(name, status, f"{has}; {need}", fix)


def run_checks(situation: Situation, names: Collection[str]) -> Iterator[Check]:
    """Run the checks of these names, in the order of ``CHECKS``."""
    for name, judge in CHECKS.items():
        if name in names:
            yield from judge(situation)


def find_unmet(
    needs: Needs, machine: Machine, *, exact: bool = True, running: bool = False
) -> str | None:
    """Say why a machine does not meet the condition of a choice; None where it does.

    ``exact``: other devices than the named ones do not. ``running``: whatever uses its memory now.
    """
    for check in (_judge_devices(needs, machine), *_judge_memory(needs, machine, running=running)):
        if check.failed:
            return check.detail
    if needs.at_most is not None and len(machine.devices) > needs.at_most:
        return f"it is for at most {needs.at_most} x {needs.title}"
    listed = all(needs.lists(device.name) for device in machine.devices)
    return f"it is for {needs.title}" if exact and not listed else None


def check_files(root: Path) -> Check:
    """Compare the files with the manifest."""
    try:
        count, findings = verify_manifest(root)
    except LauncherError as error:
        return Check("bundle", "FAIL", error.message, error.hint or "")
    if findings.sound:
        return Check("bundle", "ok", f"{count} files as built")
    differences = {
        "missing": findings.missing,
        "changed": findings.changed,
        "added": findings.added,
    }
    listed = (f"{kind}: {_join_first_names(names)}" for kind, names in differences.items() if names)
    hint = "The bundle has been changed; unpack it again or build it again."
    if not findings.missing and not findings.changed:
        hint = "Remove what was added; files of your own belong in run/."
    return Check("bundle", "FAIL", "; ".join(listed), hint)


def check_devices(situation: Situation) -> Iterator[Check]:
    """Compare the devices: kind, number, name."""
    yield _judge_devices(situation.needs, situation.machine)


def _judge_devices(needs: Needs, machine: Machine) -> Check:
    if needs.runtime == "cpu":
        return Check("device", "ok", f"{machine.cpu_name}, {machine.cpus} CPUs")
    if machine.runtime != needs.runtime:
        return _wrong_runtime(needs, machine)
    count = len(machine.devices)
    names = sorted({device.name for device in machine.devices})
    has = f"{count} x {' and '.join(names)}"
    if count < needs.count:
        fix = f"Use a machine with enough devices, or {_AGAIN}"
        return lacks("device", has, f"the recipe needs {needs.count} x {needs.title}", fix)
    if not all(map(needs.lists, names)):
        fix = f"The prediction is for {needs.title}; plan again for this device."
        return lacks("device", has, f"the recipe is for {needs.title}", fix, "warn")
    return Check("device", "ok", has)


def _wrong_runtime(needs: Needs, machine: Machine) -> Check:
    vendor, tool = _VENDORS[needs.runtime]
    has, _ = _VENDORS.get(machine.runtime, ("no GPU", ""))
    if machine.notes:
        has += f" ({'; '.join(machine.notes)})"
    return Check(
        "device",
        "FAIL",
        f"the recipe needs {needs.count} x {needs.title}, {vendor}; this machine has {has}",
        f"Run it where `{tool}` lists the devices, or plan again for this machine with "
        "`recipe plan`.",
    )


def check_memory(situation: Situation) -> Iterator[Check]:
    """Compare memory with what the recipe uses and claims; what runs of it holds its own."""
    needs = situation.needs
    for check in _judge_memory(needs, situation.machine, running=situation.running):
        if check.failed and situation.holders:
            listed = [holder.text() for holder in list_holders(needs.runtime)]
            yield replace(check, detail="; ".join([check.detail, *listed]))
        else:
            yield check


def _judge_memory(needs: Needs, machine: Machine, *, running: bool) -> Iterator[Check]:
    if needs.runtime in ("cpu", machine.runtime):
        judge = _check_host_memory if needs.runtime == "cpu" else _check_device_memory
        yield judge(needs, machine, running=running)


def _check_device_memory(needs: Needs, machine: Machine, *, running: bool) -> Check:
    sizes = [device.memory_bytes for device in machine.devices if device.memory_bytes is not None]
    if not sizes:
        return Check("memory", "warn", "the device does not report its memory")
    if not needs.memory_bytes:
        return Check("memory", "warn", "the recipe does not state the memory")
    smallest, used = min(sizes), needs.used_bytes or 0
    has, uses = f"{show_gib(smallest)} per device", f"the recipe uses {show_gib(used)}"
    if smallest < used:
        fix = f"Use a device with more memory, or {_AGAIN}"
        return lacks("memory", has, f"{uses}, {show_gib(used - smallest)} more", fix)
    # The first devices are the ones that are used.
    first = [
        Memory(f"device {device.index}", device.memory_bytes, device.free_bytes)
        for device in machine.devices[: needs.count]
        if device.memory_bytes is not None and device.free_bytes is not None
    ]
    free = min((memory.free_bytes for memory in first), default=used)
    if not running and free < used:
        fix = "Stop what else runs on the device, or plan again for what is left of it."
        return lacks("memory", f"{show_gib(free)} of {has} are free", uses, fix)
    if not running and (refusal := _check_claim(needs, first, exact=False)):
        return refusal
    if smallest < needs.memory_bytes * (1 - _MEMORY_TOLERANCE):
        need = f"the recipe is for {show_gib(needs.memory_bytes)}"
        return lacks("memory", has, need, "Fewer requests than planned may fit.", "warn")
    return Check("memory", "ok", f"{has}, {_describe_use(needs, smallest)}")


def _check_host_memory(needs: Needs, machine: Machine, *, running: bool) -> Check:
    available, total, used = machine.available_bytes, machine.memory_bytes, needs.used_bytes or 0
    if available is None or total is None:
        detail = "/proc/meminfo cannot be read, so free memory is unknown"
        return Check("memory", "warn", detail, "The launcher is made for Linux.")
    memory, *_ = (*machine.memories, Memory("this machine", total, available))
    detail = f"{show_gib(available)} available, {_describe_use(needs, memory.total_bytes)}"
    if available < used and not running:
        fix = f"Free {show_gib(used - available)}, or plan a smaller layout with `recipe plan`."
        return Check("memory", "FAIL", detail, fix)
    refusal = None if running else _check_claim(needs, [memory], exact=True)
    return refusal or Check("memory", "ok", detail)


def _check_claim(needs: Needs, memories: list[Memory], *, exact: bool) -> Check | None:
    """Refuse the first memory of which too little is free for what the engine claims of it."""
    for memory in memories if needs.claim else ():
        refusal = needs.claim and refuse_claim(
            needs.claim, memory, needs.used_bytes or 0, exact=exact
        )
        if refusal:
            return Check("memory", "FAIL", *refusal)
    return None


def _describe_use(needs: Needs, total_bytes: int) -> str:
    """Say what the recipe uses, and what its engine claims of a memory, if it does."""
    planned = f"{show_gib(needs.used_bytes or 0)} planned"
    return (
        f"{planned}, {show_gib(needs.claim.claimed_bytes(total_bytes))} claimed"
        if needs.claim
        else planned
    )


def check_engine(situation: Situation) -> Iterator[Check]:
    """Check the engine: installed, complete, of the planned version."""
    engine, installed = situation.plan.engine, situation.installed
    install, planned = f"Install it: {engine.install}", f"the recipe is for {engine.version}"
    if installed is None:
        detail = f"{engine.program!r} is neither next to this Python nor on PATH"
        yield Check("engine", "FAIL", detail, install)
    elif installed.missing:
        detail = f"{engine.name} is installed, but it needs {_join_first_names(installed.missing)}"
        yield Check("engine", "FAIL", detail, install)
    elif installed.version is None:
        planned = f"the recipe is for {engine.name} {engine.version}"
        yield lacks("engine", f"{installed.program}: version unknown", planned, status="warn")
    elif not same_version(installed.version, engine.version):
        fix = f"Flags and speed may differ; for the planned version: {engine.install}"
        yield lacks("engine", f"{engine.name} {installed.version}", planned, fix, "warn")
    else:
        detail = f"{engine.name} {installed.version} ({installed.program})"
        yield Check("engine", "ok", detail)


def check_kernels(situation: Situation) -> Iterator[Check]:
    """Yield what the release that is installed says to the devices that are here."""
    plan, machine, installed = situation.plan, situation.machine, situation.installed
    if plan.support is None or machine.runtime != plan.needs.runtime:
        return
    version = installed.version if installed is not None else None
    release = (version or plan.engine.version).split("+")[0]
    for answer in answer_support(
        plan.support, plan.engine.name, release, machine.devices, plan.needs.names
    ):
        yield Check("kernels", *answer)


def check_model(situation: Situation) -> Iterator[Check]:
    """Check the model where the parameters say."""
    if situation.plan.needs_model:
        model = situation.plan.parameters.model
        judge = _check_model_folder if is_model_path(model) else _check_hub
        yield judge(situation.plan, model)


def _check_model_folder(plan: LaunchPlan, model: str) -> Check:
    folder, hint, making = Path(model), "Set the folder of the model: --model FOLDER", plan.making
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


def check_ports(situation: Situation) -> Iterator[Check]:
    """Check that what listens here could: servers, and on node 0 the trainers' rendezvous."""
    for process in situation.plan.processes:
        listens = process.answers or (process.role == "trainer" and process.node == 0)
        if listens and process.port not in situation.own_ports:
            yield _check_port(situation.plan.parameters.host, process.port)


def _check_port(host: str, port: int) -> Check:
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
        if error.errno == errno.EADDRNOTAVAIL:
            return Check("port", "FAIL", f"{host} is not an address of this machine", _LOCAL)
        reason = f"cannot be used ({error.strerror})"
        if error.errno == errno.EADDRINUSE:
            reason = "is in use by another program"
        hint = f"Choose another: --port {port + 1000 if port < 64000 else 8000}"
        return Check("port", "FAIL", f"port {port} on {host} {reason}", hint)
    return Check("port", "ok", f"{host}:{port} is free")


def check_head(situation: Situation) -> Iterator[Check]:
    """Check that the address of node 0 resolves; nothing listens there yet."""
    plan = situation.plan
    if not plan.node:
        return
    head = plan.parameters.addresses[0]
    try:
        socket.getaddrinfo(head, None)
    except OSError as error:
        hint = "Set it to the address or name of node 0: --head ADDRESS"
        yield Check("head", "FAIL", f"{head!r} does not resolve ({error.strerror})", hint)
    else:
        detail = f"node 0 is {head}; this is node {plan.node} of {plan.nodes}"
        yield Check("head", "ok", detail)


def check_key(situation: Situation, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Yield who may ask the servers: nothing starts without a key that the bundle needs."""
    plan, api, host = situation.plan, situation.plan.api, situation.plan.parameters.host
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


def _join_first_names(names: tuple[str, ...], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


CHECKS: Mapping[str, Callable[[Situation], Iterator[Check]]] = {
    "device": check_devices,
    "memory": check_memory,
    "engine": check_engine,
    "kernels": check_kernels,
    "model": check_model,
    "port": check_ports,
    "head": check_head,
    "key": check_key,
}
"""All that is judged of a plan on this machine, beside its files and variants, in their order."""
