import _bar as bar
import _common as common
import _explain as explain
import _export as export
import _planned as planned
import _table as table
import _widgets as widgets
import streamlit as st

from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import (
    device_basis,
    doubt_text,
    held_text,
    measure_text,
    row_load_text,
    split_label,
)
from recipe_core.plans.rank import rows_beyond_limits
from recipe_core.plans.splits import find_row, is_known, row_reasons, row_request
from recipe_core.request import split_key
from recipe_core.views.charts import front
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.glossary import term_help
from recipe_core.views.plan_words import (
    against_best,
    figures_phrase,
    likely_text,
    plan_band_text,
    used_devices_text,
)
from recipe_core.views.verdict import starts_text


def pin_clicked() -> None:
    """Pin what was clicked in the chart; the chart is drawn anew, which clears its selection."""
    for point in st.session_state["frontier"]["selection"]["points"]:
        if custom := point.get("customdata"):
            common.toggle_pin(custom[0])


def draw_figure_cards(plan: Plan, row: int) -> None:
    with st.grid(len(plan.shown.headline) + 1, min_column_width=150):
        best_split(plan, row)
        for name in plan.shown.headline:
            text, measure = measure_text(plan, name, row), plan.measures[name]
            st.metric(
                measure.head,
                "no price" if text == "unknown" else text,
                delta=common.escape(below_figure(plan, name, row)) or None,
                delta_color="off",
                delta_arrow="off",
                border=True,
                help=about_figure(plan, name, row),
                height="stretch",
            )


def below_figure(plan: Plan, name: str, row: int) -> str:
    """The likely range of a figure; of dollars an hour those of a month."""
    if name == "usd_hour" and measure_text(plan, name, row) != "unknown":
        return f"{measure_text(plan, 'usd_month', row)} a month"
    return likely_text(plan, name, row, unit=False)


def best_split(plan: Plan, row: int) -> None:
    """The best split with its devices. As text, which narrow screens wrap instead of cutting."""
    with st.container(border=True, height="stretch", gap="xsmall"):
        st.markdown(":small[Best split]", help=common.escape(split_label(plan, row)))
        st.markdown(f"**{common.escape(split_key.split_short_name(plan.candidate(row)))}**")
        st.badge(common.escape(used_devices_text(plan, row)), color="gray")
        if "load" in plan.shown.listed:  # rows are under different loads
            st.badge(common.escape(row_load_text(plan, row)), color="gray")
        if waiting := held_text(plan, row):
            st.badge(common.escape(f"queues: holds {waiting}"), color="orange")
        if doubt := starts_text(plan, row):
            st.badge(
                common.escape(doubt), color="orange", help=common.escape(doubt_text(plan, row))
            )


def about_figure(plan: Plan, name: str, row: int) -> str:
    """Say what a figure means, its exact value, and where measured runs are expected."""
    measure, band = plan.measures[name], plan_band_text(plan, name, row)
    exact = f"{plan.values(name)[row]:.6g} {measure.unit.symbol}".strip()
    sentences = [measure.title, measure.help.rstrip(".")]
    sentences.append(f"Computed: {exact}; the device is {device_basis(plan)}")
    if band:
        sentences.append(f"Eight of ten measured runs are expected between {band}")
    return common.escape(". ".join(sentences) + ".")


def pick_axes(plan: Plan) -> tuple[str, str]:
    measures = [name for name in plan.measures if is_known(plan, name)]
    # other first axes are another widget: a choice for one device is none for several
    several = "" if "device" not in plan.differs else "-devices"
    names = []
    for label, default in zip(("Horizontal", "Vertical"), plan.shown.axes, strict=True):
        name = st.selectbox(
            label,
            measures,
            index=measures.index(default) if default in measures else 0,
            format_func=lambda name: plan.measures[name].title,
            key=f"axis-{label.lower()}-{plan.kind}{several}",
            persist_state="session",
            width=260,
        )
        names.append(name or default)
    return names[0], names[1]


def colour_by(plan: Plan) -> str:
    """Choose what the colours of the tradeoff tell apart, where more than one thing differs."""
    names = front.group_names(plan)
    if len(names) < 2:
        return front.first_grouping(plan)
    titles = {name: front.TITLES[name] for name in names} | {front.ALONE: "Nothing"}
    name = st.selectbox(
        "Colour by",
        list(titles),
        format_func=titles.get,
        key=f"colour-{plan.kind}-{'-'.join(names)}",
        persist_state="session",
        width=170,
    )
    return name or names[0]


@st.fragment
def draw_scatter(plan: Plan) -> None:
    """Draw what splits trade, by click; other axes leave the rest of the page as it is."""
    common.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        x, y = pick_axes(plan)
        by = colour_by(plan)
        bands = st.toggle(
            "Likely ranges",
            value=True,
            key="tradeoff-ranges",
            persist_state="session",
            help="Eight of ten measured runs are expected within the lines at the best tradeoffs",
        )
        pins = list(common.pins())
        export.chart_menu("tradeoff", lambda: tradeoff(plan, x, y, pins=pins, by=by, bands=bands))
    measured = " against ".join(plan.measures[name].title.lower() for name in (x, y))
    st.plotly_chart(
        tradeoff(plan, x, y, pins=pins, by=by, bands=bands, dark=common.dark()),
        key="frontier",
        on_select=pin_clicked,
        selection_mode="points",
        config=export.chart_config("tradeoff"),
        alt=f"{measured} for {len(plan)} splits; {split_states_text(plan)}.".capitalize(),
    )
    st.caption(
        "Larger markers use more devices. Click a marker to pin its split, or tick rows in the "
        f"table below. Up to {common.MAX_PINS} pins are compared."
    )


def split_states_text(plan: Plan) -> str:
    """Return how many splits are in which state."""
    waiting = int(plan.queues[plan.order].sum())
    doubtful = int(plan.uncertain[plan.order].sum())
    holding = len(plan.order) - waiting - doubtful
    if plan.kind == "training":
        return f"{holding:,} can run"
    queueing = f", {waiting:,} start and queue" if waiting else ""
    open_question = f", {doubtful:,} may not start" if doubtful else ""
    return f"{holding:,} hold the load{queueing}{open_question}"


def draw_pins(plan: Plan) -> None:
    """Pinned splits side by side, each with its figures and buttons to use or remove it."""
    with st.grid(common.MAX_PINS):
        for key in common.pins():
            with st.container(border=True, height="stretch"):
                draw_pinned_split(plan, key)


def draw_pinned_split(plan: Plan, key: str) -> None:
    row = find_row(plan, key)
    fits = row is not None and plan.feasible[row]
    if row is None:
        name = split_key.split_name(split_key.key_split(key))
        st.markdown(f"**{common.escape(name)}** is no longer a split of this plan.")
        st.caption("The link omits it.")
    elif fits:
        st.markdown(
            f"**{common.escape(split_label(plan, row))}**\\\n"
            f"{common.escape(figures_phrase(plan, row))}"
        )
        if sentence := against_best(plan, row):
            st.caption(common.escape(sentence))
    else:
        reasons = common.escape("; ".join(row_reasons(plan, row)))
        st.markdown(f"**{common.escape(split_label(plan, row))}** is refused: {reasons}")
    with st.container(horizontal=True):
        if fits and st.button(
            "Use this split",
            key=f"use-{key}",
            icon=":material/check:",
            on_click=common.select,
            args=(key,),
        ):
            st.switch_page("recipe.py", query_params=common.screen_link_query())
        split_request = (
            row_request(plan, row) if row is not None and fits else planned.pinned_request(key)
        )
        if split_request is not None:
            common.keep_button(split_request, f"keep-{key}", type="tertiary")
        st.button(
            "Remove",
            key=f"unpin-{key}",
            icon=":material/keep_off:",
            type="tertiary",
            on_click=common.toggle_pin,
            args=(key,),
        )


widgets.draw_page_head("Which split?")
plan = planned.planned_or_none()
if plan is not None:
    best = plan.best_row
    if best is not None:
        draw_figure_cards(plan, best)
        bar.safe_row(plan)
    if best is not None or rows_beyond_limits(plan):
        st.header("Tradeoffs", anchor=False, help=term_help("front"))
        draw_scatter(plan)
        if best is not None:
            common.later(bar.reserve_alternatives())
        if common.pins():
            draw_pins(plan)
    if best is not None:
        st.header("Splits, best first", anchor=False)
        table.draw_ranked_splits(plan)
        if plan.kind == "serving" and st.button(
            "What other formats would do",
            key="to-formats",
            icon=":material/compress:",
            type="tertiary",
        ):
            st.switch_page("formats.py", query_params=common.screen_link_query())
    explain.look_closer(plan)
