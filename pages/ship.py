from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import _address as address
import _columns as columns_of
import _common as common
import _deployment as deployment
import _found as found
import _planned as planned
import _recipe_cache as recipe_cache
import _session as session
import _tabs as tabs
import _verdict as verdicts
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.bundle.write import Bundle, zip_bundle
from recipe_core.doors.serve import folders_allowed
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import device_word, plan_launch_note, split_label
from recipe_core.plans.splits import find_row, row_key, row_request
from recipe_core.recipe import Recipe
from recipe_core.recipe.decision import start_reasons
from recipe_core.recipe.place import Parameters
from recipe_core.request import edit
from recipe_core.request.edit import shared_candidate
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import candidate_key
from recipe_core.views import overview
from recipe_core.views.chips import request_chips
from recipe_core.views.decision import describe_decision
from recipe_core.views.estimates import FIGURES, figure_rows, memory_facts
from recipe_core.views.plan_words import figures_phrase
from recipe_core.views.report import html_report

BEST, STATED = "", "stated"
LISTED = 50


def lost_selected_split(plan: Plan) -> str | None:
    """The name of a selected split that no longer fits; what only the request names stays."""
    return None if planned.is_stated() else planned.lost_split_name(plan)


def effective_request(plan: Plan) -> PlanRequest:
    """The request; without its split where that no longer fits."""
    request = session.request()
    if not lost_selected_split(plan):
        return request
    return request.model_copy(update={"candidate": shared_candidate(request)})


def option_label(plan: Plan, key: str) -> str:
    """A layout in the list; the figures of the one that is taken stand below it."""
    if key == STATED:
        return f"As stated: {overview.stated_split(session.request().candidate)}"
    if key == BEST:
        return "The best"
    return split_label(plan, find_row(plan, key))


def selection_changes(key: str) -> dict[str, Any]:
    if key == STATED:
        return {}
    if key:
        return edit.select_split(session.request(), key)
    shared = shared_candidate(session.request())
    return {"candidate": shared.model_dump(exclude_none=True) if shared else None}


def selected_option(plan: Plan) -> str:
    """The option of the list that the request stands for."""
    if planned.is_stated():
        return STATED
    if session.selected_key() is None or lost_selected_split(plan):
        return BEST
    return row_key(plan, planned.selected_row(plan))


def pick_split(plan: Plan) -> None:
    pinned = [row_key(plan, row) for row in planned.pinned_rows(plan)]
    ranked = [row_key(plan, int(row)) for row in plan.order[:LISTED]]
    current = selected_option(plan)
    options = {key: option_label(plan, key) for key in [BEST, *pinned, *ranked, current]}
    common.draw_choice(
        st.selectbox, "Layout", "_split", current, selection_changes, options=options
    )
    row = planned.selected_row(plan)
    if row is not None:
        st.caption(common.escape(f"{split_label(plan, row)}: {figures_phrase(plan, row)}"))
    if lost := lost_selected_split(plan):
        st.warning(
            f"The layout you chose, {lost}, no longer fits. This is the best one.",
            icon=":material/info:",
        )


def kept_request(plan: Plan) -> PlanRequest | None:
    """Return what to keep of the split on this page; None where the request leaves it open."""
    if planned.is_stated():
        request = session.request()
        has_whole_split = request.candidate and candidate_key(request.candidate.model_dump())
        return request if has_whole_split else None
    row = planned.selected_row(plan)
    return None if row is None else row_request(plan, row)


def draw_downloads(bundle: Bundle, plan: Plan) -> None:
    recipe, addresses = bundle.recipe, deployment.addresses(bundle)
    pins = [key for key in dict.fromkeys([candidate_key(recipe.candidate), *session.pins()]) if key]
    with st.container(horizontal=True):
        st.download_button(
            "Download bundle",
            lambda: zip_bundle(bundle.files),
            file_name=f"{recipe.name}.zip",
            mime="application/zip",
            on_click="ignore",
            type="primary",
            icon=":material/download:",
            key="download",
            shortcut="Ctrl+S",
        )
        st.download_button(
            "Report with charts",
            lambda: html_report(bundle, plan, pins=pins, addresses=addresses).encode(),
            file_name=f"{recipe.name}.html",
            mime="text/html",
            on_click="ignore",
            icon=":material/lab_profile:",
            key="report",
            help="One HTML file that opens offline: figures, charts, arithmetic, commands",
        )
        if (split_request := kept_request(plan)) is not None:
            common.keep_button(split_request, "keep")


def start_chance(plan: Plan) -> float | None:
    """The probability that the chosen split keeps the limits; None without limits."""
    row = planned.selected_row(plan)
    if row is None or planned.is_stated() or not stated_limits(plan):
        return None
    return float(plan.chances[row])


def draw_recipe(recipe: Recipe, plan: Plan) -> None:
    """Draw what was decided in full: facts, memory by part, and figures with their bands."""
    decision_column, memory_column = st.columns([3, 2], gap="large")
    with decision_column:
        facts = {
            name: common.escape(value)
            for name, value in overview.recipe_facts(recipe, start_chance(plan)).items()
        }
        st.table(facts, border="horizontal", alt="What the recipe decides")
    with memory_column:
        st.markdown(f"**Memory per {common.escape(device_word(plan))}**")
        memory = {
            f"**{name}**" if name == "Total" else name: common.escape(value)
            for name, value in memory_facts(recipe.estimate).items()
        }
        st.table(memory, border="horizontal", alt="Memory by part")
    columns_of.draw_columns(
        figure_rows(recipe.kind, recipe.estimate),
        FIGURES,
        "Expected figures with their bands and basis",
        strong="Estimate",
    )
    st.caption("Eight of ten measured runs are expected to fall within the range.")


def draw_decided(plan: Plan, recipe: Recipe) -> None:
    """The decision in its first three lines: devices and money, layout, and what lenses decided."""
    row = planned.selected_row(plan)
    if row is None:
        return
    decided = describe_decision(plan, row)
    st.header(common.escape(decided.where), anchor=False)
    if policy := recipe.estimate.get("scaling"):
        st.markdown(f"**{common.escape(overview.scaling_text(policy))}**")
    st.markdown(
        f"**{common.escape(decided.layout)}** · {common.escape(decided.engine)} · "
        f"{common.escape(decided.formats)}"
    )
    chips = " · ".join(chip.label for chip in request_chips(session.request()))
    if chips:
        st.markdown(common.escape(f"Decided besides: {chips}"))


def draw_built_recipe(plan: Plan) -> None:
    request = effective_request(plan)
    with st.container(key="making"):  # what is drawn while it is made moves nothing that follows
        pair = make_bundle(plan, request)
    if pair is None:
        return
    recipe, bundle = pair
    draw_decided(plan, recipe)
    other_than_selected(plan, recipe)
    draw_downloads(bundle, plan)
    st.header("Where do you run it?", anchor=False)
    tabs.draw_deployment(bundle)
    st.header("What is inside", anchor=False)
    tabs.draw_bundle_tabs(bundle, request, lambda: draw_details(recipe, plan))


def draw_details(recipe: Recipe, plan: Plan) -> None:
    """The layout that is taken, the decision in full, and what is to be known of it."""
    pick_split(plan)
    draw_recipe(recipe, plan)
    for note in recipe.notes:
        st.caption(f":material/info: {common.escape(note)}")


def make_bundle(plan: Plan, request: PlanRequest) -> tuple[Recipe, Bundle] | None:
    """The recipe and its bundle at the place of the deployment settings; None where none can be."""
    key = (json.dumps(request.to_json()), session.inputs_digest(), folders_allowed())
    try:
        recipe = recipe_cache.cached_recipe(*key)
    except RecipeError as error:
        draw_build_refusal(plan, error)
        return None
    parameters = deployment.parameters()
    try:
        bundle = recipe_cache.cached_bundle(*key, settings_text(parameters))
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/block:")
        return recipe, recipe_cache.cached_bundle(*key, "")
    with suppress(RecipeError):  # of a target that has no failures of its own
        if (target := tabs.chosen_target(bundle)) is not None:
            settings = settings_text(parameters.model_copy(update={"target": target}))
            return recipe, recipe_cache.cached_bundle(*key, settings)
    return recipe, bundle


def settings_text(parameters: Parameters) -> str:
    return parameters.model_dump_json() if parameters != Parameters() else ""


def other_than_selected(plan: Plan, recipe: Recipe) -> None:
    """Say so where the best split cannot be started, and the next one that can stands here."""
    row = planned.selected_row(plan)
    if (
        row is None
        or planned.is_stated()
        or candidate_key(recipe.candidate) == candidate_key(plan.candidate(row))
    ):
        return
    reasons = common.escape("; ".join(start_reasons(plan, row)))
    st.warning(
        f"The best layout, {common.escape(split_label(plan, row))}, cannot be built: {reasons} "
        "This is the best one that can.",
        icon=":material/info:",
    )


def draw_build_refusal(plan: Plan, error: RecipeError) -> None:
    """Say why a split has no bundle, and ways out: by click, then engines that would run it."""
    reason = error.plain if isinstance(error, NoAnswer) else str(error)
    st.error(f"**This layout cannot be built.** {common.escape(reason)}", icon=":material/block:")
    row = planned.selected_row(plan)
    if row is None:
        return
    if plan_launch_note(plan):  # no split has a bundle: the verdict above offers what changes that
        return
    draw_build_ways_out(plan, row)
    candidate = plan.candidate(row)
    if planned.is_stated():
        candidate |= session.request().candidate.model_dump(exclude_none=True)
    st.header("The same layout on another engine", anchor=False)
    tabs.draw_other_engines(session.request(), candidate)


def draw_build_ways_out(plan: Plan, row: int) -> None:
    request = session.request()
    per_node = request.hardware.per_node
    with st.container(horizontal=True):
        if request.candidate is not None and selected_option(plan) != BEST:
            best = split_label(plan, plan.best_row)
            common.edit_button(
                f"Use the best layout: {common.escape(best)}",
                "best-split",
                selection_changes(BEST),
                ":material/star:",
            )
        if plan.raw("gpus")[row] > per_node:
            common.edit_button(
                f"Use at most {per_node} devices, one node",
                "one-node",
                {"objective.limits.gpus": per_node, "candidate": None},
                ":material/build:",
            )
        if request.options.weight_dtypes != ("auto",):
            common.edit_button(
                "Use the weights as they are stored",
                "stored-weights",
                {"options.weight_dtypes": ("auto",), "candidate": None},
                ":material/build:",
            )
        address.page_link("plan.py", "Choose another layout", ":material/compare:")


widgets.draw_page_head("Ship")
if session.hardware_is_open():
    found.find_hardware()
searching = session.hardware_is_open() and st.session_state.get("found") is None
plan = None if searching else planned.planned_or_none()
if plan is not None and plan.best_row is not None:
    selected = planned.selected_row(plan)
    if selected is not None:
        common.calibration_note(plan, selected)
    verdicts.draw_left_split_note()
    verdicts.draw_bundle_refusal(plan)
    draw_built_recipe(plan)
else:
    verdicts.draw_explanation(verdicts.current_answer())
    address.page_link("plan.py", "See why nothing fits", ":material/help:")
