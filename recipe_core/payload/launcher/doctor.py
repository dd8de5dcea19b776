"""``doctor``: an archive for a report, without secrets, that says what it holds."""

from __future__ import annotations

import io
import os
import tarfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .errors import InputError, file_error
from .evidence import Patient, Piece, collect
from .files import file_anew, json_text
from .redact import Redactor
from .request import Request

_SUFFIX = ".tar.gz"


def run_doctor(request: Request) -> int:
    """Pack what a report needs; works however broken the bundle is."""
    problems: list[str] = []
    patient = _patient(request, problems)
    path = _choose_archive_path(request, patient)
    redactor = Redactor()
    pieces = [
        replace(piece, text=redactor.text(piece.text, of_log=piece.of_log))
        for piece in collect(patient, problems)
    ]
    data: dict[str, Any] = {
        "archive": str(path),
        "holds": {piece.name: len(piece.text.encode(errors="replace")) for piece in pieces},
        "redacted": redactor.count,
        "problems": [redactor.text(problem) for problem in problems],
    }
    about = {"made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **data}
    about["archive"] = path.name
    _write_archive(path, [Piece("about.json", json_text(about) + "\n"), *pieces])
    request.show(data, lambda: _describe_archive(data))
    return 0


def _describe_archive(data: dict[str, Any]) -> str:
    lines = [f"packed {data['archive']}", "it holds:"]
    lines += [f"  {name}  {size:,} bytes" for name, size in data["holds"].items()]
    lines += [f"not in it: {problem}" for problem in data["problems"]]
    lines += [
        f"{data['redacted']} secrets were taken out, as were the names of user and machine; read it"
        " all the same before you pass it on."
    ]
    return "\n".join(lines)


def _patient(request: Request, problems: list[str]) -> Patient:
    """The bundle, as far as it can be read.

    Raises:
        InputError: for a node that the bundle does not have.
    """
    run = request.root / "run"
    try:
        plan = request.plan()
    except InputError as error:
        if error.field in ("--node", "--head"):
            raise
        problems.append(f"launch.json: {error}")
        return Patient(request.root, run, None)
    return Patient(request.root, plan.own, plan)


def _choose_archive_path(request: Request, patient: Patient) -> Path:
    """Return the archive's path: as asked, else in the run folder, or here if that fails.

    Raises:
        InputError: for a name of another kind of file.
    """
    if request.output is not None:
        path = Path(request.output).expanduser()
        if not path.name.endswith((_SUFFIX, ".tgz")):
            hint = f"Name a file that ends in {_SUFFIX}."
            raise InputError(f"{path.name!r} is no name for it.", field="--output", hint=hint)
        return path.absolute()
    name = f"doctor-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}{_SUFFIX}"
    with suppress(OSError):
        patient.node_folder.mkdir(parents=True, exist_ok=True)
    folder = patient.node_folder if os.access(patient.node_folder, os.W_OK) else Path.cwd()
    return folder / name


def _write_archive(path: Path, pieces: list[Piece]) -> None:
    """Write the archive, for its owner's eyes, or nothing.

    Raises:
        LauncherError: where it cannot be written.
    """
    folder = path.name.removesuffix(_SUFFIX).removesuffix(".tgz")
    now = int(time.time())
    try:
        with (
            file_anew(path, 0o600) as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for piece in pieces:
                content = piece.text.encode("utf-8", errors="replace")
                member = tarfile.TarInfo(f"{folder}/{piece.name}")
                member.size, member.mtime, member.mode = len(content), now, 0o600
                archive.addfile(member, io.BytesIO(content))
    except OSError as error:
        raise file_error(error, path) from None
