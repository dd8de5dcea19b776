"""What all pages draw: question, request in one line, verdict with changes that help, errors."""

from __future__ import annotations

import _common as common
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import change_label
from recipe_core.present import tables
from recipe_core.request.describe import summary
from recipe_core.search.plan import Plan

PAGE_OF = {
    "model": "model.py",
    "hardware": "hardware.py",
    "workload": "objective.py",
    "objective": "objective.py",
    "options": "objective.py",
    "candidate": "compare.py",
}
"""The page where a part of the request is edited."""


def show_notice() -> None:
    """Say once what was ignored of a link or why an edit was refused."""
    if ignored := st.session_state.pop("ignored", None):
        lines = [common.escape(line) for line in ignored]
        text = lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
        st.warning(f"**Parts of the link were ignored.**\n\n{text}", icon=":material/link_off:")
    if refused := st.session_state.pop("refused", None):
        st.error(common.escape(refused), icon=":material/block:")


def head(title: str) -> None:
    """The question of a page, the request in one line, and the verdict."""
    st.title(title, anchor=False)
    st.caption(common.escape(summary(common.request())))
    verdict()


def verdict() -> None:
    """How many splits fit and the best, or why none does and what would change that."""
    try:
        plan = common.planned()
    except RecipeError as error:
        problem(error)
        return
    row = plan.best_row
    if row is None:
        nothing_fits(plan)
        return
    fitting = (
        "**The only split fits.**"
        if len(plan) == 1
        else f"**{len(plan.order):,} of {len(plan):,} splits fit.**"
    )
    best = f"Best: **{common.escape(plan.label(row))}**, {common.escape(plan.phrase(row))}."
    sure = plan.confidence_text(row)
    tossed = bool(sure) and plan.is_coin_toss(row)
    said = f" {common.escape(sure)}." if sure else ""
    (st.warning if tossed else st.success)(
        f"{fitting} {best}{said}",
        icon=":material/casino:" if tossed else ":material/check_circle:",
    )
    common.calibration_note(plan, row)
    if plan.price_note:
        st.caption(common.escape(f"{plan.price_note} State a price on the hardware page."))


def problem(error: RecipeError) -> None:
    """An error of the request, with a link to the page that corrects it."""
    st.error(common.escape(error), icon=":material/error:")
    page = PAGE_OF.get((error.field or "").split(".")[0])
    with st.container(horizontal=True):
        if page and st.session_state.get("page") != page:
            st.page_link(
                page, label="Correct it", icon=":material/edit:", query_params=common.link()
            )
        st.button(
            "Start over",
            key="start-over",
            icon=":material/restart_alt:",
            on_click=common.start_over,
        )


def nothing_fits(plan: Plan) -> None:
    """What refuses everything, by how much for the nearest split, and changes as one click each."""
    row = plan.nearest_row()
    if row is None:
        st.error("These devices allow no split.", icon=":material/block:")
        return
    nearest = f"Nearest is {plan.label(row)}: {'; '.join(plan.reasons(row))}."
    none = (
        "The only split does not fit." if len(plan) == 1 else f"None of {len(plan):,} splits fits."
    )
    st.error(f"**{none}** {common.escape(nearest)}", icon=":material/block:")
    with st.container(horizontal=True):
        for n, change in enumerate(common.changes()):
            label = f"{change_label(change.fields)}: then {change.split} fits"
            st.button(
                common.escape(label),
                key=f"change-{n}",
                icon=":material/build:",
                on_click=common.apply,
                args=(change.fields,),
            )


def hardware_unknown() -> None:
    """A link to the page that chooses the hardware."""
    st.page_link(
        "size.py",
        label="I don't know the hardware yet",
        icon=":material/shopping_cart:",
        query_params=common.link(),
    )


def code(text: str) -> None:
    """Text to copy, in one colour: syntax colours are too pale for some readers."""
    st.code(text, language=None, wrap_lines=True)


def column_config(plan: Plan) -> dict[str, object]:
    """Titles, units and bars of the table's columns."""
    config: dict[str, object] = {
        name: st.column_config.NumberColumn(
            f"{measure.head} ({measure.unit})" if measure.unit else measure.head,
            format=tables.number_format(plan, name),
            help=measure.help or measure.title,
        )
        for name, measure in plan.measures.items()
    }
    if "used" in config:
        used = plan.measures["used"]
        config["used"] = st.column_config.ProgressColumn(
            used.head, format="%.0f%%", min_value=0, max_value=100, help=used.help
        )
    front = st.column_config.TextColumn(
        "Front",
        width="small",
        help="◆: no other split beats it in both measures of the tradeoff chart",
    )
    # names of training splits are long
    width = 330 if common.training() else None
    split = st.column_config.TextColumn("Split", pinned=True, width=width)
    sure = st.column_config.NumberColumn(
        "Sure (%)", help="Probability that all limits hold, if the split were measured"
    )
    return {**config, "key": None, "split": split, "sure": sure, "front": front}
