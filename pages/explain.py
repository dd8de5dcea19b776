"""The lower half of the comparison: one split looked at closely, pinned ones beside it, and why others are refused."""

from __future__ import annotations

from collections.abc import Callable

import common
import parts
import streamlit as st
from degrees import degrees

from recipe_core.base.errors import RecipeError
from recipe_core.base.labels import CAUSES, TRAINING_CAUSES, change_label
from recipe_core.base.units import gib
from recipe_core.doors.serve import folders_allowed
from recipe_core.explain.arithmetic import Line, arithmetic, training_arithmetic
from recipe_core.explain.curves import load_curve, scaling
from recipe_core.explain.timeline import best_with_pipeline, step_timeline
from recipe_core.explain.tornado import FIGURES, tornado
from recipe_core.physics.prediction import known
from recipe_core.present import charts, tables
from recipe_core.request.schema import LOADS
from recipe_core.search.changes import fixes
from recipe_core.search.plan import Plan
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.training_plan import TrainingPlan
from recipe_core.targets.start_command import start_command

UNITS = {
    "concurrency": "in flight",
    "batch": "in a batch",
    "requests": "queued",
    "request_rate": "requests/s",
}


@st.fragment
def look_closer(board: Plan) -> None:
    """Which split to look at, and every view of it; only the open tab is computed, and the rest of the page stays as it is."""
    common.follow_edit()
    best = board.best_row
    st.header("A closer look", anchor=False)
    row = focus(board) if best is not None else board.nearest_row()
    if row is None:
        return
    views = SERVING if isinstance(board, ServingPlan) else TRAINING
    shown = {
        name: draw
        for name, (draw, needs_best) in views.items()
        if best is not None or not needs_best
    }
    for tab, draw in zip(
        st.tabs(list(shown), key="views", on_change="rerun"), shown.values(), strict=True
    ):
        if tab.open:
            with tab:
                draw(board, row)
    if best is not None:
        starts(board, row)


def starts(board: Plan, row: int) -> None:
    """What starts the split that is looked at, to copy; or why nothing does."""
    try:
        command = start_command(board, row, folders=folders_allowed())
    except RecipeError as error:
        st.warning(
            f"**{common.escape(board.label(row))} cannot be started.** {common.escape(error)}",
            icon=":material/block:",
        )
        return
    st.caption(
        "What starts it; of several processes the first. The recipe has them all, with files, checks and other places."
    )
    parts.code(command)


def focus(board: Plan) -> int:
    """The split that is looked at: the best, the chosen one or a pinned one."""
    fitting = [
        row for key in common.pins() if (row := board.find(key)) is not None and board.feasible[row]
    ]
    rows = list(dict.fromkeys([int(board.order[0]), common.chosen(board), *fitting]))
    options = {board.key(row): board.label(row) for row in rows}
    options[board.key(rows[0])] += " (best)"
    said = "The best, the one you took, and those you pinned"
    key = st.selectbox(
        "Split", list(options), format_func=options.get, key="focus", help=said, width=460
    )
    return board.find(key) if key in options else rows[0]


def beside(board: Plan, row: int) -> dict[str, int]:
    """The split that is looked at and the pinned ones that fit, by name."""
    pinned = [
        found
        for key in common.pins()
        if (found := board.find(key)) is not None and board.feasible[found]
    ]
    return {board.label(each): each for each in dict.fromkeys([row, *pinned])}


def memory(board: Plan, row: int) -> None:
    """Memory of a device by part, of this split and others; of each stage where there are several."""
    keys = [*common.pins(), board.key(row)]
    rows = tables.memory_rows(board, keys)
    st.plotly_chart(
        charts.memory_bars(board, rows, dark=common.dark()),
        key="memory",
        alt=f"Memory of {len(rows)} splits by part against {gib(board.capacity_bytes(row))} of capacity",
    )
    st.caption(
        "Pinned, best and nearest refused splits. The dotted line is what the engine may use, the solid one what a process can have."
    )
    if (parts := board.estimate(row).memory) and (stages := parts.stages):
        st.markdown(f"**Pipeline stages of {common.escape(board.label(row))}**")
        held = [
            {name.removesuffix("_bytes"): value for name, value in stage.to_json().items()}
            for stage in stages
        ]
        names = {name.removesuffix("_bytes"): said for name, said in board.parts.items()}
        figure = charts.stage_bars(
            held, names, board.usable_bytes(row), board.capacity_bytes(row), dark=common.dark()
        )
        st.plotly_chart(
            figure, key="stages", alt=f"Memory of {len(stages)} pipeline stages by part"
        )


def step_time(board: ServingPlan, row: int) -> None:
    """Where the time of a token and of a first token goes."""
    breakdown = known(board.explained(row).breakdown_s)
    left, right = st.columns(2, gap="large")
    for place, part, title in (
        (left, "decode", "Time per output token"),
        (right, "prefill", "Time to first token"),
    ):
        with place:
            st.markdown(f"**{title} of {common.escape(board.label(row))}**")
            figure = charts.waterfall(getattr(breakdown, part), CAUSES, dark=common.dark())
            st.plotly_chart(figure, key=f"waterfall-{part}", alt=f"{title} by part")
    st.markdown("**The same time by cause**")
    causes = {name: board.explained(each).causes_s for name, each in beside(board, row).items()}
    figure = charts.causes_bars(
        [(name, of_split.decode if of_split else {}) for name, of_split in causes.items()],
        dark=common.dark(),
    )
    st.plotly_chart(figure, key="causes", alt="Time per output token by cause")
    st.caption(
        "Every part is laid on what it waits for: arithmetic, memory traffic, links, the engine's own work, other requests."
    )


def load(board: ServingPlan, row: int) -> None:
    """A split over its load."""
    workload = board.problem.workload
    what = UNITS[LOADS[workload.mode]]
    curves = {name: load_curve(board, each) for name, each in beside(board, row).items()}
    here = float(board.columns["load"][row])
    limit = board.request.objective.limits.tpot_ms
    figure = charts.load_curves(
        curves, here, what, limit, unit=board.device_title, dark=common.dark()
    )
    st.plotly_chart(
        figure, key="load", alt="Time per output token against output per device as the load grows"
    )
    band = (
        " The band is what your limit allows."
        if limit
        else " Set a limit on the time per output token to see what it allows."
    )
    st.caption(
        f"Each mark is a load, the large one the request's ({here:,.0f} {what}); numbers count {what}.{band}"
    )


def cost(board: ServingPlan, row: int) -> None:
    """Cost per token when devices are not always busy."""
    rows = {name: each for name, each in beside(board, row).items() if board.known("usd_hour")}
    if not rows:
        st.info(
            "No price of these devices is known. Give one under Hardware.", icon=":material/sell:"
        )
        return
    found = {
        name: (float(board.raw("usd_hour")[each]), float(board.raw("output")[each]))
        for name, each in rows.items()
    }
    st.plotly_chart(
        charts.use_curves(found, dark=common.dark()),
        key="use",
        alt="Cost per million output tokens over how busy the devices are",
    )
    st.caption(
        "Devices are paid by the hour whether they work or not: half as busy, twice the cost of a token."
    )


def depends(board: ServingPlan, row: int) -> None:
    """What a figure depends on."""
    known = [name for name in FIGURES if board.known(name)]
    name = st.segmented_control(
        "Figure",
        known,
        default=known[0],
        required=True,
        format_func=lambda name: board.measures[name].title,
        key="swing",
        persist_state="session",
    )
    base, found = tornado(board, row, name or known[0])
    figure = charts.swings(base, found, board.measures[name or known[0]], dark=common.dark())
    st.plotly_chart(
        figure, key="tornado", alt="How far the figure goes when each assumption is moved"
    )
    st.caption(
        f"{board.label(row)}, estimated again with one assumption moved at a time. What does not move the figure is left out."
    )


def lines(found: dict[str, list[Line]]) -> None:
    """Formulas with the numbers in them."""
    if not found:
        st.info("A rule of the split is broken, so nothing was estimated.", icon=":material/info:")
    for title, some in found.items():
        st.markdown(f"**{title}**")
        st.table(
            {
                "Figure": [line.name for line in some],
                "Formula": [common.escape(line.formula) for line in some],
                "With your numbers": [common.escape(line.numbers) for line in some],
                "Value": [f"**{common.escape(line.value)}**" for line in some],
            },
            border="horizontal",
            hide_index=True,
            alt=f"{title}: formulas with numbers",
        )


def serving_lines(board: ServingPlan, row: int) -> None:
    """The arithmetic of a serving split."""
    lines(arithmetic(board, row))


def training_lines(board: TrainingPlan, row: int) -> None:
    """The arithmetic of a training split."""
    lines(training_arithmetic(board, row))


def training_step(board: TrainingPlan, row: int) -> None:
    """Where the time of a step goes."""
    figure = charts.waterfall(
        known(board.estimate(row).breakdown_s).step, TRAINING_CAUSES, dark=common.dark()
    )
    st.plotly_chart(figure, key="waterfall-step", alt="Time of a step by part")


def pipeline(board: TrainingPlan, row: int) -> None:
    """The timetable of the pipeline; of the best split that has one, where this one has none."""
    if board.degree("pp")[row] == 1:
        piped = best_with_pipeline(board)
        if piped is None:
            st.info(
                "No split that fits has a pipeline: each device holds all layers.",
                icon=":material/info:",
            )
            return
        row = piped
        st.caption(
            f"That split has no pipeline. The best that has one: {board.label(row)}, {common.escape(board.phrase(row))}."
        )
    try:
        tasks, note = step_timeline(board, row)
    except RecipeError as error:
        st.info(common.escape(error), icon=":material/info:")
        return
    st.plotly_chart(
        charts.pipeline(tasks, dark=common.dark()),
        key="pipeline",
        alt="When each stage works on which micro-batch",
    )
    st.caption(common.escape(note))


def scale(board: TrainingPlan, row: int) -> None:  # noqa: ARG001 - every view takes the split that is looked at
    """The best split on each number of devices."""
    found = scaling(board)
    if len(found.rows) < 2:
        st.info(
            "Splits fit on one number of devices only; add nodes to see how the run scales.",
            icon=":material/info:",
        )
        return
    figure = charts.scaling_curve(
        found, [board.label(each) for each in found.rows], dark=common.dark()
    )
    st.plotly_chart(
        figure, key="scaling", alt="Tokens per second of the best split on each number of devices"
    )
    st.caption(
        "Percent are of what the fewest devices give, in proportion. Over 100 %: more memory lets a better split fit."
    )
    names = [name for name in ("output", "wall", "usd_run", "usd") if board.known(name)]
    shown = {
        "Devices": [f"{board.raw('gpus')[each]:,.0f}" for each in found.rows],
        "Split": [common.escape(board.label(each)) for each in found.rows],
    }
    shown |= {
        board.measures[name].title: [common.escape(board.text(name, each)) for each in found.rows]
        for name in names
    }
    st.table(
        shown, border="horizontal", hide_index=True, alt="The best split on each number of devices"
    )


def why_not(board: Plan, row: int) -> None:  # noqa: ARG001 - every view takes the split that is looked at
    """Refused splits, the reasons of each, and what would let it run."""
    number = int((~board.feasible).sum())
    if not number:
        st.info("No split is refused.", icon=":material/check_circle:")
        return
    st.markdown(
        " · ".join(
            f"{common.escape(kind)}: **{n:,}**" for kind, n in tables.refusal_counts(board).items()
        )
    )
    refused = tables.refused_frame(board)
    picked = st.dataframe(
        refused,
        key="refused-splits",
        on_select="rerun",
        selection_mode="single-row",
        hide_index=True,
        height="content" if len(refused) < 10 else 380,
        column_config={
            "key": None,
            "split": st.column_config.TextColumn("Split", pinned=True),
            "why": st.column_config.TextColumn("Why not", width=900),
            "kind": st.column_config.TextColumn("Kind", width="medium"),
        },
        alt=f"{len(refused)} refused splits with their reasons",
    )
    if number > len(refused):
        st.caption(
            f"The first {len(refused):,} of {number:,} are listed, those with the fewest problems first."
        )
    chosen = picked["selection"]["rows"]
    if chosen and chosen[0] < len(refused):
        remedy(board, str(refused["key"][chosen[0]]))
    else:
        st.caption("Tick a row to see what would let that split run.")


def remedy(board: Plan, key: str) -> None:
    """What would let one refused split run, as one click each."""
    row = board.find(key)
    if row is None:
        return
    with st.container(border=True):
        st.markdown(
            f"**{common.escape(board.label(row))}**: {common.escape('; '.join(board.reasons(row)))}."
        )
        found = fixes(board, row)
        if not found:
            st.caption("No small change to the request lets it run.")
        with st.container(horizontal=True):
            for n, fix in enumerate(found):
                if fix.changes:
                    label = common.escape(change_label(fix.changes))
                    st.button(
                        label,
                        key=f"fix-{n}",
                        icon=":material/build:",
                        on_click=common.apply,
                        args=(fix.changes,),
                    )
                elif fix.key and (near := board.find(fix.key)) is not None:
                    label = f"Pin {common.escape(board.label(near))}, the nearest that fits"
                    st.button(
                        label,
                        key=f"fix-{n}",
                        icon=":material/keep:",
                        on_click=common.toggle_pin,
                        args=(fix.key,),
                    )


View = Callable[[Plan, int], None]
SERVING: dict[str, tuple[View, bool]] = {
    "Memory": (memory, False),
    "Time": (step_time, True),
    "Load": (load, True),
    "Cost": (cost, True),
    "Sensitivity": (depends, True),
    "Degrees": (degrees, True),
    "Arithmetic": (serving_lines, False),
    "Why not?": (why_not, False),
}
"""Views of a serving split, and whether they need one that fits."""
TRAINING: dict[str, tuple[View, bool]] = {
    "Memory": (memory, False),
    "Time": (training_step, True),
    "Pipeline": (pipeline, True),
    "Scaling": (scale, True),
    "Degrees": (degrees, True),
    "Arithmetic": (training_lines, False),
    "Why not?": (why_not, False),
}
