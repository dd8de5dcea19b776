import _columns as columns_of
import _common as common
import _formats_answer as judging
import _formats_row as details
import _numbers as numbers
import _workload as asking
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.describe import request_summary
from recipe_core.request.metrics import limits_by_name
from recipe_core.views import formats as view
from recipe_core.views.charts.formats import accuracy_against, hidden_count, support_matrix
from recipe_core.views.glossary import term_help

HELD = {"ratio": "Against the base", "value": "Values"}


def draw_training_notice() -> None:
    st.info(
        "This page is about models that are served. A training run has one format, which its "
        "recipe states.",
        icon=":material/info:",
    )
    common.edit_button(
        "Serve this model", "formats-serve", {"workload.kind": "serving"}, ":material/dns:"
    )


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
            placeholder="none, in %",
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
            st.markdown(":small[Best by the objective]")
            st.markdown(f"**{common.escape(best['title'])}**")
            st.badge(common.escape(best["verdict"]), color="gray")
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
    if note := view.ranking_note(answer):
        st.caption(common.escape(note))
    elif answer["accuracy_limit"] is not None and not best["accuracy"]["within_limit"]:
        st.warning(common.escape(view.formats_verdict(answer)), icon=":material/warning:")
    usable = view.best_usable(answer)
    if usable is not None:
        details.draw_use_format(usable, "formats-use-best", main=True)
        if usable is not best:
            st.caption("The best of those that a plan has as a format.")


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
    common.follow_edit()
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
    rows, axis = view.shown_techniques(answer), name or view.AXES[0]
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
    hidden = hidden_count(rows, axis, split)
    st.caption(
        "Left is better, up is better. Lines are the ranges in which eight of ten measured "
        "scores are expected."
        + (f" {hidden} that keep less than the axis shows are in the table." if hidden else "")
    )


def chosen_split(key: str) -> str:
    """Return whether techniques are on the base's split, or each on its own best."""
    about = (
        "The split of the base shows what the format alone does; its best split, what it makes "
        "possible, such as fewer devices"
    )
    return str(common.pick_one("On", view.SPLITS, key, help=about))


@st.fragment
def draw_technique_table(answer: judging.Json) -> None:
    common.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        split = chosen_split("formats-table-split")
        figures = common.pick_one("Figures", HELD, "formats-figures")
        files = st.toggle("All GGUF types", key="formats-files", persist_state="session")
        with_refused = st.toggle(
            "What does not run", key="formats-refused", persist_state="session"
        )
    rows = view.shown_techniques(answer, every_file=files, without_figures=with_refused)
    columns = view.technique_columns(values=figures == "value", split=split, reasons=with_refused)
    column = st.column_config.Column
    config = {
        "#": column("#", width=40, help="By the objective"),
        "Technique": column("Technique", width="medium", pinned=True),
        "Runs": column("Runs", help=term_help("emulated")),
        view.ACCURACY: column(view.ACCURACY, help=term_help("accuracy-recovery")),
    }
    event = columns_of.draw_sorted(
        rows,
        columns,
        f"{len(rows)} techniques with accuracy and figures",
        rows_high=13,
        key=f"formats-table-{split}-{figures}-{files}-{with_refused}",
        on_select="rerun",
        selection_mode="single-row",
        column_config=config,
    )
    picked = event.selection.rows
    if picked and picked[0] < len(rows):
        details.draw_format_row(rows[picked[0]])
    else:
        st.caption("Tick a row for its source, its published figures, and to use it.")


@st.fragment
def draw_support_matrix(answer: judging.Json) -> None:
    common.follow_edit()
    device, engine = answer["matrix"]["engines_on"], view.support_title(answer["engine"]["name"])
    ways = {"by_engine": f"Engines on {device}", "by_hardware": f"Hardware under {engine}"}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        matrix_view = common.pick_one("Columns", ways, "formats-matrix")
        all_columns = st.toggle("All columns", key="formats-matrix-all", persist_state="session")
        words = st.toggle("As a table", key="formats-matrix-table", persist_state="session")
    cells = answer["matrix"][matrix_view]
    if not all_columns:
        cells = view.narrow_matrix(cells, FIRST_COLUMNS)
    if not cells:
        st.caption("Nothing is known of it.")
        return
    axis = "engine" if matrix_view == "by_engine" else "hardware"
    alt = f"Verdicts of {len(cells)} techniques by {axis}"
    if words:
        st.dataframe(view.matrix_frame(cells), alt=alt)
    else:
        common.draw_chart(support_matrix(cells, dark=common.dark()), "formats-cells", alt)
    st.caption(
        common.escape(
            " · ".join(f"{letter} {name}: {view.MEANINGS[name]}" for name, letter in LETTERS)
        )
    )


LETTERS = tuple(view.LETTERS.items())
FIRST_COLUMNS = 9
"""Columns of the matrix that fit a narrow screen."""


def draw_technique_pairs(answer: judging.Json) -> None:
    pairs = answer["combinations"]
    if not pairs:
        return
    st.header("Together", anchor=False)
    columns_of.draw_sorted(pairs, view.PAIRS, f"{len(pairs)} pairs of techniques")


if page := st.session_state.pop("formats-goto", None):
    st.switch_page(page, query_params=common.screen_link_query())

st.title("Which format?", anchor=False)
st.caption(common.escape(request_summary(common.request())))
if common.asks_for_training():
    draw_training_notice()
else:
    draw_accuracy_limit()
    try:
        answer = judging.judge_formats(common.request())
        draw_best_format(answer)
        st.caption(common.escape(view.base_sentence(answer)))
        st.header("Accuracy against cost", anchor=False)
        draw_accuracy_chart(answer)
        st.header("Techniques", anchor=False)
        draw_technique_table(answer)
        st.header("Who runs what", anchor=False)
        draw_support_matrix(answer)
        draw_technique_pairs(answer)
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/error:")
