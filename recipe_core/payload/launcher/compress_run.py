"""A tool as a process, and its output as a whole folder or none."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import procs
from .compress_checks import tool_environment
from .errors import StartError, file_error
from .fields import Fields
from .files import read_object, sha256, tail, write_json
from .making import RECORD, Making
from .ownership import find_copied_owner, owner_of
from .plain import sync_plain_file, sync_plain_folder
from .rotation import open_log
from .state import boot_id
from .supervisor import Progress

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
        clear(making.part)
        raise
    _running_file(making).unlink(missing_ok=True)
    if code not in fails:
        clear(making.part)
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


def clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def finish(making: Making, digest: str, source: str, seconds: float) -> None:
    """Digest every file, have the disk keep it, and give the folder its name."""
    part, files = making.part, {}
    for path in filter(Path.is_file, sorted(part.rglob("*"))):
        sync_plain_file(path)
        size = path.stat().st_size
        files[path.relative_to(part).as_posix()] = {"bytes": size, "sha256": sha256(path)}
    for folder in filter(Path.is_dir, part.rglob("*")):
        sync_plain_folder(folder)
    if not files or (making.loaded and making.loaded not in files):
        clear(part)
        raise StartError(
            f"{making.title} wrote no {making.loaded or 'files'}.",
            hint=f"See {making.output.with_name(f'{making.name}.log')}.",
        )
    record = {
        "schema_version": 1,
        "technique": making.technique,
        "tool": making.title,
        "method": making.method,
        "source": source,
        "job": digest,
        "seconds": round(seconds, 3),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "digest": _digest_output_files(files),
        "files": files,
    }
    write_json(part / RECORD, record)
    old = making.output.with_name(f".{making.name}.old")
    clear(old)
    if making.output.exists():
        making.output.rename(old)
    part.rename(making.output)
    sync_plain_folder(making.output.parent)
    clear(old)


def _digest_output_files(files: dict[str, dict[str, Any]]) -> str:
    """One digest of all files: of their names and digests, in order."""
    text = "".join(f"{name} {file['sha256']}\n" for name, file in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()
