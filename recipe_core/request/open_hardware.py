"""From a session's PlanRequest to a SizeRequest, back to a PlanRequest, and the market in a link.

A link has one parameter for the market, ``any``: JSON of what differs from ``Market()``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import RecipeError
from recipe_core.engines.spec import default_engine
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.edit import change, select_split, shared_candidate
from recipe_core.request.first_error import validate_plain
from recipe_core.request.link import MAX_VALUE, START_LOADS
from recipe_core.request.metrics import Goal
from recipe_core.request.objective import Objective
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.size import AnyHardware, Market, SizeRequest
from recipe_core.request.split_key import split_key


def sized_goal(request: PlanRequest) -> Goal:
    """Return what counts of hardware: what the request optimises where sizing knows it, else cost.

    Throughput says nothing of hardware that is open: more of it always gives more.
    """
    optimize = request.objective.optimize
    return optimize if optimize in ("gpus", "energy") else "cost"


def size_request(
    request: PlanRequest, market: Market, goal: Goal = "cost", **afterwards: Any
) -> SizeRequest:
    """Return what a plan's request asks, on any hardware of a market.

    Its split and its clusters are left out. A load that is searched becomes the usual one: how much
    hardware carries a load has no answer without one.

    Args:
        request: the session's.
        market: what to choose from.
        goal: what counts.
        afterwards: ``growth``, ``availability`` and ``purchase``, as plain values.

    Raises:
        RecipeError: naming the field that is wrong.
    """
    objective = Objective(
        optimize=goal,
        limits=request.objective.limits,
        confidence=request.objective.required_confidence,
    )
    workload = request.workload
    if request.load_searched:
        workload = workload.model_copy(update={"concurrency": int(START_LOADS["closed"])})
    sized = SizeRequest(
        model=request.model,
        hardware=AnyHardware(any=market),
        workload=workload,
        objective=objective,
        options=request.options.model_copy(update={"hardware": (), "loads": ()}),
        candidate=shared_candidate(request),
    )
    if not afterwards:
        return sized
    return SizeRequest.parse({**sized.model_dump(mode="json", exclude_none=True), **afterwards})


def take_size_row(
    request: PlanRequest, size: SizeRequest, row: Mapping[str, Any]
) -> dict[str, Any]:
    """The changes that take a row of an answer: its hardware, price, objective and split.

    Its engine is named where the device's usual one is another.
    """
    changes: dict[str, Any] = {
        f"hardware.{name}": row["request"].get(name) for name in HardwareRequest.model_fields
    }
    changes["objective.optimize"] = size.objective.optimize
    changes["objective.orientation"] = None
    changes["objective.confidence"] = size.objective.confidence
    changes |= {f"objective.weights.{goal}": None for goal in request.objective.weights}
    if not request.is_training and not request.options.engines:
        usual = default_engine(device_profile(row["request"]["device"]).runtime).name
        if row["engine"] != usual:
            changes["options.engines"] = (usual, row["engine"])
    if isinstance(size.workload, ServingWorkload) and request.load_searched:
        changes["workload.concurrency"] = size.workload.concurrency
    on_it = change(request, changes)
    return {**changes, **select_split(on_it, split_key(row["split"]))}


def changed_market(market: Market, changes: Mapping[str, Any]) -> Market:
    """The market with some fields changed; None or nothing is the field's default.

    Raises:
        InputError: naming the field.
        HardwareError: for a device that there is not.
    """
    values = market_values(market) | dict(changes)
    return _parse_market(
        {name: value for name, value in values.items() if value not in (None, (), [])}
    )


def market_values(market: Market) -> dict[str, Any]:
    return market.model_dump(mode="json", exclude_defaults=True)


def market_query(market: Market) -> dict[str, str]:
    """The market as a parameter of a link; none where it is not narrowed."""
    values = market_values(market)
    if not values:
        return {}
    return {"any": json.dumps(values, separators=(",", ":"), ensure_ascii=False)}


def market_of(query: Mapping[str, str]) -> tuple[Market, list[str]]:
    """The market of a link, and a sentence for each part that was ignored; never raises."""
    text = query.get("any", "")
    if not text:
        return Market(), []
    if len(text) > MAX_VALUE:
        return Market(), [f"any: has {len(text):,} characters; the limit is {MAX_VALUE:,}."]
    try:
        values = parse_json(text, "any")
    except RecipeError as error:
        return Market(), [f"any: {error.message}"]
    if not isinstance(values, Mapping):
        return Market(), ["any: is not an object of what to choose from."]
    market, ignored = Market(), []
    for name, value in values.items():
        try:
            market = _parse_market({**market_values(market), name: value})
        except RecipeError as error:
            ignored.append(f"any.{name:.60}: {error.message} {error.hint or ''}".strip())
    return market, ignored


def _parse_market(values: Mapping[str, Any]) -> Market:
    """The market of plain values, with its devices looked up."""
    market = validate_plain(values, Market)
    for name in (*market.devices, *(owned.device for owned in market.owned)):
        device_profile(name)
    return market
