"""Plans of commands: a judged command as changes of a request for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload

# Parts of a workload that a command may decide; what it does not is taken out.
DECIDED = ("task", "max_context", "output_tokens", "speculative", "images", "audio")
# What requests without an answer in tokens do not have.
WITHOUT_ANSWERS = {
    "objective.limits.tpot_ms": None,
    "options.speculative": (),
    "options.disaggregated": False,
}


def plan_request_of(answer: Mapping[str, Any], request: PlanRequest) -> dict[str, Any]:
    """The changes that make a request ask for a plan of what a judged command starts.

    Model, engine, formats, longest context, limits, drafts and tiers of the cache are the
    command's, devices those that it was judged on, and its own layout the candidate. Lengths and
    load are those of the verdict, but for a load that the request states in another mode or leaves
    to be searched. Hand them to ``recipe_core.request.edit.change``.

    Args:
        answer: of ``judge_command``.
        request: to be changed.

    Raises:
        KeyError: for an answer without an estimate, of which nothing is known.
    """
    judged = answer["request"]
    candidate, workload, hardware = (judged[n] for n in ("candidate", "workload", "hardware"))
    formats = {n: (candidate.get(n) or "auto",) for n in ("weight_dtype", "kv_dtype")}
    steps = candidate.get("max_batched_tokens")
    layout = {name: value for name, value in answer["candidate"].items() if value is not None}
    changes: dict[str, Any] = {"workload.kind": "serving"} if request.is_training else {}
    if hardware["device"] != request.hardware.device:
        changes["hardware.device"] = hardware["device"]
    changes |= {
        "model": judged["model"],
        "hardware.per_node": hardware["per_node"],
        "hardware.nodes": hardware["nodes"],
        "options.engines": (candidate["engine"],),
        "options.hardware": (),
        "options.weight_dtypes": formats["weight_dtype"],
        "options.kv_dtypes": formats["kv_dtype"],
        "options.max_batched_tokens": () if steps is None else (steps,),
        "options.kv_offload": judged.get("options", {}).get("kv_offload"),
        "workload.input_tokens": workload["input_tokens"],
        **{f"workload.{name}": workload.get(name) for name in DECIDED},
        "candidate": layout,
    }
    if workload.get("task", "generate") != "generate":
        changes |= WITHOUT_ANSWERS
        goal = request.objective.optimize
        changes |= {"objective.optimize": "throughput"} if goal == "tpot" else {}
    former = request.workload
    if not isinstance(former, ServingWorkload) or former.concurrency is not None:
        changes["workload.concurrency"] = workload["concurrency"]
    return changes
