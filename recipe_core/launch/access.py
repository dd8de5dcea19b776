"""A launch whose servers ask their callers for a key, by what each engine has for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import Engine
from recipe_core.launch.process import Launch, Process

FIELD = "parameters.api_key_secret"
SCRIPT = "engine/keyed.py"
GUARD = "keyed.Guard"
_SOURCE = Path(__file__).parent / "serving" / "keyed.py"
_IN_FRONT = (
    "Leave it out, and put a gateway or proxy that checks callers before the servers; until then "
    "keep them on a loopback address or inside the cluster."
)


def with_key(started: Launch, spec: Engine) -> Launch:
    """The launch with every process that answers asking for the key in the engine's variable.

    Where an engine is told the key as an option, or leaves paths open, a script of the bundle
    starts it; others read the variable themselves.

    Raises:
        NoAnswer: for an engine, or a router before its pools, that asks nobody for a key.
    """
    api_key = spec.api_key
    if api_key is None:
        message = f"{spec.title} {spec.version} asks no caller for a key."
        raise NoAnswer(message, field=FIELD, hint=_IN_FRONT)
    routers = [process for process in started.processes if process.role == "router"]
    if routers and api_key.router_option is None:
        message = (
            f"the router before the pools of {spec.title} ({routers[0].argv[0]}) asks no caller "
            "for a key, and passes none on."
        )
        raise NoAnswer(message, field=FIELD, hint=f"Serve without pools. Or: {_IN_FRONT}")
    if api_key.option is None and api_key.guard is None:
        return started

    def keyed(process: Process) -> Process:
        if not process.answers:
            return process
        option = api_key.router_option if process.role == "router" else api_key.option
        words = ["python3", f"${{root}}/{SCRIPT}", api_key.variable, *([option] if option else [])]
        guard = () if option or api_key.guard is None else (api_key.guard, GUARD)
        return replace(process, argv=(*words, "--", *process.argv, *guard))

    return replace(
        started,
        processes=tuple(map(keyed, started.processes)),
        files={**started.files, SCRIPT: _SOURCE.read_text(encoding="utf-8")},
    )


def engine_words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command without the script of the bundle that starts it, after two dashes."""
    script = argv[0] == "python3" and "--" in argv
    return argv[argv.index("--") + 1 :] if script else argv
