"""A tool as a process, and its output as a whole folder or none."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import procs
from .checks import Check, lacks
from .engine import probe_interpreter
from .errors import InputError, StartError, file_error
from .files import read_object, sha256, sync_plain_file, sync_plain_folder, tail, write_json
from .logs import open_log
from .machine import Machine
from .making import RECORD, TOOLS, Making
from .needs import GIB
from .plan import LaunchPlan, is_model_path
from .preflight import Preflight, check_whole_bundle
from .procs import ask_program
from .request import Request
from .state import boot_id, find_copied_owner, owner_of
from .supervisor import Progress
from .typed_json import Fields

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


def check_making(plan: LaunchPlan, making: Making, python: str) -> Preflight:
    """Files, the tool, memory of host and device, and disk; of a changed bundle only its files."""

    def judge(machine: Machine) -> tuple[Iterable[Check], None]:
        folder = making.output.parent
        folder.mkdir(parents=True, exist_ok=True)
        free = [device.free_bytes for device in machine.devices if device.free_bytes is not None]
        places = {"the host": (machine.available_bytes, making.host_bytes)}
        if making.device_bytes:
            places["a device"] = (max(free, default=None), making.device_bytes)
        disk = {"the disk": (shutil.disk_usage(folder).free, making.disk_bytes)}
        tool = _check_tool(making, python)
        return (tool, _check_space("memory", places), _check_space("disk", disk)), None

    return check_whole_bundle(plan, judge)


def _check_tool(making: Making, python: str) -> Check:
    environment = tool_environment(making, python)
    probed = probe_interpreter(python, making.module, making.programs, env=environment)
    if probed is None:
        return Check("tool", "FAIL", f"{python} does not start", "Name another: --python PYTHON")
    importable, _, names = probed
    if missing := [*([] if importable else [making.module]), *names]:
        detail = f"{making.title} is not installed: {python} lacks {', '.join(missing)}"
        return Check("tool", "FAIL", detail, f"Install it: {making.install}")
    return Check("tool", "ok", f"{making.title} ({python})")


def _check_space(name: str, places: Mapping[str, tuple[int | None, int]]) -> Check:
    """Compare free bytes, None where they are not known, with what the tool takes of each place."""
    for place, (free, needed) in places.items():
        if free is not None and free < needed:
            has = f"{_round_gib(free)} of {place} are free"
            fix = "Free some, or try it all the same: --anyway"
            return lacks(name, has, f"this takes about {_round_gib(needed)}", fix)
    amounts = [f"{_round_gib(needed)} of {place}" for place, (_, needed) in places.items()]
    return Check(name, "ok", f"about {' and '.join(amounts)}")


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
    words = [python, "-c", _FETCH, model]
    code, output, errors = ask_program(words, env=tool_environment(making, python))
    if code != 0:
        raise StartError(
            f"{model} cannot be had from the hub.",
            hint="Name a folder that holds it: --model FOLDER",
            detail=errors[-2000:],
        )
    return output.strip().splitlines()[-1]


def tool_environment(making: Making, python: str) -> dict[str, str]:
    """The tool's: its own programs first, and no byte code beside the bundle's files."""
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    return {**os.environ, **making.env, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _round_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


_TOLD_S = 15.0
_GRACE_S = 10.0


def run_making_tool(
    making: Making,
    python: str,
    words: list[str],
    progress: Progress,
    fails: tuple[int, ...] = (0,),
) -> int:
    """Run the tool to its end, its log in the folder of outputs; an interrupt ends it, too."""
    log = making.output.with_name(f"{making.name}.log")
    mark = uuid.uuid4().hex
    variables = tool_environment(making, python) | {procs.MARK: mark}
    argv = [python if word in ("python", "python3") else word for word in words]
    try:
        with open_log(log, anew=False) as file:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
    except OSError as error:
        raise file_error(error, log) from None
    stat = procs.read_stat(process.pid)
    running = {"pid": process.pid, "started": stat.started if stat else 0, "mark": mark}
    owner = {"run": owner_of(making.output.parent), "boot": boot_id()}
    write_json(_running_file(making), owner | running)
    try:
        code = _wait(process, log, progress)
    except BaseException:
        stop_leftover(making)
        remove_folder(making.part)
        raise
    _running_file(making).unlink(missing_ok=True)
    if code not in fails:
        remove_folder(making.part)
        raise StartError(
            f"{making.title} ended with code {code}.",
            hint=f"The end of {log} follows.",
            detail=tail(log),
        )
    return code


def _wait(
    process: subprocess.Popen[Any],
    log: Path,
    progress: Progress,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    began = reported_at = clock()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.2)
        now = clock()
        if now - reported_at >= _TOLD_S:
            reported_at = now
            progress.say(f"{now - began:.0f} s; {tail(log, 1)[:100]}")


def _running_file(making: Making) -> Path:
    return making.output.with_name(f".{making.name}.running.json")


def stop_leftover(making: Making) -> None:
    """End what a killed launcher left, before anything is written where it writes."""
    path = _running_file(making)
    if path.is_file():
        running = Fields(read_object(path), str(path))
        same_boot = running.data.get("boot") == boot_id()
        if same_boot and find_copied_owner(running.child("run"), path.parent) is None:
            leader = (running.integer("pid", low=2), running.integer("started"))
            procs.terminate([leader], running.text("mark"), grace_s=_GRACE_S)
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def put_output_in_place(making: Making, digest: str, source: str, seconds: float) -> None:
    """Digest every file, have the disk keep it, and give the folder its name."""
    part, files = making.part, {}
    for path in filter(Path.is_file, sorted(part.rglob("*"))):
        sync_plain_file(path)
        size = path.stat().st_size
        files[path.relative_to(part).as_posix()] = {"bytes": size, "sha256": sha256(path)}
    for folder in filter(Path.is_dir, part.rglob("*")):
        sync_plain_folder(folder)
    if not files or (making.loaded and making.loaded not in files):
        remove_folder(part)
        raise StartError(
            f"{making.title} wrote no {making.loaded or 'files'}.",
            hint=f"See {making.output.with_name(f'{making.name}.log')}.",
        )
    listing = "".join(f"{name} {file['sha256']}\n" for name, file in files.items())
    record = {
        "schema_version": 1,
        "technique": making.technique,
        "tool": making.title,
        "method": making.method,
        "source": source,
        "job": digest,
        "seconds": round(seconds, 3),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "digest": hashlib.sha256(listing.encode()).hexdigest(),
        "files": files,
    }
    write_json(part / RECORD, record)
    old = making.output.with_name(f".{making.name}.old")
    remove_folder(old)
    if making.output.exists():
        making.output.rename(old)
    part.rename(making.output)
    sync_plain_folder(making.output.parent)
    remove_folder(old)
