"""The answer of the lens on time: verdict, policies, one of them through the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import _address as address
import _columns as columns_of
import _common as common
import _over_time_load as loads
import _over_time_objects as objects
import _session as session
import streamlit as st

from recipe_core.request.edit import change
from recipe_core.request.metrics import column_metric
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.result import PolicyAnswer
from recipe_core.scaling.summary import simulated_of
from recipe_core.views import over_time as view
from recipe_core.views.charts.over_time import (
    first_tokens,
    load_and_capacity,
    money_so_far,
    replicas_over_time,
    within_limits,
)
from recipe_core.views.charts.policies import cost_against_share, policy_costs

Json = Mapping[str, Any]
Drawn = Callable[..., Any]
CHARTS: Mapping[str, tuple[str, Drawn, str]] = {
    "capacity": (
        "Load and capacity",
        load_and_capacity,
        "Requests per second that arrive, and what the ready replicas serve within the limits",
    ),
    "replicas": (
        "Replicas",
        replicas_over_time,
        "Replicas that are ready and that start, and how many the policy wants",
    ),
    "first": (
        column_metric("ttft_s").title,
        first_tokens,
        f"Mean {column_metric('ttft_s').label}, with its limit",
    ),
    "share": (
        "Requests within the limits",
        within_limits,
        "Share of the requests of each interval that kept the limits, with the wanted share",
    ),
    "cost": (
        "Cost so far",
        money_so_far,
        "What the policy and both bounds have cost since the load began",
    ),
}


def draw_simulation(answer: Json) -> None:
    good, sentence = view.over_time_verdict(answer)
    say, icon = (st.success, "check_circle") if good else (st.error, "block")
    say(f"**{common.escape(sentence)}.**", icon=f":material/{icon}:")
    st.caption(common.escape(" ".join(view.scenario_sentences(answer))))
    for note in answer["notes"]:
        st.caption(common.escape(note))
    if answer["policies"]:
        draw_policies(answer)


@st.fragment
def draw_policies(answer: Json) -> None:
    """Everything about policies; to look at another one leaves the form as it is."""
    session.follow_edit()
    policy = selected_policy(answer)
    draw_policy_table(answer, policy["name"])
    draw_policy_charts(answer, policy["name"])
    st.header(view.policy_title(policy["name"]), anchor=False)
    draw_policy_closely(answer, policy)
    draw_use_policy(answer, policy)
    draw_policy_series(answer, policy)


def selected_policy(answer: Json) -> Json:
    """The policy that the reader selected, else the one of the request, else the best."""
    policies = view.policies_by_name(answer)
    scaling = session.request().options.scaling
    request_policy = scaling.policy if scaling else None
    for name in (st.session_state.get("over-time-policy"), request_policy, answer["best"]):
        if name in policies:
            return policies[name]
    first: Json = answer["policies"][0]
    return first


# --- side by side --------------------------------------------------------------------------------


def draw_policy_table(answer: Json, selected_name: str) -> None:
    """A row for each policy and for both bounds; a selected policy is looked at."""
    columns = view.policy_columns(answer)
    rows = view.policies_and_bounds(answer)
    keys = [row["name"] for row in rows]

    def look() -> None:
        selected = st.session_state["over-time-policies"]["selection"]["rows"]
        if selected and keys[selected[0]] in view.policies_by_name(answer):
            st.session_state["over-time-policy"] = keys[selected[0]]

    st.session_state["over-time-policies"] = {
        "selection": {"rows": [keys.index(selected_name)], "columns": [], "cells": []}
    }
    columns_of.draw_sorted(
        rows,
        columns,
        f"{len(answer['policies'])} policies and two bounds, the best first",
        rows_high=len(rows),
        key="over-time-policies",
        on_select=look,
        selection_mode="single-row-required",
    )
    means = (f"**{view.policy_title(name)}**: {text}" for name, text in view.BOUNDS.items())
    st.caption(f"Bounds: {'; '.join(means)}. Select a row to look at a policy.")


def draw_policy_charts(answer: Json, selected_name: str) -> None:
    costs_column, shares_column = st.columns(2, gap="large")
    dark = common.dark()
    with costs_column:
        st.markdown("**Cost of each policy**")
        common.draw_chart(
            policy_costs(answer, selected_name, dark=dark),
            "over-time-costs",
            "Cost of each policy, with both bounds as lines",
        )
    with shares_column:
        st.markdown("**Cost against requests within the limits**")
        common.draw_chart(
            cost_against_share(answer, selected_name, dark=dark),
            "over-time-tradeoff",
            "Cost of each policy and bound against the share of requests within the limits",
        )


# --- one policy ----------------------------------------------------------------------------------


def draw_policy_closely(answer: Json, policy: Json) -> None:
    names = list(view.policies_by_name(answer))
    common.draw_choice(
        st.selectbox,
        "Policy",
        "_over-time-policy",
        policy["name"],
        lambda name: st.session_state.update({"over-time-policy": name}),
        options=names,
        format_func=view.policy_title,
        width=300,
    )
    sentences = [f"{view.policy_facts(policy)}.", view.worst_hour_sentence(answer, policy)]
    st.markdown(common.escape(" ".join(filter(None, sentences))))
    parameters_column, outcome_column = st.columns(2, gap="large")
    for place, rows, alt in (
        (parameters_column, view.scaling_rows(policy["scaling"]), "Parameters of the policy"),
        (outcome_column, view.outcome_rows(answer, policy), "What the policy does"),
    ):
        with place:
            common.draw_facts(rows, alt)


def policy_changes(answer: Json, policy: Json) -> dict[str, Any]:
    """The changes that make a policy the request's own, with the load and the split it is for."""
    changes = {
        "options.scaling": policy["scaling"],
        **loads.load_stating_changes(),
        "candidate": answer["candidate"],
        **answer["per_replica"],
    }
    scaled_request = change(session.request(), changes)
    policy_answer = PolicyAnswer.model_validate(policy)
    simulated = simulated_of(scaled_request, policy_answer, answer["load"]["span_s"])
    return {**changes, "options.simulated": simulated.model_dump()}


def draw_use_policy(answer: Json, policy: Json) -> None:
    """Make the policy the request's own; the bundle's autoscalers are then told its numbers."""
    scaling = session.request().options.scaling
    used = scaling == Scaling.model_validate(policy["scaling"])
    with st.container(horizontal=True, vertical_alignment="center"):
        common.edit_button(
            "Used in the recipe" if used else f"Use {view.policy_title(policy['name'])}",
            "over-time-use",
            policy_changes(answer, policy),
            ":material/check:" if used else ":material/tune:",
            type="primary",
            disabled=used,
            help="Sets the scaling of the request: the bundle's autoscalers get these numbers",
        )
        if scaling is not None:
            common.edit_button(
                "Use none",
                "over-time-none",
                {"options.scaling": None, "options.simulated": None},
                ":material/close:",
            )
            address.page_link("ship.py", "To the recipe", ":material/inventory_2:")
    objects.draw_policy_files(policy)


def draw_policy_series(answer: Json, policy: Json) -> None:
    """Load, replicas, first token, share and cost, over the whole time or one day of it."""
    days = view.days_of_load(answer["load"])
    shown = next(iter(days))
    if len(days) > 1:
        st.session_state.setdefault("over-time-day", shown)
        if st.session_state["over-time-day"] not in days:
            st.session_state["over-time-day"] = shown
        span = st.selectbox(
            "Time shown", list(days), key="over-time-day", persist_state="session", width=300
        )
        shown = span or shown
    for name, (title, chart, alt) in CHARTS.items():
        st.markdown(f"**{title}**")
        common.draw_chart(
            chart(answer, policy, days[shown], dark=common.dark()), f"over-time-{name}", alt
        )
