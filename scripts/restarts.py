"""The causes of a diagnosis, and who restarts what where, in ``docs/reference/restarts.md``.

The values are those of example requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from recipe_core.payload.launcher import diagnosis
from recipe_core.recipe.build import Additions, make_recipe, redecide
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.context import Context
from recipe_core.targets.recipe_context import place_launch, target_context
from recipe_core.targets.restarts import EVENTS, LAUNCHER, Answer, restart_answers
from scripts.documents import REFERENCE, exchange

PAGE = REFERENCE / "restarts.md"
SERVING: Mapping[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
    "candidate": {"engine": "vllm", "tp": 1, "pp": 1, "dp": 4},
}
SPREAD: Mapping[str, Any] = {
    **SERVING,
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 2},
    "candidate": {"engine": "vllm", "tp": 8, "pp": 2, "dp": 1},
}
TRAINING: Mapping[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 2},
    "workload": {
        "kind": "training",
        "sequence_length": 4096,
        "global_batch": 256,
        "tokens": 1e10,
    },
    "candidate": {"engine": "torch"},
}
TABLES: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "Serving": {
        "launcher": (LAUNCHER, SERVING),
        "systemd": ("systemd", SERVING),
        "Compose": ("compose", SERVING),
        "Kubernetes Deployment": ("kubernetes", SERVING),
        "LeaderWorkerSet": ("kubernetes", SPREAD),
        "KServe": ("kserve", SERVING),
        "Slurm": ("slurm", SERVING),
        "Ray Serve": ("ray-serve", SERVING),
        "SkyPilot": ("skypilot", SERVING),
    },
    "Training": {
        "launcher": (LAUNCHER, TRAINING),
        "JobSet": ("jobset", TRAINING),
        "TrainJob": ("kubeflow-trainjob", TRAINING),
        "PyTorchJob": ("kubeflow-pytorchjob", TRAINING),
        "Volcano": ("volcano", TRAINING),
        "Slurm": ("slurm", TRAINING),
        "SkyPilot": ("skypilot", TRAINING),
    },
}
"""Columns of each table: a target, and the request whose recipe's values stand in its cells."""


def context_of(request: Mapping[str, Any]) -> Context:
    """The context of a request's recipe."""
    return _context(str(request["hardware"]["nodes"]), request["workload"].get("kind", "serving"))


@cache
def _context(nodes: str, kind: str) -> Context:
    values = TRAINING if kind == "training" else {"1": SERVING, "2": SPREAD}[nodes]
    place = Parameters(api_key_secret="key")  # without which SkyPilot has no service
    recipe = make_recipe(PlanRequest.parse(values), Additions(parameters=place), folders=False)
    decision = redecide(recipe)
    return target_context(recipe, decision, place_launch(decision, place))


def cell(answer: Answer) -> str:
    """An answer as a cell; the README of a bundle has its settings too."""
    return f"**{answer.who}**: {answer.does}"


def restart_table(columns: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Rows of events and columns of targets."""
    by_column = [
        restart_answers(target, context_of(request)) for target, request in columns.values()
    ]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for event, words in EVENTS.items():
        lines.append(f"| {words} | {' | '.join(cell(answer[event]) for answer in by_column)} |")
    return lines


def causes_table() -> str:
    """A row a cause that the launcher's diagnosis knows."""
    lines = ["| cause | what it is | answer |", "|---|---|---|"]
    for cause in diagnosis.KNOWN:
        answer = "restart" if cause.transient else "next choice, or stop"
        lines.append(f"| `{cause.id}` | {cause.title} | {answer} |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """The page with its tables written anew."""
    parts = [
        "\n".join([f"### {title}: who restarts what", "", *restart_table(columns)])
        for title, columns in TABLES.items()
    ]
    return exchange(exchange(text, "causes", causes_table()), "restarts", "\n\n".join(parts))
