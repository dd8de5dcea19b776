"""The recipe's supervision in the terms of controllers: probes, grace periods, budgets.

Each function turns seconds and counts of ``Supervision`` into what a controller takes; which of its
settings answers which event is said in ``restarts.py``.
"""

from __future__ import annotations

import ast
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.engines.training_programs import training_engine
from recipe_core.launch.process import Process
from recipe_core.launch.start import limit_s
from recipe_core.launch.training import job
from recipe_core.payload.launcher.api import Api
from recipe_core.payload.launcher.exposition import PATHS
from recipe_core.payload.launcher.serving_probe import question
from recipe_core.targets.context import Context
from recipe_core.targets.layout import port_name, port_of
from recipe_core.targets.node_script import PLAIN, Values, fill_placeholders

REQUEUE_S = 60  # to put a job back in the queue before its time limit
STOP_S = 30  # an engine that was told to stop has so long after its last request, then it is killed
PROBE_S = 10  # between two looks at a server's health, less where a hang must be seen sooner
LOOKS = 6  # in the time of a hang, so that one lost answer is not taken for one
ASKED = 3  # requests for a token in the time of a hang
UNREADY = 3  # looks without an answer after which requests go elsewhere, before a restart
RAY_FAILURES = 3  # health checks in a row that Ray Serve waits for (its own, no setting)
SPARE_FAILURES = 2  # times the device failures that a run's estimate expects


@dataclass(frozen=True, slots=True)
class Looks:
    """A health check every ``period_s`` seconds; ``failures`` in a row without an answer count."""

    period_s: int
    failures: int


def start_s(context: Context) -> int:
    """Seconds that a start may take, as the bundle's launcher has it."""
    return limit_s(
        context.launch,
        context.weights_bytes,
        context.model_source,
        context.parameters.storage_mb_per_s,
    )


def hang_looks(context: Context) -> Looks:
    """Looks that together last as long as a server may be silent."""
    silent_s = context.supervision.hang_s
    period_s = max(1, min(PROBE_S, silent_s // LOOKS))
    return Looks(period_s, math.ceil(silent_s / period_s))


def generation_looks(context: Context) -> Looks:
    """Looks that ask a server for a token, long enough each that a slow one is none that hangs."""
    silent_s = context.supervision.hang_s
    period_s = max(PROBE_S, silent_s // ASKED)
    return Looks(period_s, max(1, silent_s // period_s))


def unready_looks(context: Context) -> Looks:
    """Looks after which a server gets no new requests, always before it counts as hung."""
    looks = hang_looks(context)
    return Looks(looks.period_s, max(1, min(UNREADY, looks.failures - 1)))


def ray_timeout_s(context: Context) -> int:
    """Seconds without an answer after which a check of Ray Serve counts as failed."""
    return max(1, context.supervision.hang_s // RAY_FAILURES)


def prometheus_duration(seconds: int) -> str:
    """Seconds as Prometheus writes a duration: whole minutes where they are."""
    return f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"


def grace_s(context: Context) -> int:
    """Seconds from a request to stop until a kill.

    Running requests finish, then the engine; a trainer that can writes a checkpoint.
    """
    if context.kind == "training":
        return trainer_stop_s(context) if "signal" in saves_on(context) else STOP_S
    return context.supervision.drain_s + STOP_S


def saves_on(context: Context) -> tuple[str, ...]:
    """Return how a trainer is made to save and end: ``stop-file``, ``signal``, or nothing."""
    return training_engine(context.engine).saves_on


def trainer_stop_s(context: Context) -> int:
    """Seconds that a trainer which is told to stop has for its step and a checkpoint."""
    return job.stop_grace_s(*_step_and_write(context))


def before_limit_s(context: Context) -> int:
    """Seconds before a time limit at which a job is told to stop."""
    if context.kind == "serving":
        return grace_s(context)
    return (trainer_stop_s(context) if saves_on(context) else 0) + REQUEUE_S


def first_checkpoint_s(context: Context) -> int:
    """Seconds from a start of a run until its first checkpoint is written.

    A trainer that saves when it is told to needs a single step before.
    """
    step_s, write_s = _step_and_write(context)
    run = context.estimate.get("run", {})
    begins_s = run.get("restart_s") or 0.0
    if saves_on(context):
        return math.ceil(begins_s + step_s) + before_limit_s(context)
    interval_s = max(run.get("checkpoint_interval_s") or 0.0, step_s)
    return math.ceil(begins_s + interval_s + write_s) + before_limit_s(context)


def _step_and_write(context: Context) -> tuple[float, float]:
    """Seconds of a step and of writing a checkpoint, as estimated; 0 where that is not known."""
    run, step = context.estimate.get("run", {}), context.estimate.get("training", {})
    return step.get("step_s") or 0.0, run.get("checkpoint_s") or 0.0


def rollout_limits(context: Context, replicas: int) -> dict[str, int]:
    """Return how many replicas an update replaces at once. None is added: devices are not spare."""
    min_available = context.supervision.available_of(replicas)
    return {"maxSurge": 0, "maxUnavailable": max(1, replicas - min_available)}


def lifetime_restarts(context: Context) -> int:
    """Restarts of a job over its whole life, for controllers that know no window of time.

    The crash budget, and for a run of known length the failures of devices to be expected in it.
    """
    return context.supervision.crash_budget + expected_failures(context)


def most_failures(context: Context) -> int:
    """Starts of a Slurm job that may fail before it is given up."""
    return context.supervision.requeues + expected_failures(context)


def expected_failures(context: Context) -> int:
    """Failures of devices to allow for in a run: twice the estimate's mean; 0 where unknown."""
    run = context.estimate.get("run", {})
    wall_s, mtbf_s = run.get("wall_s"), run.get("mtbf_s")
    return math.ceil(SPARE_FAILURES * wall_s / mtbf_s) if wall_s and mtbf_s else 0


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# Engines that publish counts of tokens, in images that have Python.
COUNTING = ("vllm", "sglang", "tensorrt-llm")
_GENERATES = Path(__file__).with_name("generates.py")
_AROUND_S = 5  # of a probe's time, what reading figures and starting Python take


def asks_for_tokens(context: Context, process: Process) -> bool:
    """Return whether a probe can ask a server for a token, and see that a full one goes on.

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
    hang, unready = hang_looks(context), unready_looks(context)

    def probe(timeout_s: int, period_s: int, failures: int) -> dict[str, Any]:
        return {
            "httpGet": dict(get),
            "periodSeconds": period_s,
            "timeoutSeconds": timeout_s,
            "failureThreshold": failures,
        }

    looks = math.ceil(start_s(context) / PROBE_S)
    short_s = min(5, unready.period_s)
    liveness = probe(hang.period_s, hang.period_s, hang.failures)
    if asks and asks_for_tokens(context, process):
        hang = generation_looks(context)
        liveness = probe(hang.period_s, hang.period_s, hang.failures)
        liveness = _token_probe(context, process, values, hang.period_s) | liveness
        del liveness["httpGet"]
    return {
        "startupProbe": probe(5, PROBE_S, looks),
        "readinessProbe": probe(short_s, unready.period_s, unready.failures),
        "livenessProbe": liveness,
    }
