"""The wizard's shared state: one PlanRequest and the pinned splits, in the session and in the link; and the parts all pages draw.

Pages compute nothing: they edit the request by field name and draw what the core says about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from recipe_core import advice, query
from recipe_core.errors import RecipeError
from recipe_core.hardware.catalog import device
from recipe_core.labels import degrees, split_label
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec
from recipe_core.plan import PlanTable, plan
from recipe_core.request import PlanRequest
from recipe_core.serve import folders_allowed
from recipe_core.units import duration, rate, significant, usd

MAX_PINS = 4
GOALS = {
    "throughput": "Throughput",
    "latency": "Request latency",
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "cost": "Cost",
    "gpus": "Fewest GPUs",
    "energy": "Energy",
}
_PAGE_OF = {
    "model": "model.py",
    "hardware": "hardware.py",
    "workload": "objective.py",
    "objective": "objective.py",
    "options": "objective.py",
}


def escape(text: object) -> str:
    """Text as it is, where Markdown is read: model names have underscores, prices dollar signs."""
    return re.sub(r"([\\`*_\[\]$<>~#|:])", r"\\\1", str(text))


# --- state --------------------------------------------------------------------------------------------------------------------


def request() -> PlanRequest:
    """What the person has asked for so far."""
    found: PlanRequest = st.session_state["request"]
    return found


def pins() -> list[str]:
    """Keys of the pinned splits."""
    found: list[str] = st.session_state["pins"]
    return found


def link() -> dict[str, str]:
    """The query of a link to what is on the screen."""
    return query.link_query(request(), pins())


def read_url() -> None:
    """Take request and pins from the link when it says something this session did not write."""
    state, given = st.session_state, st.query_params.to_dict()
    edited = state.pop("edited", False)
    if "request" in state and (edited or not given or given == state.get("written")):
        return  # ours, a click in the navigation, or an edit while the address is still the old one
    found, ignored = query.from_query(given)
    if found.workload.kind == "training":
        found = found.model_copy(update={"workload": query.DEFAULT.workload})
        ignored.append("workload.kind=training: training is not planned by this version.")
    state["request"] = found
    state["pins"], bad_pins = query.read_pins(given.get("pins", ""), MAX_PINS)
    state["ignored"] = [*ignored, *bad_pins]


def write_url() -> None:
    """Make the address a link to what is on the screen."""
    st.session_state["written"] = link()
    if st.query_params.to_dict() != link():
        st.query_params.from_dict(link())


def show_notice() -> None:
    """Say once what was ignored of a link or why an edit was refused."""
    if ignored := st.session_state.pop("ignored", None):
        st.warning(f"**Parts of the link were ignored.**\n\n{query.sentences(map(escape, ignored))}", icon=":material/link_off:")
    if refused := st.session_state.pop("refused", None):
        st.error(escape(refused), icon=":material/block:")


def apply(changes: Mapping[str, Any]) -> None:
    """Change the request; an edit that makes it invalid is refused and said."""
    st.session_state["edited"] = True
    try:
        st.session_state["request"] = query.change(request(), changes)
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def edit(
    widget: Callable[..., Any],
    label: str,
    field: str,
    *,
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    optional: bool = False,
    **options: Any,
) -> None:
    """Draw a widget on one field of the request. ``optional``: an empty widget takes the field out, else it changes nothing."""
    key = f"_{field}"
    st.session_state[key] = read(query.value_of(request(), field))  # seeded each run: no second source for the widget's value

    def commit() -> None:
        value = st.session_state[key]
        if optional or value not in (None, []):
            apply({field: None if value is None else write(value)})

    empty = {"value": None} if optional else {}  # an emptied field stays empty instead of falling to its minimum
    widget(label, key=key, on_change=commit, **empty, **options)


def toggle_pin(key: str) -> None:
    """Pin a split, or take its pin away; the oldest pin makes room."""
    kept = [pin for pin in pins() if pin != key]
    st.session_state["pins"] = kept if key in pins() else [*pins(), key][-MAX_PINS:]
    st.session_state["edited"] = True


def take(key: str) -> None:
    """Make a split the chosen one; the recipe page shows it."""
    apply({"candidate": query.split_of(key)})


def start_over() -> None:
    """Back to the request of an empty link."""
    st.session_state.update({"request": query.DEFAULT, "pins": [], "edited": True})


# --- what the core says -----------------------------------------------------------------------------------------------------------


def model() -> ModelSpec:
    """The model of the request; raises RecipeError."""
    return load_model(request().model, folders=folders_allowed())


@st.cache_resource(max_entries=64, show_spinner="Judging every split")
def _plan(text: str, digest: str, may_read: bool) -> PlanTable:  # noqa: ARG001 - the digest tells changed folders apart
    return plan(PlanRequest.parse(json.loads(text)), folders=may_read)


@st.cache_resource(max_entries=64, show_spinner="Looking for a change that fits")
def _remedies(text: str, digest: str, _table: PlanTable) -> list[advice.Remedy]:  # noqa: ARG001
    return advice.remedies(_table)


def _cache_key() -> tuple[str, str]:
    """A plan depends on everything but the candidate, and on what the model's folder holds now."""
    return json.dumps(request().model_copy(update={"candidate": None}).to_json()), model().digest


def table() -> PlanTable:
    """The plan of the request, cached; raises RecipeError. Shared between sessions, so read only."""
    return _plan(*_cache_key(), folders_allowed())


def best(found: PlanTable) -> int | None:
    """The best row, None when nothing fits."""
    return int(found.ranked[0]) if len(found.ranked) else None


def chosen(found: PlanTable) -> int | None:
    """The row of the chosen split while it fits, else the best row."""
    candidate = request().candidate
    stated = candidate.model_dump() if candidate else {}
    if any(stated.get(name) is None for name in query.SPLIT_FIELDS):
        return best(found)
    row = query.row_of(found, query.split_key(stated))
    return row if row is not None and found.columns["feasible"][row] else best(found)


def chosen_is_gone(found: PlanTable) -> str | None:
    """The name of a chosen split that no longer fits."""
    candidate = request().candidate
    stated = candidate.model_dump() if candidate else {}
    if any(stated.get(name) is None for name in query.SPLIT_FIELDS):
        return None
    row = query.row_of(found, query.split_key(stated))
    return None if row is not None and found.columns["feasible"][row] else degrees(stated)


# --- what all pages draw ----------------------------------------------------------------------------------------------------------


def dark() -> bool:
    """Whether the page is dark."""
    return st.context.theme.type == "dark"


def model_name() -> str:
    """The model in a few characters."""
    named = request().model
    return named.split("/")[-1] if isinstance(named, str) else str(named.get("_name_or_path") or "inline config")


def summary() -> str:
    """The request in one line."""
    r = request()
    w, h = r.workload, r.hardware
    load = {
        "closed": lambda: f"{w.concurrency:,} requests in flight",
        "open": lambda: f"{significant(w.request_rate)} requests/s",
        "static": lambda: f"batches of {w.batch:,}",
        "offline": lambda: f"{w.requests:,} queued requests",
    }[w.mode]()
    where = f"{h.devices} × {h.device}" + (f" in {h.nodes} nodes" if h.nodes > 1 else "")
    return f"{model_name()} · {where} · {load}, {w.input_tokens:,} → {w.output_tokens:,} tokens · {GOALS[r.objective.optimize].lower()}"


def figures(found: PlanTable, row: int) -> str:
    """The row's main figures in one phrase."""
    c = found.columns
    price = float(c["usd_per_million_output_tokens"][row])
    cost = f", {usd(price)} per million tokens" if price == price else ""  # NaN: no price is known
    return f"{rate(float(c['output_tokens_per_s'][row]))}, {duration(float(c['tpot_s'][row]))} per token{cost}"


def verdict() -> None:
    """One line on every page: how many splits fit and the best, or why none does and what would change that."""
    try:
        found = table()
    except RecipeError as error:
        problem(error)
        return
    row = best(found)
    if row is None:
        nothing_fits(found)
        return
    fitting = "**The only split fits.**" if len(found) == 1 else f"**{len(found.ranked):,} of {len(found):,} splits fit.**"
    st.success(f"{fitting} Best: **{escape(split_label(found, row))}**, {escape(figures(found, row))}.", icon=":material/check_circle:")


def problem(error: RecipeError) -> None:
    """An error of the request, with where to correct it."""
    st.error(escape(error), icon=":material/error:")
    where = _PAGE_OF.get((error.field or "").split(".")[0])
    with st.container(horizontal=True):
        if where and st.session_state.get("page") != where:
            st.page_link(where, label="Correct it", icon=":material/edit:", query_params=link())
        st.button("Start over", key="start-over", icon=":material/restart_alt:", on_click=start_over)


def nothing_fits(found: PlanTable) -> None:
    """Which limit refuses everything, by how much for the nearest split, and the change that helps as one click."""
    row = advice.nearest(found)
    if row is None:
        st.error("There are no splits of these devices to judge.", icon=":material/block:")
        return
    nearest = f"The nearest, {split_label(found, row)}: {'; '.join(found.reasons(row))}."
    none = "The only split does not fit." if len(found) == 1 else f"None of {len(found):,} splits fits."
    st.error(f"**{none}** {escape(nearest)}", icon=":material/block:")
    with st.container(horizontal=True):
        for n, (label, changes) in enumerate(remedies(found)):
            st.button(label, key=f"remedy-{n}", icon=":material/build:", on_click=apply, args=(changes,))


_CHANGES = {
    "options.weight_dtypes": lambda value: f"Use {value[0]} weights",
    "hardware.per_node": lambda value: f"Use {value} devices per node",
    "hardware.nodes": lambda value: f"Use {value} nodes",
    "workload.max_context": lambda value: f"Serve at most {value:,} tokens",
    "objective.limits.ttft_ms": lambda value: f"Allow {duration_ms(value)} to first token",
    "objective.limits.tpot_ms": lambda value: f"Allow {duration_ms(value)} per output token",
    "objective.limits.request_latency_ms": lambda value: f"Allow {duration_ms(value)} a request",
    "objective.limits.usd_per_hour": lambda value: f"Allow {escape(usd(value))} an hour",
    "objective.limits.gpus": lambda value: f"Allow {value:,.0f} GPUs",
}


def duration_ms(value: float) -> str:
    """A limit, which requests state in ms."""
    return f"{significant(value)} ms"


def remedies(found: PlanTable) -> list[tuple[str, dict[str, Any]]]:
    """Changes after which a split fits, each really planned, as button label and edit."""
    found_ones = _remedies(*_cache_key(), found)
    return [(f"{told(remedy.changes)}: then {degrees(remedy.candidate)} fits", remedy.changes) for remedy in found_ones]


def told(changes: Mapping[str, Any]) -> str:
    """Changes in words, as one sentence's beginning."""
    words = [_CHANGES[field](value) if field in _CHANGES else f"Set {field} to {value}" for field, value in changes.items()]
    return " and ".join([words[0], *(word[0].lower() + word[1:] for word in words[1:])])


def head(title: str) -> None:
    """The question of a page, the request in one line, and the verdict."""
    st.title(title, anchor=False)
    st.caption(escape(summary()))
    verdict()


def device_title(name: str) -> str:
    """A device as its profile calls it."""
    return device(name).title
