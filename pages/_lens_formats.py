"""The lens on number formats and compression."""

import _columns as columns_of
import _common as common
import _formats_answer as judging
import _formats_row as details
import _numbers as numbers
import _session as session
import _widgets as widgets
import _workload as asking
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.metrics import limits_by_name
from recipe_core.views import formats as view
from recipe_core.views.charts.formats import accuracy_against
from recipe_core.views.glossary import term_help

HELD = {"ratio": "Against the base", "value": "Values"}


def draw_accuracy_limit() -> None:
    limit = limits_by_name()["accuracy_recovery"]
    row = st.container(horizontal=True, vertical_alignment="bottom")
    with numbers.group_boxes("formats-limit"), row:
        numbers.draw_number(
            f"Least {limit.label}",
            f"objective.limits.{limit.name}",
            scale=limit.scale,
            optional=True,
            unit=limit.unit.symbol,
            placeholder="98 unless given, in %",
            width=190,
        )
        common.edit(
            st.selectbox,
            "Accuracy of",
            "objective.accuracy_of",
            options=asking.JUDGED_ON,
            width=240,
        )


def draw_best_format(answer: judging.Json) -> None:
    best = view.best_technique(answer)
    if best is None:
        st.warning(view.formats_verdict(answer), icon=":material/block:")
        return
    with st.grid(5, min_column_width=150):
        with st.container(border=True, height="stretch", gap="xsmall"):
            st.markdown(":small[Recommended]")
            st.markdown(f"**{common.escape(view.technique_title(best))}**")
            st.badge(common.escape(view.checkpoint_text(best)), color="gray")
        retained = best["accuracy"]["retained"]
        draw_tile(
            view.ACCURACY,
            view.kept_accuracy(best, band=False),
            ""
            if retained is None
            else f"{retained['low'] * 100:.1f} – {retained['high'] * 100:.1f} %",
        )
        for name in ("usd_per_million_output_tokens", "tpot_s", "weights_bytes"):
            figure = view.technique_figure(best, name, "best_split") or view.technique_figure(
                best, name
            )
            if figure is not None:
                change = view.ratio_text(figure["ratio"])
                metric = view.figure_metric(name)
                draw_tile(metric.head, metric.show(figure["value"]), change)
    limit = answer["accuracy_limit"]
    missed = limit is not None and not best["accuracy"]["within_limit"]
    sentences = (
        view.formats_verdict(answer),
        view.weights_text(best, answer),
        view.ranking_note(answer),
    )
    show = st.warning if missed else st.caption
    show(common.escape(" ".join(filter(None, sentences))))
    details.draw_use_format(best, "formats-use-best", main=True)


def draw_tile(title: str, text: str, below: str) -> None:
    st.metric(
        title,
        common.escape(text),
        delta=common.escape(below) or None,
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
    )


@st.fragment
def draw_accuracy_chart(answer: judging.Json) -> None:
    session.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Against",
            view.AXES,
            format_func=lambda name: view.figure_metric(name).title,
            key="formats-against",
            persist_state="session",
            width=240,
        )
        split = chosen_split("formats-chart-split")
    rows, axis = view.usable_formats(answer), name or view.AXES[0]
    figure = accuracy_against(
        rows,
        axis,
        split,
        limit=answer["accuracy_limit"],
        dark=common.dark(),
    )
    common.draw_chart(
        figure,
        "formats-accuracy",
        f"Accuracy kept by {len(rows)} techniques against {view.figure_metric(axis).title}",
    )
    st.caption(
        "Left is better, up is better. Bars are the ranges in which eight of ten measured scores "
        "are expected; hollow marks have a speed that nobody measured on this device."
    )


def chosen_split(key: str) -> str:
    """Return whether techniques are on the base's split, or each on its own best."""
    about = (
        "The layout of the base shows what the format alone does; its best layout, what it makes "
        "possible, such as fewer devices"
    )
    return str(common.pick_one("On", view.SPLITS, key, help=about))


@st.fragment
def draw_technique_table(answer: judging.Json) -> None:
    session.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        split = chosen_split("formats-table-split")
        figures = common.pick_one("Figures", HELD, "formats-figures")
        all_rows = st.toggle(
            "What no bundle has",
            key="formats-every",
            persist_state="session",
            help="Formats that are estimated alone, every GGUF type, and what does not run here",
        )
    if all_rows:
        rows = view.shown_techniques(answer, every_file=True, without_figures=True)
    else:
        rows = view.usable_formats(answer)
    columns = view.technique_columns(values=figures == "value", split=split, reasons=all_rows)
    column = st.column_config.Column
    config = {
        "#": column("#", width=50, help="By the objective; ★ is recommended"),
        "Technique": column("Technique", width="medium", pinned=True),
        "Runs": column("Runs", help=term_help("emulated")),
        view.ACCURACY: column(view.ACCURACY, help=term_help("accuracy-recovery")),
    }
    event = columns_of.draw_sorted(
        rows,
        columns,
        f"{len(rows)} techniques with accuracy and figures",
        rows_high=13,
        key=f"formats-table-{split}-{figures}-{all_rows}",
        on_select="rerun",
        selection_mode="single-row",
        column_config=config,
    )
    picked = event.selection.rows
    if picked and picked[0] < len(rows):
        details.draw_format_row(rows[picked[0]], answer)
    else:
        st.caption("Tick a row for its source, its published figures, and to use it.")


def draw_smaller_models(answer: judging.Json) -> None:
    """Models that could be served in place of this one; they are no format of it."""
    rows = view.smaller_models(answer)
    if not rows:
        return
    st.subheader("Smaller models", anchor=False)
    columns_of.draw_sorted(
        rows, view.technique_columns(split="best_split"), f"{len(rows)} smaller models"
    )
    for row in rows:
        if row["set"] is not None:
            details.draw_use_format(row, f"formats-use-{row['technique']}")


def draw_formats() -> None:
    """Every number format and technique of compression for the same request."""
    if session.asks_for_training():
        widgets.draw_serving_only(
            "This lens is about models that are served. A training run has one format, which its "
            "recipe states.",
            "formats-serve",
        )
        return
    draw_accuracy_limit()
    try:
        answer = judging.judge_formats(session.request())
        draw_best_format(answer)
        st.caption(common.escape(view.base_sentence(answer)))
        draw_technique_table(answer)
        st.subheader("Accuracy against cost", anchor=False)
        draw_accuracy_chart(answer)
        draw_smaller_models(answer)
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/error:")
