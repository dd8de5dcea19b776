"""What making a checkpoint needs: a Python with the tool, its base, memory and disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .claims import GIB
from .errors import InputError, StartError
from .machine import Machine, detect_machine
from .making import TOOLS, Making
from .plan import LaunchPlan, is_model_path
from .preflight import Check, Preflight, check_files
from .request import Request
from .supervisor import Progress

_PROBE = """
import importlib.util as u, json, shutil, sys
sys.path[:] = [entry for entry in sys.path if entry]
module, *programs = sys.argv[1:]
def there(name):
    try: return u.find_spec(name) is not None
    except ImportError: return False
missing = [] if there(module) else [module]
print(json.dumps(missing + [p for p in programs if not shutil.which(p)]))
"""
_FETCH = """
import sys
from huggingface_hub import snapshot_download
name, _, revision = sys.argv[1].partition("@")
print(snapshot_download(name, revision=revision or None))
"""


def interpreter(request: Request, plan: LaunchPlan, making: Making) -> str:
    """The Python that has the tool: the stated one, the tool's own in ``run/``, else this one."""
    if request.python:
        program = shutil.which(request.python)
        if program is None:
            raise InputError(
                f"{request.python!r} is no program.",
                field="--python",
                hint="Name the Python of the environment that has the tool.",
            )
        return program
    tool_python = plan.run / TOOLS / making.tool / "bin" / "python"
    return str(tool_python) if tool_python.is_file() else sys.executable


def checks_of(plan: LaunchPlan, making: Making, python: str) -> Preflight:
    """Files, the tool, memory of host and device, and disk; of a changed bundle only its files."""
    machine, files = detect_machine(), check_files(plan.root)
    if files.status == "FAIL":
        return Preflight((files,), machine, None)
    checks = (
        files,
        _check_tool(making, python),
        _check_memory(making, machine),
        _check_disk(making),
    )
    return Preflight(checks, machine, None)


def _check_tool(making: Making, python: str) -> Check:
    words = [python, "-c", _PROBE, making.module, *making.programs]
    probe = subprocess.run(
        words, capture_output=True, text=True, check=False, env=tool_environment(making, python)
    )
    try:
        missing = json.loads(probe.stdout)
    except ValueError:
        return Check("tool", "FAIL", f"{python} does not start", "Name another: --python PYTHON")
    if missing:
        detail = f"{making.title} is not installed: {python} lacks {', '.join(missing)}"
        return Check("tool", "FAIL", detail, f"Install it: {making.install}")
    return Check("tool", "ok", f"{making.title} ({python})")


def _check_memory(making: Making, machine: Machine) -> Check:
    anyway = "Free some, or try it all the same: --anyway"
    free = machine.available_bytes
    if free is not None and free < making.host_bytes:
        needed = _round_gib(making.host_bytes)
        detail = f"{_round_gib(free)} of the host are free; this takes about {needed}"
        return Check("memory", "FAIL", detail, anyway)
    free_sizes = [device.free_bytes for device in machine.devices if device.free_bytes is not None]
    if free_sizes and max(free_sizes) < making.device_bytes:
        needed = _round_gib(making.device_bytes)
        detail = f"{_round_gib(max(free_sizes))} of a device are free; this takes {needed}"
        return Check("memory", "FAIL", detail, anyway)
    words = [f"{_round_gib(making.host_bytes)} of the host"]
    words += [f"{_round_gib(making.device_bytes)} of a device"] if making.device_bytes else []
    return Check("memory", "ok", f"about {' and '.join(words)}")


def _check_disk(making: Making) -> Check:
    making.output.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(making.output.parent).free
    if free < making.disk_bytes:
        detail = f"{_round_gib(free)} are free; this takes about {_round_gib(making.disk_bytes)}"
        return Check("disk", "FAIL", detail, "Free some, or try it all the same: --anyway")
    return Check(
        "disk", "ok", f"{_round_gib(free)} free, about {_round_gib(making.disk_bytes)} needed"
    )


def fetch_base_model(model: str, python: str, making: Making, progress: Progress) -> str:
    """The folder of the base; one of the hub is downloaded first, or found in its cache."""
    if is_model_path(model) or Path(model).is_dir():
        folder = Path(model).expanduser().resolve()
        if not (folder / "config.json").is_file():
            raise InputError(
                f"{folder} has no config.json.",
                field="--model",
                hint="Name the folder of the base: --model FOLDER",
            )
        return str(folder)
    progress.say(f"fetching {model}")
    download = subprocess.run(
        [python, "-c", _FETCH, model],
        capture_output=True,
        text=True,
        check=False,
        env=tool_environment(making, python),
    )
    if download.returncode:
        raise StartError(
            f"{model} cannot be had from the hub.",
            hint="Name a folder that holds it: --model FOLDER",
            detail=download.stderr[-2000:],
        )
    return download.stdout.strip().splitlines()[-1]


def tool_environment(making: Making, python: str) -> dict[str, str]:
    """The tool's: its own programs first, and no byte code beside the bundle's files."""
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    return {**os.environ, **making.env, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _round_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
