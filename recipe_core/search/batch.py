"""Estimates of thousands of requests: those that share a setting are columns of one estimate."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.hardware.cluster import is_own
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.serving_candidates import Resolved, one_split, resolve
from recipe_core.search.serving_plan import chosen_plan, judged
from recipe_core.search.training_search import estimate_training_many
from recipe_core.space.serving import Cases, Setting, stack


def estimate_many(values: Iterable[Any]) -> list[dict[str, Any]]:
    """One estimate a request, in order; a bad request answers its error in its place.

    Requests that share model, device, engine, mode and dtypes are estimated together, as columns.
    """
    answers: dict[int, dict[str, Any]] = {}
    training: list[tuple[int, PlanRequest]] = []
    groups: defaultdict[str, list[tuple[int, Resolved, Setting, Cases]]] = defaultdict(list)
    for n, value in enumerate(values):
        try:
            if isinstance(value, RecipeError):  # a line that was no document
                raise value
            request = PlanRequest.parse(value)
            if request.is_training:
                training.append((n, request))
                continue
            found = resolve(request)
            exact = one_split(found, request.candidate or CandidateRequest())
            if exact is None:
                table, row = chosen_plan(request)
                answers[n] = table.estimate(row)
            else:
                groups[setting_key(found, exact[0])].append((n, found, *exact))
        except RecipeError as error:
            answers[n] = error.to_json()
    for members in groups.values():
        first = members[0]
        block = judged(first[1], first[2], stack([columns for _, _, _, columns in members]))
        answers |= {n: block.row(i) for i, (n, _, _, _) in enumerate(members)}
    answers |= estimate_training_many(training)
    return [answers[n] for n in sorted(answers)]


def setting_key(found: Resolved, chosen: Setting) -> str:
    """What requests must share to be columns of one estimate: all of the setting (not the counts) and the limits."""
    c, workload = chosen.cluster, found.workload
    hardware = [
        c.device.digest if is_own(c.device) else c.device.name,
        c.fabric.name,
        c.network.name,
        c.usd_per_device_hour,
        c.price_basis,
    ]
    limits = found.request.objective.limits.model_dump(mode="json") | {
        "spread": (workload.input_spread, workload.output_spread)
    }
    candidate = found.request.candidate
    pools = (
        candidate is not None and candidate.prefill is not None
    )  # either all columns of an estimate have two pools or none
    names = [
        chosen.model.name,
        chosen.model.digest,
        chosen.engine.name,
        chosen.mode,
        chosen.weight_dtype,
        chosen.kv_dtype,
    ]
    return json.dumps([*names, hardware, limits, pools])
