"""The plan of the request, cached, and the splits of it that the session names."""

from __future__ import annotations

import json
import threading
from functools import lru_cache

import _address as address
import _session as session
import _work as work
import streamlit as st
from cachetools import LRUCache, cached

import recipe_core as rb
from recipe_core.base.errors import RecipeError
from recipe_core.doors.pool import server_pool
from recipe_core.doors.serve import folders_allowed
from recipe_core.plans.alternatives import MOST_ROWS, Alternative, find_alternatives
from recipe_core.plans.confidence_prices import ConfidencePrice, price_confidences
from recipe_core.plans.plan import Plan
from recipe_core.plans.remedies import Change, buildable_changes
from recipe_core.plans.splits import find_row, row_request
from recipe_core.request.edit import SHARED, shared_candidate
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import key_split, split_name

_plans: LRUCache[tuple[str, str, bool], Plan] = LRUCache(
    server_pool().settings.cached_candidates, getsizeof=len
)


# the digest only tells apart what files of the model and the calibration held before and hold now
@cached(_plans, lock=threading.Lock())
def _plan_of_text(text: str, digest: str, may_read: bool) -> Plan:  # noqa: ARG001
    return work.calculated("Evaluating every layout", rb.plan, json.loads(text), folders=may_read)


@lru_cache(maxsize=64)
def _single_changes_of(text: str, digest: str, may_read: bool) -> list[Change]:
    plan = _plan_of_text(text, digest, may_read)
    return work.calculated("Looking for a change that fits", Plan.changes, plan)


@lru_cache(maxsize=64)
def _alternatives_of(text: str, digest: str, may_read: bool) -> list[Alternative]:
    plan = _plan_of_text(text, digest, may_read)
    return work.calculated(
        "Planning alternatives", find_alternatives, plan, runners_up=True, simulated_noun=""
    )


@lru_cache(maxsize=64)
def _confidence_prices_of(text: str, digest: str, may_read: bool) -> tuple[ConfidencePrice, ...]:
    plan = _plan_of_text(text, digest, may_read)
    if not plan.request.load_searched and len(plan) <= MOST_ROWS:
        return price_confidences(plan)  # which picks among its rows: to send it takes longer
    return work.calculated("Pricing certainty", price_confidences, plan, simulated_noun="")


@lru_cache(maxsize=64)
def _buildable_changes_of(text: str, digest: str, may_read: bool) -> list[Change]:
    plan = _plan_of_text(text, digest, may_read)
    return work.calculated("Looking for what can be built", buildable_changes, plan)


def _cache_key() -> tuple[str, str]:
    """The request without its split, on which no plan depends, and the digest of files.

    Of a training candidate stays what all splits share.
    """
    request = session.request()
    open_request = request.model_copy(update={"candidate": shared_candidate(request)})
    return json.dumps(open_request.to_json()), session.inputs_digest()


def planned_request() -> Plan:
    """The plan of the request, cached. Sessions share it, so read only.

    Raises:
        RecipeError: where there is nothing to plan; the verdict on the page shows it.
    """
    key = _cache_key()
    plan = _plan_of_text(*key, folders_allowed())
    _look_outside(plan, key)
    return plan


def _look_outside(plan: Plan, key: tuple[str, str]) -> None:
    """Note what of the session is outside of a plan, and what its pins ask while they fit."""
    state, inputs = st.session_state, (key, tuple(session.pins()), session.request().candidate)
    if state.get("looked") == inputs:
        return
    rows = {key: find_row(plan, key) for key in session.pins()}
    pinned_requests = {
        key: row_request(plan, row)
        for key, row in rows.items()
        if row is not None and plan.feasible[row]
    }
    state["pinned_requests"] = {
        key: pinned for key, pinned in state.get("pinned_requests", {}).items() if key in rows
    } | pinned_requests
    lost = "" if is_stated() or lost_split_name(plan) is None else session.selected_key()
    pins_outside = frozenset(key for key, row in rows.items() if row is None)
    state.update({"outside": address.Outside(pins_outside, lost or ""), "looked": inputs})


def left_split_name() -> str:
    """The name of the split that the request states and its link omits; empty for none."""
    split = st.session_state.get("outside", address.Outside()).split
    return split_name(key_split(split) or {}) if split and split == session.selected_key() else ""


def pinned_request(key: str) -> PlanRequest | None:
    """Return what a pin asked when it last fitted, None where this session has not seen that."""
    requests: dict[str, PlanRequest] = st.session_state.get("pinned_requests", {})
    return requests.get(key)


def is_stated() -> bool:
    """Return whether the request states a split, or part of one, that this plan lacks."""
    candidate = session.request().candidate
    if candidate is None:
        return False
    listed = candidate.prefill is None or session.request().options.disaggregated
    if listed and session.selected_key():
        return False
    shared = set(SHARED) if session.asks_for_training() else set()
    return bool(set(candidate.model_dump(exclude_none=True)) - shared)


def planned_or_none() -> Plan | None:
    """The plan; None where the verdict above says what is wrong, and the fix."""
    try:
        return planned_request()
    except RecipeError:
        return None


def single_changes() -> list[Change]:
    return _single_changes_of(*_cache_key(), folders_allowed())


def split_alternatives() -> list[Alternative]:
    """Choices beside the best split that are worth a click, each really planned."""
    return _alternatives_of(*_cache_key(), folders_allowed())


def confidence_prices() -> tuple[ConfidencePrice, ...]:
    """The best layout for each of some confidences, with its price; empty without limits."""
    return _confidence_prices_of(*_cache_key(), folders_allowed())


def buildable_edits() -> list[Change]:
    """Changes after which a bundle can be made, each really planned; none where one can."""
    return _buildable_changes_of(*_cache_key(), folders_allowed())


def pinned_rows(plan: Plan) -> list[int]:
    rows = [find_row(plan, key) for key in session.pins()]
    return [row for row in rows if row is not None and plan.feasible[row]]


def _stated_row(plan: Plan) -> int | None:
    """The row of the split that the request states, while it fits."""
    key = session.selected_key()
    row = find_row(plan, key) if key else None
    return row if row is not None and plan.feasible[row] else None


def selected_row(plan: Plan) -> int | None:
    """The row of the split that the request states while it fits, else the best row."""
    row = _stated_row(plan)
    return plan.best_row if row is None else row


def lost_split_name(plan: Plan) -> str | None:
    """The name of a split that the request states and that no longer fits."""
    key = session.selected_key()
    if key is None or _stated_row(plan) is not None:
        return None
    return split_name(key_split(key) or {})
