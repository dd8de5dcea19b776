"""Evidence on a bundle and its machine, collected piece by piece, whatever is broken."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import events, exposition, files, state
from .api import api_headers
from .checks import check_files
from .engine import find_program, read_script_interpreter
from .errors import LauncherError
from .files import json_text, read_file_end
from .logs import log_files, named_log_path
from .machine import detect_machine
from .plan import LaunchPlan, is_model_path
from .preflight import preflight
from .procs import ask_program
from .world import HERE

# Of each log: its end.
LOG_BYTES = 1 << 20
# Of all texts of a report.
MOST_BYTES = 64 << 20
_FILES = ("launch.json", "expected.json", "recipe.yaml", "train.json")
_RUN_FILES = ("state.json", "measurement.json", events.OLDER, events.NAME)
_TOOL_S = 30.0
_ANSWER_S = 3.0
_TOOLS = (
    ("nvidia-smi", ()),
    ("nvidia-smi", ("-q",)),
    ("nvidia-smi", ("topo", "-m")),
    ("rocm-smi", ()),
    ("rocm-smi", ("--showtopo",)),
    ("amd-smi", ("static",)),
    ("amd-smi", ("metric",)),
    ("lscpu", ()),
    ("free", ("-b",)),
)
_KERNEL = re.compile(r"NVRM|Xid|amdgpu|amdkfd|[Oo]ut of memory|oom|blocked for more|I/O err")
_KERNEL_LINES = 200
_VARIABLES = re.compile(
    r"(VLLM|SGL|SGLANG|TRTLLM|TLLM|NCCL|RCCL|GLOO|CUDA|NVIDIA|HIP|HSA|ROCR|ROCM|AMD|AITER|PYTORCH"
    r"|TORCH|TORCHINDUCTOR|TRITON|OMP|MKL|KMP|GOMP|HF|HUGGINGFACE|TRANSFORMERS|RECIPE|RAY|UCX|FI"
    r"|SLURM|XDG|MALLOC|LD)_|^(PATH|PYTHON\w*|VIRTUAL_ENV|TMPDIR|LANG|CONDA_PREFIX|NO_PROXY)$"
)
_PACKAGES = re.compile(
    r"^(torch\w*|vllm[\w.-]*|sglang[\w.-]*|sgl-kernel|tensorrt[\w.-]*|transformers|tokenizers"
    r"|safetensors|accelerate|huggingface[\w.-]*|flashinfer[\w.-]*|flash[_-]attn[\w.-]*"
    r"|triton[\w.-]*|xformers|numpy|ray|nvidia-[\w-]+|amd[\w-]*|aiter|deepspeed|pydantic[\w-]*|fastapi|uvicorn"
    r"|compressed-tensors|bitsandbytes|outlines[\w-]*|xgrammar|nixl[\w-]*|mooncake[\w-]*)$",
    re.IGNORECASE,
)
# Runs in the engine's interpreter.
_LIST = """
import importlib.metadata as m, json, platform, sys
print(json.dumps({"python": sys.version, "packages":
    {d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}}))
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of the report; ``of_log``: it may hold prompts."""

    name: str
    text: str
    of_log: bool = False


@dataclass(frozen=True, slots=True)
class Patient:
    """A bundle that may be broken: without ``plan`` its ``launch.json`` cannot be read."""

    root: Path
    node_folder: Path
    plan: LaunchPlan | None


def collect(patient: Patient, problems: list[str]) -> Iterator[Piece]:
    """All pieces; what cannot be had is noted in ``problems``."""
    room = MOST_BYTES
    for collector in (
        _collect_bundle,
        _collect_checks,
        _collect_run,
        _collect_logs,
        _collect_processes,
        _collect_figures,
        _collect_versions,
        _collect_machine,
        _collect_tools,
        _collect_kernel,
    ):
        try:
            for piece in collector(patient):
                room -= len(piece.text)
                if room < 0:
                    problems.append(f"{piece.name}: the report is full")
                    continue
                yield piece
        except (LauncherError, OSError, ValueError) as error:
            words = error.message if isinstance(error, LauncherError) else repr(error)
            problems.append(f"{collector.__name__.removeprefix('_collect_')}: {words}")


def _json(name: str, data: object) -> Piece:
    return Piece(name, json_text(data) + "\n")


def _collect_bundle(patient: Patient) -> Iterator[Piece]:
    for name in _FILES:
        yield from _collect_file(patient.root / name, f"bundle/{name}")
    fallbacks = patient.root / "fallbacks"
    for path in sorted(fallbacks.glob("*/launch.json")) if fallbacks.is_dir() else ():
        yield from _collect_file(path, f"bundle/fallbacks/{path.parent.name}/launch.json")


def _collect_file(path: Path, name: str, *, of_log: bool = False) -> Iterator[Piece]:
    text = read_file_end(path, LOG_BYTES)
    if text is not None:
        yield Piece(name, text.decode("utf-8", errors="replace"), of_log)


def _collect_checks(patient: Patient) -> Iterator[Piece]:
    """Preflight, which of a changed bundle looks at its files only and runs nothing."""
    if patient.plan is None:
        yield _json("checks.json", {"checks": [asdict(check_files(patient.root))]})
        return
    current = _load_patient_state(patient)
    ports = current.ports if current is not None and current.here else frozenset()
    checks = preflight(patient.plan, own_ports=ports).to_json()
    yield _json("checks.json", {"digest": files.digest(patient.root), **checks})


def _load_patient_state(patient: Patient) -> state.State | None:
    try:
        return state.load_state(patient.node_folder)
    except LauncherError:
        return None


def _collect_run(patient: Patient) -> Iterator[Piece]:
    for name in _RUN_FILES:
        yield from _collect_file(patient.node_folder / name, f"run/{name}")


def _collect_logs(patient: Patient) -> Iterator[Piece]:
    for name in sorted(log_files(patient.node_folder)):
        path = named_log_path(patient.node_folder, name)
        yield from _collect_file(path, f"logs/{path.name}", of_log=True)
    for path in sorted(patient.node_folder.glob("*.log.*")):
        yield from _collect_file(path, f"logs/{path.name}", of_log=True)


def _collect_processes(patient: Patient) -> Iterator[Piece]:
    """Yield what runs of this start, as /proc shows it: a process that hangs is seen here."""
    current = _load_patient_state(patient)
    if current is None or not current.here:
        return
    members = sorted(current.family())
    yield _json("processes.json", [_describe_process(pid) for pid, _ in members])


def _describe_process(pid: int) -> dict[str, Any]:
    def read(name: str) -> str:
        try:
            return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    fields = ("Name", "State", "PPid", "VmRSS", "VmHWM", "VmSwap", "Threads", "SigIgn")
    status = dict(line.split(":\t", 1) for line in read("status").splitlines() if ":\t" in line)
    return {
        "pid": pid,
        "argv": read("cmdline").split("\0")[:-1],
        "waits_in": read("wchan"),
        **{name: status[name].strip() for name in fields if name in status},
    }


def _collect_figures(patient: Patient) -> Iterator[Piece]:
    """The metrics of servers that run, as text."""
    current, plan = _load_patient_state(patient), patient.plan
    if plan is None or current is None or not current.here:
        return
    answering = {process.name for process in plan.answering}
    path = exposition.PATHS.get(plan.engine.name, "/metrics")
    for server in current.servers:
        if server.name in answering and server.alive:
            status, text = HERE.ask(
                plan.client_host,
                server.port,
                path,
                headers=api_headers(plan.api),
                timeout_s=_ANSWER_S,
                most_bytes=LOG_BYTES,
            )
            words = "no answer\n" if status is None else text.decode("utf-8", errors="replace")
            if words:
                yield Piece(f"metrics/{server.name}.txt", words)


def _collect_versions(patient: Patient) -> Iterator[Piece]:
    data: dict[str, Any] = {
        "launcher_python": sys.version,
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "system": _os_release(),
    }
    plan = patient.plan
    # Of a bundle that was changed nothing is run, and its engine's name is one of its files' words.
    if plan is not None and not check_files(patient.root).failed:
        program = find_program(plan.engine.program)
        interpreter = read_script_interpreter(Path(program)) if program else None
        data["engine"] = {"name": plan.engine.name, "planned": plan.engine.version}
        if interpreter:
            listing = json.loads(_run_evidence_tool([interpreter, "-c", _LIST]) or "{}")
            packages = listing.get("packages", {})
            data["engine_python"] = listing.get("python")
            data["engine_packages"] = {
                name: packages[name] for name in sorted(packages) if _PACKAGES.match(name)
            }
    yield _json("versions.json", data)


def _os_release() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _collect_machine(patient: Patient) -> Iterator[Piece]:
    places = {
        "bundle": patient.root,
        "temporary": Path(tempfile.gettempdir()),
        "shared memory": Path("/dev/shm"),  # noqa: S108 - looked at, not written to
        "model cache": Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser(),
    }
    if patient.plan is not None and is_model_path(patient.plan.parameters.model):
        places["model"] = Path(patient.plan.parameters.model).expanduser()
    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK", "RLIMIT_FSIZE", "RLIMIT_AS")
    }
    variables = {name: value for name, value in os.environ.items() if _VARIABLES.search(name)}
    data = {
        **detect_machine().to_json(),
        "load": os.getloadavg(),
        "disks": {name: _disk_usage(path) for name, path in places.items()},
        "limits": {name: list(pair) for name, pair in limits.items()},
        "cgroup": _cgroup(),
    }
    yield _json("machine.json", data)
    yield Piece("environment.txt", "".join(f"{k}={v}\n" for k, v in sorted(variables.items())))


def _disk_usage(path: Path) -> dict[str, int] | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path)._asdict()
    except OSError:
        return None


def _cgroup(folder: Path = Path("/sys/fs/cgroup")) -> dict[str, str]:
    names = ("memory.max", "memory.current", "memory.events", "cpu.max", "cpu.stat", "pids.max")
    texts = {name: read_file_end(folder / name, 4096) for name in names}
    return {name: text.decode(errors="replace").strip() for name, text in texts.items() if text}


def _collect_tools(_: Patient) -> Iterator[Piece]:
    for program, words in _TOOLS:
        if shutil.which(program):
            name = "_".join((program, *words)).replace("-", "_").replace("__", "_")
            yield Piece(f"tools/{name}.txt", _run_evidence_tool([program, *words], failed=True))


def _collect_kernel(_: Patient) -> Iterator[Piece]:
    if shutil.which("dmesg"):
        log = _run_evidence_tool(["dmesg", "--ctime"]).splitlines()
        gpu_lines = [line for line in log if _KERNEL.search(line)]
        yield Piece("kernel.txt", "\n".join([*gpu_lines[-_KERNEL_LINES:], ""]))


def _run_evidence_tool(argv: list[str], *, failed: bool = False) -> str:
    """A program's output; of one that fails only where ``failed`` ones are wanted, too."""
    code, output, errors = ask_program(argv, timeout_s=_TOOL_S)
    if code and not failed:
        return ""
    if code is None:
        return f"{errors}\n" if failed else ""
    ending = f"exit code {code}\n{errors}" if code else ""
    return output[:LOG_BYTES] + ending[:LOG_BYTES]
