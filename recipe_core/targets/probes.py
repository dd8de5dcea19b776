"""Probes of a server: its health, and whether it makes tokens."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

from recipe_core.launch.process import Process
from recipe_core.payload.launcher.api import Api
from recipe_core.payload.launcher.exposition import PATHS
from recipe_core.payload.launcher.probe import question
from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.fill import PLAIN, Values, fill_placeholders
from recipe_core.targets.ports import port_name, port_of

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# Engines that publish counts of tokens, in images that have Python.
COUNTING = ("vllm", "sglang", "tensorrt-llm")
_GENERATES = Path(__file__).with_name("generates.py")
_AROUND_S = 5  # of a probe's time, what reading figures and starting Python take


def asks_for_tokens(context: Context, process: Process) -> bool:
    """Whether a probe can ask a server for a token, and see that a full one goes on.

    A pool alone answers nothing, and of an engine that publishes no counts a full server cannot be
    told from one that hangs.
    """
    return process.role == "server" and context.engine in COUNTING


def set_probe_port(container: dict[str, Any], port: int) -> None:
    for name in PROBES:
        if "httpGet" in container[name]:
            container[name]["httpGet"]["port"] = port


def _token_probe(
    context: Context, process: Process, values: Values, timeout_s: int
) -> dict[str, Any]:
    """Run the text of `generates` in a container, which has to answer in time."""
    tree = ast.parse(_GENERATES.read_text(encoding="utf-8"))
    text = ast.unparse(ast.Module(tree.body[1:], []))  # without its docstring
    launch, variable = context.launch, context.key_variable
    body = {key: _fill_value(value, values) for key, value in launch.api_body.items()}
    api = Api(launch.api_path, fill_placeholders(launch.api_model, values, PLAIN), body)
    words = [
        str(timeout_s - _AROUND_S),
        str(port_of(context, process)),
        PATHS.get(context.engine, "/metrics"),
        api.path,
        json.dumps(question(api)),
        *([variable] if variable else []),
    ]
    return {"exec": {"command": ["python3", "-c", text, *words]}}


def _fill_value(value: Any, values: Values) -> Any:
    return fill_placeholders(value, values, PLAIN) if isinstance(value, str) else value


def container_probes(
    context: Context, process: Process, values: Values, *, asks: bool = True
) -> dict[str, Any]:
    """Startup, readiness and liveness probes: health, and for liveness a token where that shows.

    A server that hangs loses its requests first, and is started again after the recipe's time.
    """
    get = {"path": context.launch.health, "port": port_name(process)}
    hang, unready = supervise.hang_looks(context), supervise.unready_looks(context)

    def probe(timeout_s: int, period_s: int, failures: int) -> dict[str, Any]:
        return {
            "httpGet": dict(get),
            "periodSeconds": period_s,
            "timeoutSeconds": timeout_s,
            "failureThreshold": failures,
        }

    looks = math.ceil(supervise.start_s(context) / supervise.PROBE_S)
    short_s = min(5, unready.period_s)
    liveness = probe(hang.period_s, hang.period_s, hang.failures)
    if asks and asks_for_tokens(context, process):
        hang = supervise.generation_looks(context)
        liveness = probe(hang.period_s, hang.period_s, hang.failures)
        liveness = _token_probe(context, process, values, hang.period_s) | liveness
        del liveness["httpGet"]
    return {
        "startupProbe": probe(5, supervise.PROBE_S, looks),
        "readinessProbe": probe(short_s, unready.period_s, unready.failures),
        "livenessProbe": liveness,
    }
