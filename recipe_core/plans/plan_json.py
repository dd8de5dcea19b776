"""The JSON of a plan, and the words in it: names of splits, what queues, doubts and launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.base.units import seconds_text
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.measured.support import device_support
from recipe_core.hardware.cluster import chip_title
from recipe_core.models.variants import stored_as
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.rank import (
    beats,
    count_ties,
    front_of_columns,
    front_with_accuracy,
    nearest_row,
)
from recipe_core.plans.splits import refusal_reasons, row_estimates, row_reasons, row_state
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import load_field_text, split_name

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan


def plan_document(plan: Plan, top: int, refused: int) -> dict[str, Any]:
    """The plan as the contract writes it (``Plan.to_json``)."""
    shown = plan.order[:top]
    rows = np.flatnonzero(~plan.feasible)
    ranked = zip(
        shown.tolist(),
        _cases_json(plan, shown),
        _states_json(plan, shown),
        plan.estimates(shown),
        front_of_columns(plan)[shown].tolist(),
        [None, *beats(plan, shown[1:], int(shown[0]))] if len(shown) else [],
        plan.chances[shown].tolist() if stated_limits(plan) else [None] * len(shown),
        strict=True,
    )
    listed = rows[:refused]
    reasons = zip(_cases_json(plan, listed), refusal_reasons(plan, listed), strict=True)
    places = plan.problem.clusters
    unpriced = [place.device.name for place in places if place.usd_per_device_hour is None]
    corrections = plan.problem.corrections
    effect = plan.own_runs_effect and {"effect": plan.own_runs_effect.to_json()}
    own_runs = {} if corrections is None else {"own_runs": corrections.to_json() | (effect or {})}
    return {
        "schema_version": 1,
        "candidates": [
            {
                "rank": rank,
                **case,
                **state,
                "bundle": can_bundle(plan, row),
                "estimate": estimate.to_json(),
                "pareto": pareto,
                "beats_best": chance,
                "confidence": confidence,
            }
            for rank, (row, case, state, estimate, pareto, chance, confidence) in enumerate(
                ranked, 1
            )
        ],
        "refused": [{**case, "reasons": sentences} for case, sentences in reasons],
        "nearest": _nearest_json(plan),
        "counts": {
            "candidates": len(plan),
            "feasible": len(plan.order),
            "holds": int(plan.holds.sum()),
            "queues": int((plan.feasible & plan.queues).sum()),
            "uncertain": int((plan.feasible & plan.uncertain).sum()),
            "refused": len(rows),
            "tied_with_best": count_ties(plan),
        },
        "unpriced": list(dict.fromkeys(unpriced)),
        "launch_note": plan_launch_note(plan),
        **own_runs,
    }


def _cases_json(plan: Plan, rows: Int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"candidate": split} for split in plan.candidates(rows)]
    serving = plan.kind == "serving"
    several = len(plan.problem.clusters) > 1
    for case, row in zip(out, rows.tolist(), strict=True):
        setting = plan.setting(row)
        if several:
            hardware = setting.cluster.request
            case["hardware"] = hardware.model_dump(exclude_none=True) if hardware else None
        if plan.request.loads_differ:
            case["load"] = plan.columns["load"][row].item()
        if serving and setting.needs_other_checkpoint:
            case["checkpoint"] = checkpoint_of(setting)
    return out


def checkpoint_of(setting: Setting) -> str | None:
    """The checkpoint of the catalog that already is a setting's weights; None where it has none.

    The request's own where it stores them, or the engine makes them while it loads.
    """
    if not setting.needs_other_checkpoint:
        return setting.model.weights
    return stored_as(setting.model.name, setting.weight_dtype)


def _states_json(plan: Plan, rows: Int) -> list[dict[str, Any]]:
    """Return whether rows hold their load at once, their job, and whether they are on the front."""
    out = [_state_json(plan, row) for row in rows.tolist()]
    serving = plan.kind == "serving"
    on_front = front_with_accuracy(plan) if serving else None
    for state, row in zip(out, rows.tolist(), strict=True):
        if serving and plan.problem.workload.mode == "offline":
            figures = {name: float(plan.columns[name][row]) for name in ("wall_s", "usd")}
            state |= {k: value if math.isfinite(value) else None for k, value in figures.items()}
        if on_front is not None:
            state["pareto_accuracy"] = bool(on_front[row])
    return out


def _state_json(plan: Plan, row: int) -> dict[str, Any]:
    """Return whether a feasible row holds its load at once; where not, how much or why not."""
    state = {"state": row_state(plan, row)}
    if plan.uncertain[row]:
        chance = float(plan.columns["start_probability"][row])
        return {**state, "start_probability": chance, "doubt": doubt_text(plan, row)}
    if not plan.queues[row]:
        return {**state}
    requests = int(plan.columns["held_requests"][row])
    return {**state, "holds_requests": requests, "queue": queue_text(plan, row)}


def _nearest_json(plan: Plan) -> dict[str, Any] | None:
    row = nearest_row(plan)
    if row is None:
        return None
    return {
        "candidate": plan.candidate(row),
        "estimate": plan.completed(row).to_json(),
        "reasons": row_reasons(plan, row),
        "changes": [change.to_json() for change in plan.changes()],
    }


# bundles


def plan_launch_note(plan: Plan) -> str | None:
    """Say why no bundle of any split can be made, as sentences; None where one can."""
    return plan.spec.launch_note(plan)


def can_bundle(plan: Plan, row: int) -> bool:
    """Return whether a bundle of a split can be made; else its figures are estimates only."""
    if plan.kind == "serving":
        return True
    return plan.problem.workload.tokens is not None and not plan.spec.unlaunchable(plan, row)


# names of rows


def split_label(plan: Plan, row: int, *, device: bool = True) -> str:
    """The degrees, and what else a split is.

    Device (unless that is said elsewhere), engine, formats and load where the plan has several.
    """
    return split_labels(plan, [row], device=device)[0]


def split_labels(plan: Plan, rows: Sequence[int] | Int, *, device: bool = True) -> list[str]:
    """The same of some rows. Many at once cost little more than one."""
    labels = [split_name(candidate) for candidate in plan.candidates(rows)]
    differing = plan.differs - (set() if device else {"device"})
    if not differing:
        return labels
    return [
        " · ".join([label, *_row_titles(plan, int(row), differing)])
        for label, row in zip(labels, rows, strict=True)
    ]


def _row_titles(plan: Plan, row: int, names: frozenset[str]) -> list[str]:
    """Say what a row is besides its degrees, of some ``names``."""
    setting = plan.setting(row)
    place = setting.cluster
    titles = {
        "device": f"{place.devices} × {chip_title(place.device)}",
        **plan.spec.titles_of(setting),
        "load": row_load_text(plan, row),
    }
    return [text for name, text in titles.items() if name in names]


def row_load_text(plan: Plan, row: int) -> str:
    """The load of a row with what it counts: ``64 in flight``; empty for training."""
    if plan.kind == "training":
        return ""
    return load_field_text(LOADS[plan.problem.workload.mode], float(plan.columns["load"][row]))


def cluster_title(plan: Plan, row: int) -> str:
    """The device of a row as its title, and what else tells its cluster apart.

    With its number where several clusters are of one device, and counted where that too is the
    same.
    """
    titles = [chip_title(place.device) for place in plan.clusters]
    counted = [
        title if titles.count(title) == 1 else f"{place.devices} × {title}"
        for place, title in zip(plan.clusters, titles, strict=True)
    ]
    number = int(plan.clusters_of_rows[row])
    title = counted[number]
    if counted.count(title) == 1:
        return title
    return f"{title} ({counted[: number + 1].count(title)})"


def device_word(plan: Plan) -> str:
    """``GPU``, or ``machine`` where the processor computes."""
    return "machine" if plan.problem.cluster.device.runtime == "cpu" else "GPU"


def device_basis(plan: Plan) -> str:
    return device_support(plan.problem.cluster.device).level


# states of rows


def queue_text(plan: Plan, row: int) -> str:
    """``holds 9 of 64 at once, 46 s of the time to first token is waiting``, or empty."""
    if not plan.queues[row]:
        return ""
    waiting_s = float(plan.columns["queue_s"][row])
    phrase = f"holds {held_text(plan, row)} at once"
    if waiting_s <= 0:
        return phrase
    return f"{phrase}, {seconds_text(waiting_s)} of the time to first token is waiting"


def held_text(plan: Plan, row: int) -> str:
    """Say how much of its load a queueing row holds: ``9 of 64``; empty for any other row."""
    if not plan.queues[row]:
        return ""
    requests, load = (float(plan.columns[name][row]) for name in ("held_requests", "load"))
    return f"{requests:,.0f} of {load:,.0f}"


def doubt_text(plan: Plan, row: int) -> str:
    """Say why it is uncertain whether a row starts, with the probability; empty for others."""
    if not plan.uncertain[row]:
        return ""
    estimates, place = row_estimates(plan, row)
    return str(estimates.doubts(np.array([place]))[0])


def measure_text(plan: Plan, name: str, row: int) -> str:
    """A measure of one row as a sentence says it."""
    value = float(plan.raw(name)[row])
    return plan.measures[name].show(value) if np.isfinite(value) else "unknown"
