from collections.abc import Sequence
from typing import Any

import _columns as columns_of
import _common as common
import _measured_answer as answer
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.lessons import Knowledge
from recipe_core.calibration.place import calibration_stamp
from recipe_core.calibration.residuals import ComparedFigure, RunsCompared
from recipe_core.calibration.store import Overlay
from recipe_core.doors.serve import folders_allowed
from recipe_core.views import measured as view
from recipe_core.views.charts.measured import (
    PREDICTED_BY,
    measured_against,
    parts_against,
    ratios_by_group,
)
from recipe_core.views.columns import Column, known_columns, styled

MINE, PUBLISHED = "Mine", "Published"
COMMANDS = """recipe up BUNDLE
recipe bench BUNDLE
recipe calibrate BUNDLE"""


def pick_measured_runs(overlay: Overlay | None) -> str:
    """Whose runs are looked at."""
    choices = [MINE, PUBLISHED]
    if overlay is None or not overlay.entries:
        return PUBLISHED
    whose = st.segmented_control(
        "Runs",
        choices,
        default=MINE,
        required=True,
        key="measured-whose",
        persist_state="session",
        help="Yours are those that `recipe calibrate` keeps; published ones ship with the builder",
    )
    return whose or MINE


def how_to_begin() -> None:
    """What to do to see one's own runs."""
    st.info(
        "No runs of your own yet. Measure a bundle and keep the result; every page, command and "
        "answer then uses it, and says where.",
        icon=":material/speed:",
    )
    st.code(COMMANDS, language="bash")


def draw_error_table(compared: RunsCompared) -> None:
    """Before and after, by figure."""
    columns = (*view.ERRORS, *view.IN_BAND)
    draw_sorted_table(
        view.figure_errors(compared),
        columns,
        "Errors of the predictions by figure, before and after calibration",
    )


def draw_sorted_table(rows: Sequence[Any], columns: Sequence[Column[Any]], alt: str) -> None:
    """A table that sorts, without an index."""
    st.dataframe(
        styled(rows, columns),
        hide_index=True,
        height="content" if len(rows) < 11 else 390,
        column_config=columns_of.column_settings(columns),
        alt=alt,
    )


@st.fragment
def draw_measured_charts(compared: RunsCompared) -> None:
    """Predicted against measured, ratios by group, and one run by its parts."""
    common.follow_edit()
    with st.container(horizontal=True):
        figure = st.segmented_control(
            "Figure",
            view.measured_figures(compared),
            default=view.measured_figures(compared)[0],
            format_func=view.measured_title,
            required=True,
            key="measured-figure",
        )
        which = st.segmented_control(
            "Predicted by",
            list(PREDICTED_BY),
            default="corrected",
            format_func=PREDICTED_BY.__getitem__,
            required=True,
            key="measured-which",
        )
    rows = view.rows_of_figure(compared, figure or view.measured_figures(compared)[0])
    st.plotly_chart(
        measured_against(rows, which or "corrected", dark=common.dark()),
        key="measured-scatter",
        alt=f"{len(rows)} measured values against their predictions, with bands",
    )
    st.caption("Bars are the 80 % bands of the predictions. Open marks lie outside of theirs.")
    group = st.segmented_control(
        "Measured / predicted, by",
        list(view.GROUPS),
        default="Engine version",
        required=True,
        key="measured-group",
    )
    groups = [view.GROUPS[group or "Engine version"](row) for row in rows]
    st.plotly_chart(
        ratios_by_group(rows, groups, dark=common.dark()),
        key="measured-ratios",
        alt=f"Measured over predicted by {(group or 'Engine version').lower()}",
    )
    draw_run_parts(rows)


def draw_run_parts(rows: list[ComparedFigure]) -> None:
    """What the prediction of one run is made of."""
    timed = {row.run: row for row in rows if row.parts}
    if not timed:
        return
    worst = max(timed.values(), key=lambda row: row.error).run
    run = st.selectbox(
        "One run by its parts",
        list(timed),
        index=list(timed).index(worst),
        format_func=lambda name: view.run_label(timed[name]),
        key="measured-run",
        help="First the one that is predicted worst",
    )
    st.plotly_chart(
        parts_against(timed[run or worst], dark=common.dark()),
        key="measured-parts",
        alt="The parts of the predicted time above the measured time",
    )


def draw_learned_numbers(ids: tuple[str, ...]) -> None:
    """What calibration changed: each factor with its scope and credibility."""
    learned = view.rank_numbers(answer.cached_learned_numbers(ids, calibration_stamp()))
    if learned:
        st.header("What was learned", anchor=False)
        draw_sorted_table(
            learned, view.NUMBERS, f"{len(learned)} factors that the calibration learned"
        )


def draw_kept_runs(overlay: Overlay) -> None:
    """Every run that the calibration keeps, and whether it counts."""
    st.header("Runs", anchor=False)
    newest = list(reversed(overlay.entries))
    columns = known_columns(newest, view.run_columns(sources=folders_allowed()))
    draw_sorted_table(newest, columns, f"{len(newest)} runs of the calibration")
    if folders_allowed():
        st.caption(common.escape(f"Kept in {overlay.path}."))
    st.caption("Take the latest back: `recipe calibrate --undo`")


def draw_own_checkpoints(overlay: Overlay) -> None:
    """Measured checkpoints beside what published figures let expect of them."""
    st.header("Checkpoints made here", anchor=False)
    newest = list(reversed(Knowledge(overlay).compared(overlay.compressions)))
    draw_sorted_table(
        newest,
        view.checkpoint_columns(sources=folders_allowed()),
        f"{len(newest)} measured checkpoints beside what was expected of them",
    )
    st.caption("Take the latest back: `recipe calibrate --undo`")


st.title("Predicted against measured", anchor=False)
try:
    overlay = Overlay.open()
    whose = pick_measured_runs(overlay)
    if overlay is None or not overlay.entries:
        if overlay is not None and overlay.compressions:
            draw_own_checkpoints(overlay)
        how_to_begin()
        st.header("Published runs that ship with the builder", anchor=False)
    ids = tuple(entry.id for entry in overlay.entries if not entry.expired) if overlay else ()
    compared = answer.compared_runs(ids if whose == MINE else None, calibration_stamp())
    if overlay is not None and whose == MINE:
        st.markdown(common.escape(view.calibration_verdict(overlay, compared)))
    if compared.figures:
        draw_error_table(compared)
        draw_measured_charts(compared)
    for name, reason in list(compared.left_out.items())[: view.MAX_LEFT_OUT]:
        st.caption(common.escape(f"Not predicted: {name}: {reason}"))
    if overlay is not None and overlay.entries and whose == MINE:
        draw_learned_numbers(tuple(entry.id for entry in overlay.entries if entry.counts))
        draw_kept_runs(overlay)
        if overlay.compressions:
            draw_own_checkpoints(overlay)
except RecipeError as error:
    st.error(common.escape(error), icon=":material/error:")
