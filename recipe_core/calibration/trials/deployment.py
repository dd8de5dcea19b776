"""A deployment under test: a bundle's own launcher as a subprocess, and always stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from recipe_core.base.documents import parse_json, read_text
from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import write_bundle
from recipe_core.calibration.trials.guard import PYTHON, environment_of, take_bundle_down
from recipe_core.payload.launcher.api import Api
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.payload.launcher.signals import uninterrupted
from recipe_core.recipe import Recipe


class TrialError(RecipeError):
    """A deployment under test could not be started, asked or measured; ``detail`` has its log."""

    code = "trial"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, detail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.detail = detail


# Options of `up`: this very split, and nothing that starts it again.
ALONE = ("--strict", "--no-keep")
# The end of a launcher's words that an error repeats.
TAIL_BYTES = 4000
HOST = "127.0.0.1"
PORTS_TRIED = 64


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running deployment: its bundle's folder, and the port of its first entrance.

    ``key``: the variable with the API key that it asks for, as it was started; empty where the
    environment has it, or it asks for none.
    """

    folder: Path
    port: int
    api: Api
    work: Path
    key: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return HOST

    def bench(self, requests: int | None = None, limit_s: float | None = None) -> dict[str, Any]:
        """Measure it with the bundle's `bench`: the content of its ``measurement.json``.

        ``requests``: how many, by default as its workload says; ``limit_s``: seconds after which no
        new one is sent.

        Raises:
            TrialError: where requests fail.
        """
        words = ["--requests", str(requests)] if requests else []
        words += ["--duration-limit", f"{limit_s:.1f}"] if limit_s else []
        answer = _run_bundle_launcher(self.folder, self.work, "bench", words, self.key)
        if not isinstance(answer, dict) or "metrics" not in answer:
            raise TrialError(f"the launcher of {self.folder.name} printed no measurement.")
        return answer


@contextmanager
def running_deployment(
    recipe: Recipe,
    folder: Path,
    *,
    model: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Iterator[Deployment]:
    """Write a recipe's bundle to ``folder``, start it, and stop it however the block is left.

    ``folder`` lies in a `workplace.Workplace.work`. ``model``: the folder or name to serve instead
    of the recipe's; ``environment``: more variables; ``timeout_s``: seconds until it must answer.

    Raises:
        TrialError: where it does not start.
    """
    write_bundle(recipe, folder)
    plan = load_plan(folder)
    ports = [process.port - plan.parameters.port for process in plan.processes]
    port = free_ports(1 + max(ports))
    words = [*ALONE, "--port", str(port), "--host", HOST]
    words += ["--model", model] if model else []
    words += ["--timeout", f"{timeout_s:.1f}"] if timeout_s else []
    key = _trial_api_key(plan.api)
    try:
        shown = _run_bundle_launcher(
            folder, folder.parent, "up", words, {**(environment or {}), **key}
        )
        served = str(shown.get("model") or "") if isinstance(shown, dict) else ""
        api = replace(load_plan(folder, model=served).api, model=served)
        port = _printed_port(shown, port)
        yield Deployment(folder, port, api, folder.parent, key)
    finally:
        with uninterrupted():
            take_bundle_down(folder)


def _trial_api_key(api: Api) -> dict[str, str]:
    """A key for one that needs one and finds none: nobody else asks what is started for a trial."""
    variable = api.key_variable
    if not api.key_needed or variable is None or os.environ.get(variable):
        return {}
    return {variable: token_urlsafe(32)}


def _printed_port(shown: Any, port: int) -> int:
    """The port that users ask, as `up` prints it."""
    api = shown.get("api") if isinstance(shown, dict) else None
    text = str(api).rpartition(":")[2].partition("/")[0] if api else ""
    return int(text) if text.isdecimal() else port


def free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row.

    Raises:
        TrialError: where there are none.
    """
    for _ in range(PORTS_TRIED):
        with contextlib.ExitStack() as stack:
            first = 0
            try:
                for offset in range(count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind((HOST, first + offset if first else 0))
                    first = first or probe.getsockname()[1]
            except (OSError, OverflowError):
                continue
            return first
    raise TrialError(f"no {count} free ports in a row.", hint="End programs that listen on ports.")


def _run_bundle_launcher(
    folder: Path,
    work: Path,
    command: str,
    words: list[str],
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run a command of a bundle's launcher to its end; returns the JSON that it printed.

    Its words go to files: a keeper that it leaves in the background would hold a pipe open.

    Raises:
        TrialError: where it fails, with its message and the end of its log.
    """
    out, err = (folder / "run" / f"{command}.{kind}" for kind in ("out", "err"))
    out.parent.mkdir(exist_ok=True)
    with out.open("wb") as stdout, err.open("wb") as stderr:
        code = subprocess.run(
            [*PYTHON, str(folder / "launch.py"), "--json", command, *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**environment_of(work), **(environment or {})},
            start_new_session=True,  # so that Ctrl-C reaches this process alone
            check=False,
        ).returncode
    try:
        answer = parse_json(read_text(out, field="bundle"), f"the answer of {command}")
    except RecipeError:
        answer = None
    if code:
        raise _launcher_error(folder, command, code, answer, err)
    return answer


def _launcher_error(folder: Path, command: str, code: int, answer: Any, err: Path) -> TrialError:
    error = answer.get("error") if isinstance(answer, dict) else None
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or f"`{command}` of {folder.name} ended with code {code}")
    with err.open("rb") as file:
        file.seek(max(0, err.stat().st_size - TAIL_BYTES))
        tail = file.read().decode("utf-8", errors="replace")
    return TrialError(
        message if message.endswith(".") else f"{message}.",
        hint=str(error["hint"]) if error.get("hint") else None,
        detail=str(error.get("detail") or tail),
    )
