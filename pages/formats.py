import _common as common
import _formats_answer as judging
import _formats_row as details
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.describe import summary
from recipe_core.views import charts
from recipe_core.views import formats_view as view
from recipe_core.views.glossary import term_help

HELD = {"ratio": "Against the base", "value": "Values"}


def serving_only() -> None:
    """What to do with a request for training."""
    st.info(
        "This page is about models that are served. A training run has one format, which its "
        "recipe states.",
        icon=":material/info:",
    )
    st.button(
        "Serve this model",
        key="formats-serve",
        icon=":material/dns:",
        on_click=common.apply,
        args=({"workload.kind": "serving"},),
    )


def limit() -> None:
    """The least accuracy, and the kind of benchmark that it is of."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        common.edit(
            st.number_input,
            "Least accuracy kept",
            "objective.limits.accuracy_recovery",
            read=lambda share: None if share is None else round(share * 100, 2),
            write=lambda points: points / 100,
            optional=True,
            min_value=1.0,
            max_value=100.0,
            step=0.5,
            format="%.4g",
            placeholder="none, in %",
            width=190,
        )
        common.edit(
            st.selectbox,
            "Accuracy of",
            "objective.accuracy_of",
            options=details.benchmarks(),
            format_func=details.BENCHMARKS.get,
            width=240,
        )


def head(answer: judging.Json) -> None:
    """The best format, and what it changes."""
    best = view.best_row(answer)
    if best is None:
        st.warning(view.verdict(answer), icon=":material/block:")
        return
    with st.grid(5, min_column_width=150):
        with st.container(border=True, height="stretch", gap="xsmall"):
            st.markdown(":small[Best by the objective]")
            st.markdown(f"**{common.escape(best['title'])}**")
            st.badge(common.escape(best["verdict"]), color="gray")
        retained = best["accuracy"]["retained"]
        tile(
            "Accuracy kept",
            view.kept_text(best, band=False),
            ""
            if retained is None
            else f"{retained['low'] * 100:.1f} – {retained['high'] * 100:.1f} %",
        )
        for name in ("usd_per_million_output_tokens", "tpot_s", "weights_bytes"):
            known = view.figure(best, name, "best_split") or view.figure(best, name)
            if known is not None:
                change = view.change_text(known["ratio"])
                tile(view.FIGURES[name][0], view.figure_text(name, known["value"]), change)
    if answer["accuracy_limit"] is None:
        st.caption(
            "No least accuracy is asked for, so the objective alone ranks: what is cheap and "
            "wrong may come first."
        )
    elif not best["accuracy"]["within_limit"]:
        st.warning(common.escape(view.verdict(answer)), icon=":material/warning:")
    usable = view.usable_row(answer)
    if usable is not None:
        details.use(usable, "formats-use-best", main=True)
        if usable is not best:
            st.caption("The best of those that a plan has as a format.")


def tile(title: str, text: str, below: str) -> None:
    """One figure."""
    st.metric(
        title,
        common.escape(text),
        delta=common.escape(below) or None,
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
    )


def base(answer: judging.Json) -> None:
    """What everything is compared with."""
    base_formats = answer["base"]
    formats = f"{base_formats['weight_dtype']} weights, {base_formats['kv_dtype']} cache"
    base_split = base_formats["same_split"]
    engine = answer["engine"]["name"]
    text = f"Base: {answer['model']} with {formats} on {base_split['split']}, {engine}"
    if base_split["state"] == "cannot run":
        text += f", which cannot run: {base_split['reasons'][0]}"
    st.caption(common.escape(". ".join([text, *base_formats["notes"]]).rstrip(".") + "."))


@st.fragment
def picture(answer: judging.Json) -> None:
    """Accuracy against what a token costs or takes."""
    common.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            "Against",
            list(view.AXES),
            format_func=view.AXES.get,
            key="formats-against",
            persist_state="session",
            width=240,
        )
        split = chosen_split("formats-chart-split")
    rows = view.shown_rows(answer)
    figure = charts.accuracy_against(
        rows,
        name or next(iter(view.AXES)),
        split,
        limit=answer["accuracy_limit"],
        dark=common.dark(),
    )
    st.plotly_chart(
        figure,
        key="formats-accuracy",
        alt=f"Accuracy kept by {len(rows)} techniques against {view.AXES.get(name, '')}",
    )
    hidden = charts.not_drawn(rows, name or next(iter(view.AXES)), split)
    st.caption(
        "Left is better, up is better. Lines are the ranges in which eight of ten measured "
        "scores are expected."
        + (f" {hidden} that keep less than the axis shows are in the table." if hidden else "")
    )


def chosen_split(key: str) -> str:
    """Whether techniques are on the base's split, or each on its own best."""
    split = st.segmented_control(
        "On",
        list(view.SPLITS),
        default="same_split",
        format_func=view.SPLITS.get,
        required=True,
        key=key,
        persist_state="session",
        help="The split of the base shows what the format alone does; its best split, what it "
        "makes possible, such as fewer devices",
    )
    return split or "same_split"


@st.fragment
def table(answer: judging.Json) -> None:
    """Techniques with their figures; the ticked one in full below."""
    common.follow_edit()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        split = chosen_split("formats-table-split")
        figures = st.segmented_control(
            "Figures",
            list(HELD),
            default="ratio",
            format_func=HELD.get,
            required=True,
            key="formats-figures",
            persist_state="session",
        )
        files = st.toggle("All GGUF types", key="formats-files", persist_state="session")
        every = st.toggle("What does not run", key="formats-refused", persist_state="session")
    rows = view.shown_rows(answer, every_file=files, without_figures=every)
    frame = view.formats_frame(rows, values=figures == "value", split=split)
    event = st.dataframe(
        frame if every else frame.drop(columns="why"),
        key=f"formats-table-{split}-{figures}-{files}-{every}",
        hide_index=True,
        height="content" if len(frame) < 14 else 500,
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "rank": st.column_config.NumberColumn("#", width=40, help="By the objective"),
            "technique": st.column_config.TextColumn("Technique", pinned=True, width="medium"),
            "verdict": st.column_config.TextColumn("Runs", help=term_help("emulated")),
            "accuracy": st.column_config.TextColumn(
                "Accuracy kept", help=term_help("accuracy-recovery")
            ),
            **{
                name: st.column_config.TextColumn(head, help=text)
                for name, (head, text) in view.FIGURES.items()
            },
            "split": st.column_config.TextColumn("Best split for it"),
            "best_at": st.column_config.TextColumn("Best at"),
            "checkpoint": st.column_config.TextColumn("Checkpoint", help="That already is it"),
            "why": st.column_config.TextColumn("Why not", width="large"),
        },
        alt=f"{len(frame)} techniques with accuracy and figures",
    )
    picked = event.selection.rows
    if picked and picked[0] < len(rows):
        details.draw(rows[picked[0]])
    else:
        st.caption("Tick a row for its source, its published figures, and to use it.")


@st.fragment
def matrix(answer: judging.Json) -> None:
    """Who runs what: engines on this device, or hardware under this engine."""
    common.follow_edit()
    device, engine = answer["matrix"]["engines_on"], view.column_title(answer["engine"]["name"])
    ways = {"by_engine": f"Engines on {device}", "by_hardware": f"Hardware under {engine}"}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        way = st.segmented_control(
            "Columns",
            list(ways),
            default="by_engine",
            format_func=ways.get,
            required=True,
            key="formats-matrix",
            persist_state="session",
        )
        every = st.toggle("All columns", key="formats-matrix-all", persist_state="session")
        words = st.toggle("As a table", key="formats-matrix-table", persist_state="session")
    cells = answer["matrix"][way or "by_engine"]
    if not every:
        cells = view.narrowed(cells, FIRST_COLUMNS)
    if not cells:
        st.caption("Nothing is known of it.")
        return
    alt = f"Verdicts of {len(cells)} techniques by {'engine' if way == 'by_engine' else 'hardware'}"
    if words:
        st.dataframe(view.matrix_frame(cells), alt=alt)
    else:
        st.plotly_chart(
            charts.support_matrix(cells, dark=common.dark()), key="formats-cells", alt=alt
        )
    st.caption(
        common.escape(
            " · ".join(f"{letter} {name}: {view.MEANINGS[name]}" for name, letter in LETTERS)
        )
    )


LETTERS = tuple(view.LETTERS.items())
FIRST_COLUMNS = 9
"""Columns of the matrix that fit a narrow screen."""


def together(answer: judging.Json) -> None:
    """Which techniques go together."""
    frame = view.pairs_frame(answer)
    if frame.empty:
        return
    st.header("Together", anchor=False)
    st.dataframe(
        frame,
        hide_index=True,
        column_config={
            "pair": st.column_config.TextColumn("Techniques", pinned=True, width="large"),
            "effect": "Effect",
            "cost": st.column_config.TextColumn("Cost", help="Both estimated at once"),
            "product": st.column_config.TextColumn(
                "By product", help="What each alone would give, multiplied"
            ),
            "held": "Tokens held",
            "accuracy": "Accuracy kept",
            "sentence": st.column_config.TextColumn("Why", width="large"),
        },
        alt=f"{len(frame)} pairs of techniques",
    )


if page := st.session_state.pop("formats-goto", None):
    st.switch_page(page, query_params=common.link())

st.title("Which format?", anchor=False)
st.caption(common.escape(summary(common.request())))
if common.training():
    serving_only()
else:
    limit()
    try:
        answer = judging.answer(common.request())
        head(answer)
        base(answer)
        st.header("Accuracy against cost", anchor=False)
        picture(answer)
        st.header("Techniques", anchor=False)
        table(answer)
        st.header("Who runs what", anchor=False)
        matrix(answer)
        together(answer)
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/error:")
