import common
import streamlit as st

from recipe_core import advice, charts, labels, query, tables
from recipe_core.errors import RecipeError
from recipe_core.units import duration, gib, rate, usd

SHOWN_ROWS = 300

common.head("Which split?")
try:
    found = common.table()
except RecipeError:
    found = None  # the verdict above says what is wrong, and the fix


def pin_clicked() -> None:
    """Pin what was clicked in the chart; the chart is drawn anew, which clears its selection."""
    for point in st.session_state["frontier"]["selection"]["points"]:
        if custom := point.get("customdata"):
            common.toggle_pin(custom[0])


def pin_rows() -> None:
    """Pins follow the table's ticks; those that the table does not show are kept."""
    ticked = [keys[row] for row in st.session_state["splits"]["selection"]["rows"]]
    hidden = [pin for pin in common.pins() if pin not in keys]
    st.session_state["pins"] = [*hidden, *ticked][-common.MAX_PINS :]
    st.session_state["edited"] = True


def cards(row: int) -> None:
    """The main figures of one split."""
    c = found.columns
    price = float(c["usd_per_million_output_tokens"][row])
    with st.grid(5):
        st.metric("Best split", labels.degrees(found.candidate(row)), border=True, help=labels.split_label(found, row), height="stretch")
        st.metric("Output", rate(float(c["output_tokens_per_s"][row])), border=True, height="stretch")
        st.metric("Per output token", duration(float(c["tpot_s"][row])), border=True, height="stretch")
        st.metric("First token", duration(float(c["ttft_s"][row])), border=True, height="stretch")
        st.metric("Per million tokens", usd(price) if price == price else "no price", border=True, height="stretch")


def tray() -> None:
    """Pinned splits side by side, each with what it is now and a way to take it out."""
    with st.grid(common.MAX_PINS):
        for key in common.pins():
            with st.container(border=True, height="stretch"):
                pinned(key)


def pinned(key: str) -> None:
    """One pinned split."""
    row = query.row_of(found, key)
    if row is None:
        st.markdown(f"**{labels.degrees(query.split_of(key))}** is not a split of this plan any more.")
    elif not found.columns["feasible"][row]:
        st.markdown(f"**{labels.split_label(found, row)}** is refused: {common.escape('; '.join(found.reasons(row)))}")
    else:
        st.markdown(f"**{labels.split_label(found, row)}**\\\n{common.escape(common.figures(found, row))}")
    with st.container(horizontal=True):
        fits = row is not None and found.columns["feasible"][row]
        if fits and st.button("Take it", key=f"take-{key}", icon=":material/check:", on_click=common.take, args=(key,)):
            st.switch_page("recipe.py", query_params=common.link())
        st.button("Remove", key=f"unpin-{key}", icon=":material/keep_off:", type="tertiary", on_click=common.toggle_pin, args=(key,))


def scatter() -> None:
    """What splits trade, by click."""
    axis = st.segmented_control(
        "Horizontal axis",
        ["tpot", "interactivity"],
        default="tpot",
        required=True,
        format_func={"tpot": "Time per output token", "interactivity": "Tokens/s per user"}.get,
        key="axis",
        label_visibility="collapsed",
        persist_state="session",
    )
    st.plotly_chart(
        charts.pareto(found, pins=common.pins(), x=axis or "tpot", dark=common.dark()),
        key="frontier",
        on_select=pin_clicked,
        selection_mode="points",
        alt=f"Time per output token against tokens per second and GPU for {len(found)} splits; {len(found.ranked)} fit.",
    )
    st.caption("Click a point to pin it, or tick rows in the table below. Up to four pins are compared.")


def ranked_table() -> None:
    """Every split that fits, best first; ticks are pins."""
    st.session_state["splits"] = {
        "selection": {"rows": [n for n, key in enumerate(keys) if key in common.pins()], "columns": [], "cells": []}
    }
    number = st.column_config.NumberColumn
    st.dataframe(
        frame,
        key="splits",
        on_select=pin_rows,
        selection_mode="multi-row",
        hide_index=True,
        height="content" if len(frame) < 11 else 390,
        column_config={
            "key": None,
            "split": st.column_config.TextColumn("Split", pinned=True),
            "gpus": number(f"{unit.capitalize() if unit.islower() else unit}s"),
            "tokens": number("Output tok/s", format="localized"),
            "per_gpu": number(f"tok/s per {unit}", format="localized"),
            "tpot": number("Per token (ms)", format="localized"),
            "ttft": number("First token (ms)", format="localized"),
            "memory": number("Memory (GiB)", format="localized", help=f"Per {unit}, for this workload"),
            "used": st.column_config.ProgressColumn(
                "Of usable",
                format="%.0f%%",
                min_value=0,
                max_value=100,
                help="Over 100 %: not all requests are held at once; the others wait in the engine's queue",
            ),
            "concurrency": number("Requests at once", format="localized", help="That the cache would hold"),
            "usd": number("$ per M tokens", format="localized"),
            "front": st.column_config.TextColumn("Front", width="small", help="◆: no other split is better on both axes of the chart"),
        },
        alt=f"The {len(frame)} best splits that fit, best first",
    )


def breakdown(rows: list[int]) -> None:
    """Where the time of a step and of a first token goes."""
    estimates = [(labels.split_label(found, row), found.estimate(row)) for row in rows]
    left, right = st.columns(2, gap="large")
    for place, part, title in ((left, "decode", "One decode step by cause"), (right, "prefill", "Time to first token by cause")):
        with place:
            st.subheader(title, anchor=False)
            parts = [(name, estimate["breakdown_s"][part]) for name, estimate in estimates]
            st.plotly_chart(charts.step_breakdown(parts, dark=common.dark()), key=f"breakdown-{part}", alt=title)


if found is not None:
    best, unit = common.best(found), labels.unit(found)
    shown = [int(row) for row in found.ranked[:SHOWN_ROWS]]
    frame = tables.splits_frame(found, shown)
    keys = frame["key"].tolist()
    if best is not None:
        cards(best)
    if best is not None or advice.refused_by_limits(found):
        st.subheader(f"Speed for one user against output per {unit}", anchor=False)
        scatter()
        if common.pins():
            tray()
    if best is not None:
        hidden = len(found.ranked) - len(shown)
        st.subheader("Splits that fit, best first", anchor=False)
        ranked_table()
        if hidden:
            st.caption(f"The first {len(shown):,} of {len(found.ranked):,} are listed.")
    st.subheader(f"Memory per {unit}", anchor=False)
    rows = tables.memory_rows(found, common.pins())
    st.plotly_chart(
        charts.memory_bars(found, rows, dark=common.dark()),
        key="memory",
        alt=f"Memory of {len(rows)} splits by part against {gib(float(found.columns['capacity_bytes'].max()))} of capacity",
    )
    if best is not None:
        fitting = [row for key in common.pins() if (row := query.row_of(found, key)) is not None and found.columns["feasible"][row]]
        breakdown(fitting or [best])
    counts = tables.refusal_counts(found)
    if counts:
        refused, number = tables.refused_frame(found), int((~found.columns["feasible"]).sum())
        with st.expander(
            f"Why not? {number:,} refused {'split' if number == 1 else 'splits'}", icon=":material/help:", expanded=best is None
        ):
            st.markdown(" · ".join(f"{kind}: **{n:,}**" for kind, n in counts.items()))
            st.dataframe(
                refused,
                hide_index=True,
                height="content" if len(refused) < 10 else 380,
                column_config={
                    "split": st.column_config.TextColumn("Split", pinned=True),
                    "why": st.column_config.TextColumn("Why not", width=900),
                    "kind": st.column_config.TextColumn("Kind", width="medium"),
                },
                alt=f"{len(refused)} refused splits with their reasons",
            )
            if number > len(refused):
                st.caption(f"The first {len(refused):,} are listed.")
