"""The fleet of the session: its document, edits of it, and what it may start from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import _session as session
import streamlit as st

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import RecipeError
from recipe_core.base.resources import PACKAGE
from recipe_core.doors.fleets import read_fleet_question
from recipe_core.doors.serve import folders_allowed
from recipe_core.fleets.inventory.read import merge_inventories, read_inventory
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.what_if import FleetChanges
from recipe_core.request.describe import model_name
from recipe_core.request.schema import PlanRequest

NAME = "fleet.yaml"
EXAMPLE = PACKAGE / "fleets" / "example.yaml"
TEXT, MONTH, REFUSED, BEFORE = "fleet-text", "fleet-month", "fleet-refused", "fleet-before"
NOTES, TRIED = "fleet-notes", "fleet-tried"
"""What of the session holds what to know of the last inventory, and changes by their labels."""
NOT_OF_ONE_MODEL = {"hardware", "loads", "scaling", "simulated"}
"""Options of a plan that a fleet decides."""
LONGEST_NAME = 40


# --- the document


@lru_cache(maxsize=32)
def read_fleet(text: str) -> FleetRequest:
    """Read a text as far as can be told without placing it.

    Raises:
        RecipeError: naming the field.
    """
    return read_fleet_question(parse_yaml(text, NAME), folders=folders_allowed()).request


def current_text() -> str:
    text: str = st.session_state.get(TEXT) or EXAMPLE.read_text(encoding="utf-8")
    return text


def current_fleet() -> FleetRequest:
    return read_fleet(current_text())


def current_values() -> dict[str, Any]:
    values: dict[str, Any] = parse_yaml(current_text(), NAME)
    return values


def current_month() -> float:
    """Months ahead of today for which the fleet is placed."""
    month: float = st.session_state.get(MONTH, 0.0)
    return month


def tried_changes() -> dict[str, FleetChanges]:
    """Changes that the reader tries, by their labels."""
    tried: dict[str, FleetChanges] = st.session_state.setdefault(TRIED, {})
    return tried


def is_example() -> bool:
    return not st.session_state.get(TEXT)


def take_text(text: str, undo: str, month: float = 0.0) -> None:
    """Make a text the session's fleet; one that is none is refused and stays in the editor.

    ``undo``: what the change is called, which can be taken back.
    """
    try:
        read_fleet(text)
    except RecipeError as error:
        st.session_state[REFUSED] = (text, error)
        return
    before = (undo, st.session_state.get(TEXT), current_month())
    _settle(text, month, before)


def take_values(values: Mapping[str, Any], undo: str, month: float = 0.0) -> None:
    take_text(to_yaml(values), undo, month)


def undo_label() -> str | None:
    before = st.session_state.get(BEFORE)
    return before[0] if before else None


def take_back() -> None:
    """Take the last change of the fleet back."""
    _, text, month = st.session_state[BEFORE]
    _settle(text, month, None)


def _settle(text: str | None, month: float, before: tuple[str, str | None, float] | None) -> None:
    state = {TEXT: text, MONTH: month, BEFORE: before, REFUSED: None, TRIED: {}, NOTES: []}
    st.session_state.update(state)


def take_file(data: bytes, name: str) -> None:
    """Make a file the session's fleet, or the machines that it lists the fleet's pools.

    Pools of the example are replaced. What to know of an inventory is kept for the page to say.
    """
    state = st.session_state
    try:
        text = data.decode()
        if re.search(r'^["{\s]*models"?\s*:', text, re.MULTILINE):
            take_text(text, "the upload")
            return
        inventory = read_inventory(text, name)
        values = current_values() | ({"pools": []} if is_example() else {})
        merged, notes = merge_inventories(values, [inventory])
    except UnicodeDecodeError:
        state["refused"] = f"{name} is not UTF-8 text."
    except RecipeError as error:
        state["refused"] = f"{error.message} {error.hint or ''}".strip()
    else:
        take_values(merged, f"the machines of {name}")
        state[NOTES] = [*inventory.notes, *notes]


# --- from plans


def why_no_start() -> str | None:
    """Say why a fleet cannot start from the session's plan; None where it can."""
    workload = session.request().workload
    if workload.kind == "serving" and workload.mode in ("open", "closed"):
        return None
    return "A fleet starts from a model that serves users or requests a second; add this as a job"


def start_from_plan() -> None:
    _take_fleet_with({}, session.request(), "the start from the plan")


def add_request(request: PlanRequest) -> None:
    """Add what a plan is about, and its devices where no pool has them."""
    _take_fleet_with(current_values(), request, f"{model_name(request)} added")


def _take_fleet_with(values: Mapping[str, Any], request: PlanRequest, undo: str) -> None:
    """Take a fleet with one more model or job; of devices without a price the power is paid."""
    try:
        fleet = fleet_with(values, request, rented=True)
        read_fleet(to_yaml(fleet))
    except RecipeError:
        fleet = fleet_with(values, request, rented=False)
    take_values(fleet, undo)


def fleet_with(values: Mapping[str, Any], request: PlanRequest, *, rented: bool) -> dict[str, Any]:
    """Plain values of a fleet with one more model or job, and a pool where none has its devices."""
    serves = request.workload.kind == "serving" and request.workload.mode != "offline"
    kind = "models" if serves else "jobs"
    pools = list(values.get("pools", []))
    taken_names = {part["name"] for name in ("models", "jobs") for part in values.get(name, [])}
    part = {"name": free_name(model_name(request).rpartition("/")[2], taken_names)}
    out = {"models": [], "pools": [], **values}
    out[kind] = [*values.get(kind, []), part | plain_part(request)]
    if not any(pool["device"] == request.hardware.device for pool in pools):
        pool_names = {pool["name"] for pool in pools}
        name = {"name": free_name(request.hardware.device_name, pool_names)}
        out["pools"] = [*pools, name | plain_pool(request, rented=rented)]
    return out


def free_name(name: str, taken_names: set[str]) -> str:
    """A name as a fleet takes it, with a number where another has it."""
    base = re.sub(r"[^a-z0-9]+", "-", name.lower())[: LONGEST_NAME - 4].strip("-") or "model"
    numbered = (f"{base}-{n}" for n in range(2, len(taken_names) + 3))
    return next(free for free in (base, *numbered) if free not in taken_names)


def plain_part(request: PlanRequest) -> dict[str, Any]:
    """A model or a job, as far as its plan says more than is usual."""
    workload = {"kind": request.workload.kind, **brief(request.workload)}
    workload.pop("over_time", None)
    objective = {k: v for k, v in brief(request.objective).items() if k in ("limits", "confidence")}
    options = {k: v for k, v in brief(request.options).items() if k not in NOT_OF_ONE_MODEL}
    parts = {"workload": workload, "objective": objective, "options": options}
    return {"model": request.model, **{name: part for name, part in parts.items() if part}}


def plain_pool(request: PlanRequest, *, rented: bool) -> dict[str, Any]:
    """A pool of the hardware of a plan, under the term of its price."""
    hardware = request.hardware
    out = {name: getattr(hardware, name) for name in ("device", "nodes", "per_node")}
    if hardware.usd_per_device_hour is not None:
        out["term"] = hardware.commitment or "owned"
        out["usd_per_device_hour"] = hardware.usd_per_device_hour
    elif rented:
        out["term"] = "spot" if hardware.commitment == "spot" else "on-demand"
        out |= {"offer": hardware.offer} if hardware.offer else {}
    return out


def brief(part: Any) -> dict[str, Any]:
    out: dict[str, Any] = part.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return out
