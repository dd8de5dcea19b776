import _columns as columns_of
import _common as common
import _measured_answer as answer
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.lessons import Knowledge
from recipe_core.calibration.place import calibration_stamp
from recipe_core.calibration.residuals import ComparedFigure, RunsCompared
from recipe_core.calibration.store import Overlay
from recipe_core.calibration.uploads import MAX_UPLOAD_BYTES, UploadPreview
from recipe_core.doors.serve import folders_allowed
from recipe_core.views import evidence as sources
from recipe_core.views import measured as view
from recipe_core.views.charts.measured import (
    PREDICTED_BY,
    measured_against,
    parts_against,
    ratios_by_group,
)
from recipe_core.views.columns import known_columns

MINE, PUBLISHED = "Mine", "Published"
COMMANDS = """recipe up BUNDLE
recipe bench BUNDLE
recipe calibrate BUNDLE"""
KINDS = ["csv", "json", "jsonl", "txt", "log", "zip", "yaml"]
DROPPED, KEPT = "own-runs-dropped", "own-runs-kept"


def pick_measured_runs(overlay: Overlay | None) -> str:
    if overlay is None or not overlay.entries:
        return PUBLISHED
    about = "Yours are those that were kept; published ones ship with the builder"
    return str(common.pick_one("Runs", (MINE, PUBLISHED), "measured-whose", help=about))


def uploader_key() -> str:
    """The key of the place for files: another after runs were kept, which empties it."""
    return f"{DROPPED}-{st.session_state.get(KEPT, 0)}"


def keep_runs(preview: UploadPreview) -> None:
    try:
        added = Overlay.at(None).add(preview.incoming)
    except RecipeError as error:
        st.session_state["refused"] = str(error)
        return
    st.session_state[KEPT] = st.session_state.get(KEPT, 0) + 1
    count = len(added.entries) + len(added.compressions)
    st.toast(f"Kept {count:,} run{'s' * (count != 1)}; every answer uses them now.")


def undo_runs() -> None:
    try:
        Overlay.at(None).undo()
    except RecipeError as error:
        st.session_state["refused"] = str(error)


def draw_import() -> None:
    files = st.file_uploader(
        "Drop your runs",
        type=KINDS,
        accept_multiple_files=True,
        max_upload_size=MAX_UPLOAD_BYTES >> 20,
        key=uploader_key(),
        help="A CSV of runs, results of vLLM's, SGLang's, GuideLLM's or another benchmark, or a "
        "bundle as a zip file. What a file does not state is taken from your plan.",
    )
    if not files:
        return
    try:
        preview = answer.preview_files(files)
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/error:")
        return
    draw_preview(preview)


def draw_preview(preview: UploadPreview) -> None:
    st.markdown(common.escape(view.upload_verdict(preview)))
    if preview.entries:
        columns = known_columns(preview.entries, view.run_columns(sources=False, ids=False))
        columns_of.draw_sorted(
            preview.entries, columns, f"{len(preview.entries)} runs of the files"
        )
    for name, reason in list(preview.left_out.items())[: view.MAX_LEFT_OUT]:
        st.caption(common.escape(f"Left out: {name}: {reason}"))
    if preview.columns:
        with st.expander("Columns that were understood", icon=":material/table_rows:"):
            columns_of.draw_sorted(
                preview.columns, view.UPLOADED, "Columns with where they are from"
            )
    if not folders_allowed():
        st.caption(
            "This server is open to others and keeps no runs. On your machine: "
            "`recipe calibrate runs.csv`, after `recipe import FILE -o runs.csv`."
        )
    elif preview.incoming and (preview.entries or preview.checkpoints):
        st.button(
            "Keep these runs",
            key="keep-runs",
            type="primary",
            icon=":material/save:",
            on_click=keep_runs,
            args=(preview,),
        )


def how_to_begin() -> None:
    st.caption("No runs of your own yet. Drop some above, or measure a bundle and keep the result:")
    st.code(COMMANDS, language="bash")


def draw_error_table(compared: RunsCompared) -> None:
    columns = (*view.ERRORS, *view.IN_BAND)
    columns_of.draw_sorted(
        view.figure_errors(compared),
        columns,
        "Errors of the predictions by figure, before and after calibration",
    )


@st.fragment
def draw_measured_charts(compared: RunsCompared) -> None:
    session.follow_edit()
    with st.container(horizontal=True):
        titles = {name: view.measured_title(name) for name in view.measured_figures(compared)}
        figure = common.pick_one("Figure", titles, "measured-figure", persist_state=None)
        which = common.pick_one(
            "Predicted by", PREDICTED_BY, "measured-which", "corrected", persist_state=None
        )
    rows = view.rows_of_figure(compared, figure)
    common.draw_chart(
        measured_against(rows, which, dark=common.dark()),
        "measured-scatter",
        f"{len(rows)} measured values against their predictions, with bands",
    )
    st.caption("Bars are the 80 % bands of the predictions. Open marks lie outside of theirs.")
    names = list(view.GROUPS)
    group = common.pick_one(
        "Measured / predicted, by", names, "measured-group", "Engine version", persist_state=None
    )
    groups = [view.GROUPS[group](row) for row in rows]
    common.draw_chart(
        ratios_by_group(rows, groups, dark=common.dark()),
        "measured-ratios",
        f"Measured over predicted by {group.lower()}",
    )
    draw_run_parts(rows)


def draw_run_parts(rows: list[ComparedFigure]) -> None:
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
    common.draw_chart(
        parts_against(timed[run or worst], dark=common.dark()),
        "measured-parts",
        "The parts of the predicted time above the measured time",
    )


def draw_learned_numbers(ids: tuple[str, ...]) -> None:
    learned = view.rank_numbers(answer.cached_learned_numbers(ids, calibration_stamp()))
    if learned:
        st.subheader("What was learned", anchor=False)
        columns_of.draw_sorted(
            learned, view.NUMBERS, f"{len(learned)} factors that the calibration learned"
        )


def draw_kept_runs(overlay: Overlay) -> None:
    st.subheader("Runs that are kept", anchor=False)
    newest = list(reversed(overlay.entries))
    columns = known_columns(newest, view.run_columns(sources=folders_allowed(), ids=False))
    columns_of.draw_sorted(newest, columns, f"{len(newest)} runs of the calibration")
    if folders_allowed():
        st.caption(common.escape(f"Kept in {overlay.path}."))
        st.button(
            "Take the latest addition back",
            key="undo-runs",
            icon=":material/undo:",
            on_click=undo_runs,
        )


def draw_sources() -> None:
    st.header("Where prices and devices come from", anchor=False)
    prices = sources.provider_prices()
    offers = sum(row.offers for row in prices)
    columns_of.draw_sorted(
        prices,
        sources.PROVIDERS,
        f"{offers:,} price offers of {len(prices)} providers with their dates",
    )
    devices = sources.device_figures()
    columns_of.draw_sorted(
        devices, sources.DEVICES, f"{len(devices)} devices with the origins of their figures"
    )


def draw_own_checkpoints(overlay: Overlay) -> None:
    st.header("Checkpoints made here", anchor=False)
    newest = list(reversed(Knowledge(overlay).compared(overlay.compressions)))
    columns_of.draw_sorted(
        newest,
        view.checkpoint_columns(sources=folders_allowed()),
        f"{len(newest)} measured checkpoints beside what was expected of them",
    )
    st.caption("Take the latest back: `recipe calibrate --undo`")


st.title("How right are the numbers?", anchor=False)
try:
    overlay = Overlay.open()
    st.header("Own runs", anchor=False)
    draw_import()
    if overlay is None or not overlay.entries:
        if overlay is not None and overlay.compressions:
            draw_own_checkpoints(overlay)
        how_to_begin()
    else:
        draw_kept_runs(overlay)
        draw_learned_numbers(tuple(entry.id for entry in overlay.entries if entry.counts))
        if overlay.compressions:
            draw_own_checkpoints(overlay)
    st.header("Predicted against measured", anchor=False)
    whose = pick_measured_runs(overlay)
    ids = tuple(entry.id for entry in overlay.entries if not entry.expired) if overlay else ()
    compared = answer.compared_runs(ids if whose == MINE else None, calibration_stamp())
    if overlay is not None and whose == MINE:
        st.markdown(common.escape(view.calibration_verdict(overlay, compared)))
    else:
        st.caption(
            "Published runs that ship with the builder, as this version predicts them. They are "
            "not your runs."
        )
    if compared.figures:
        draw_error_table(compared)
        draw_measured_charts(compared)
    for name, reason in list(compared.left_out.items())[: view.MAX_LEFT_OUT]:
        st.caption(common.escape(f"Not predicted: {name}: {reason}"))
except RecipeError as error:
    st.error(common.escape(error), icon=":material/error:")
draw_sources()
