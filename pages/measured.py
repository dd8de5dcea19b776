import _common as common
import _measured_answer as answer
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.calibrate import Knowledge
from recipe_core.calibration.comparison import ComparedFigure, RunsCompared
from recipe_core.calibration.store import Overlay, stamp
from recipe_core.doors.serve import folders_allowed
from recipe_core.views import charts
from recipe_core.views import measured_view as view

MINE, PUBLISHED = "Mine", "Published"
COMMANDS = """recipe up BUNDLE
recipe bench BUNDLE
recipe calibrate BUNDLE"""


def choose(overlay: Overlay | None) -> str:
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


def errors(compared: RunsCompared) -> None:
    """Before and after, by figure."""
    st.dataframe(
        view.errors_frame(compared),
        hide_index=True,
        column_config={
            "figure": st.column_config.TextColumn("Figure", pinned=True),
            "runs": st.column_config.NumberColumn("Runs"),
            "error_formulas": percent("Median error", "Of the formulas alone"),
            "error_corrected": percent(
                "With the other runs", "Each run is predicted without itself"
            ),
            "in_band_formulas": percent("In band", "Of the formulas alone: 80 % are expected"),
            "in_band_corrected": percent("In band, with the others", "80 % are expected"),
        },
        alt="Errors of the predictions by figure, before and after calibration",
    )


def percent(title: str, help: str) -> object:  # noqa: A002 - Streamlit's own word
    """A column of percentages."""
    return st.column_config.NumberColumn(title, format="%.1f%%", help=help)


@st.fragment
def pictures(compared: RunsCompared) -> None:
    """Predicted against measured, ratios by group, and one run by its parts."""
    common.follow_edit()
    with st.container(horizontal=True):
        figure = st.segmented_control(
            "Figure",
            view.figures_of(compared),
            default=view.figures_of(compared)[0],
            format_func=view.TITLES.__getitem__,
            required=True,
            key="measured-figure",
        )
        which = st.segmented_control(
            "Predicted by",
            list(charts.PREDICTED_BY),
            default="corrected",
            format_func=charts.PREDICTED_BY.__getitem__,
            required=True,
            key="measured-which",
        )
    rows = view.rows_of(compared, figure or view.figures_of(compared)[0])
    st.plotly_chart(
        charts.measured_against(rows, which or "corrected", dark=common.dark()),
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
        charts.ratios_by_group(rows, groups, dark=common.dark()),
        key="measured-ratios",
        alt=f"Measured over predicted by {(group or 'Engine version').lower()}",
    )
    parts(rows)


def parts(rows: list[ComparedFigure]) -> None:
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
        charts.parts_against(timed[run or worst], dark=common.dark()),
        key="measured-parts",
        alt="The parts of the predicted time above the measured time",
    )


def numbers(ids: tuple[str, ...]) -> None:
    """What calibration changed: each factor with its scope and credibility."""
    frame = view.numbers_frame(answer.learned(ids, stamp()))
    if frame.empty:
        return
    st.header("What was learned", anchor=False)
    st.dataframe(
        frame,
        hide_index=True,
        height="content" if len(frame) < 11 else 390,
        column_config={
            "time": st.column_config.TextColumn("Time of"),
            "scope": st.column_config.TextColumn("Scope", width="large"),
            "factor": st.column_config.NumberColumn(
                "×", format="%.3g", help="On the times of the formulas; factors multiply"
            ),
            "band": st.column_config.TextColumn("80 %"),
            "weight": st.column_config.NumberColumn(
                "Credibility", format="%.0f%%", help="How far the runs settle the factor"
            ),
            "runs": st.column_config.NumberColumn("Runs"),
        },
        alt=f"{len(frame)} factors that the calibration learned",
    )


def kept(overlay: Overlay) -> None:
    """Every run that the calibration keeps, and whether it counts."""
    st.header("Runs", anchor=False)
    st.dataframe(
        view.runs_frame(overlay.entries, sources=folders_allowed()),
        hide_index=True,
        column_config={
            "state": st.column_config.TextColumn("State", width="medium", pinned=True),
            "run": "Run",
            "device": "Device",
            "engine": "Engine",
            "measured": "Measured on",
            "expires": st.column_config.DateColumn(
                "Counts until", help="Drivers, images and clocks move on"
            ),
            "source": "From",
            **view.TITLES,
        },
        alt=f"{len(overlay.entries)} runs of the calibration",
    )
    if folders_allowed():
        st.caption(common.escape(f"Kept in {overlay.path}."))
    st.caption("Take the latest back: `recipe calibrate --undo`")


def checkpoints(overlay: Overlay) -> None:
    """Measured checkpoints beside what published figures let expect of them."""
    st.header("Checkpoints made here", anchor=False)
    st.dataframe(
        view.checkpoints_frame(
            Knowledge(overlay).compared(overlay.compressions), sources=folders_allowed()
        ),
        hide_index=True,
        column_config={
            "state": st.column_config.TextColumn("State", pinned=True),
            "model": "Base",
            "technique": "Technique",
            "method": "Method",
            "measured": percent("Perplexity kept", "Of the base over that of the result"),
            "expected": st.column_config.TextColumn(
                "Expected (80 % band)", help="Of perplexity, by published figures alone"
            ),
            "held": "In band",
            "agreement": percent("Same answers", "Equal tokens of greedy answers"),
            "before": st.column_config.TextColumn(
                "Accuracy expected", help="Mean over tasks, by published figures alone"
            ),
            "after": st.column_config.TextColumn(
                "With it", help="What is kept of perplexity is taken as a floor of accuracy"
            ),
            "tokens": st.column_config.NumberColumn("Tokens", help="Of the text that was read"),
            "date": "Measured on",
            "expires": st.column_config.DateColumn("Counts until"),
            "source": "From",
        },
        alt=f"{len(overlay.compressions)} measured checkpoints beside what was expected of them",
    )
    st.caption("Take the latest back: `recipe calibrate --undo`")


st.title("Predicted against measured", anchor=False)
try:
    overlay = Overlay.open()
    whose = choose(overlay)
    if overlay is None or not overlay.entries:
        if overlay is not None and overlay.compressions:
            checkpoints(overlay)
        how_to_begin()
        st.header("Published runs that ship with the builder", anchor=False)
    ids = tuple(entry.id for entry in overlay.entries if not entry.expired) if overlay else ()
    compared = answer.compared_runs(ids if whose == MINE else None, stamp())
    if overlay is not None and whose == MINE:
        st.markdown(common.escape(view.verdict(overlay, compared)))
    if compared.figures:
        errors(compared)
        pictures(compared)
    for name, reason in list(compared.left_out.items())[: view.LEFT_OUT_SHOWN]:
        st.caption(common.escape(f"Not predicted: {name}: {reason}"))
    if overlay is not None and overlay.entries and whose == MINE:
        numbers(tuple(entry.id for entry in overlay.entries if entry.counts))
        kept(overlay)
        if overlay.compressions:
            checkpoints(overlay)
except RecipeError as error:
    st.error(common.escape(error), icon=":material/error:")
