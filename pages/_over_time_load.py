"""The load on the lens on time: a named shape, rates that are typed, or a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _common as common
import _numbers as numbers
import _over_time_trace as traces
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.numbers import number_text, read_numbers
from recipe_core.base.units import long_duration
from recipe_core.request.edit import range_of
from recipe_core.request.link import START_LOADS
from recipe_core.request.over_time import DAY_S, HOUR_S, MOST_RATES, OverTime
from recipe_core.scaling.traces.loads import Load, build_load, shape_names
from recipe_core.views import traces as views
from recipe_core.views.charts.over_time import hours_of_week, rates_over_time
from recipe_core.views.over_time import week_time
from recipe_core.views.plain import describe_plainly

START_SHAPE = "azure-conversation"
FROM = {"shape": "Published shape", "rates": "My rates", "trace": "A trace"}
STEPS = {60.0: "1 minute", 300.0: "5 minutes", 900.0: "15 minutes", 3600.0: "1 hour"}
AREA_PX = 110


def current_load() -> OverTime:
    """The load of the request; where it has none, a published week at the request's rate."""
    workload = session.request().workload
    load: OverTime | None = workload.over_time
    if load is not None:
        return load
    rate = workload.request_rate or START_LOADS["open"]
    return OverTime(shape=START_SHAPE, mean_rate=float(rate))


def changed_load(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The load with some of its fields changed; None takes one out."""
    values = {**current_load().to_json(), **changes}
    return {name: value for name, value in values.items() if value is not None}


def change_load(changes: Mapping[str, Any]) -> None:
    """Change fields of the load.

    Raises:
        RecipeError: where it is no load any more.
    """
    session.change_to({"workload.over_time": changed_load(changes)})


def apply_load_changes(changes: Mapping[str, Any]) -> None:
    """The same; what is wrong is refused."""
    session.apply_changes({"workload.over_time": changed_load(changes)})


def draw_load() -> None:
    source = choose_source()
    if source == "trace":
        traces.draw_trace_upload(session.request().workload.over_time)
    elif source == "rates":
        draw_typed_rates()
    else:
        draw_load_shape()
    draw_load_figures()
    draw_load_charts()


def choose_source() -> str:
    load_source = "rates" if current_load().rates else "shape"
    now = st.session_state.get("over-time-from", load_source)
    if now != "trace" and now != load_source:  # a link or a trace changed it
        now = load_source

    def commit(picked_source: str) -> None:
        st.session_state["over-time-from"] = picked_source
        if picked_source == "rates" and not current_load().rates:
            take_rates()
        elif picked_source == "shape" and not current_load().shape:
            take_shape()

    common.draw_choice(
        st.segmented_control,
        "Load over time",
        "_over-time-from",
        now,
        commit,
        options=FROM,
        required=True,
        wrap=True,
        label_visibility="collapsed",
    )
    return now


def take_shape() -> None:
    mean = numbers.scaled(float(whole_load().rates.mean()), 1.0)
    no_rates = {"rates": None, "interval_s": None, "source": None}
    apply_load_changes({"shape": START_SHAPE, "mean_rate": float(f"{mean:.4g}"), **no_rates})


def take_rates() -> None:
    hourly_rates = {"rates": views.hourly_rates(current_load()), "interval_s": HOUR_S}
    apply_load_changes({"shape": None, "mean_rate": None, **hourly_rates})


def request_workload() -> Any:
    return session.request().workload


def whole_load() -> Load:
    """Rates and lengths of the whole time.

    Raises:
        RecipeError: where the load names a shape that is not known.
    """
    return build_load(current_load(), request_workload())


# --- a published shape ---------------------------------------------------------------------------


def draw_load_shape() -> None:
    now = current_load().shape or START_SHAPE
    names = list(shape_names())
    common.draw_choice(
        st.selectbox,
        "Shape of a week",
        "_over-time-shape",
        now,
        lambda shape: apply_load_changes({"shape": shape}),
        options=names if now in names else [now, *names],
        format_func=views.shape_title,
        help=describe_plainly(OverTime, "shape"),
    )
    if now in names:
        st.caption(common.escape(views.shape_note(now)))


# --- rates that are typed ------------------------------------------------------------------------


def draw_typed_rates() -> None:
    load = current_load()
    text = ", ".join(number_text(rate).replace(",", "") for rate in load.rates)
    key = "_over-time-rates"
    common.seed(key, text)

    def commit() -> None:
        try:
            typed = str(st.session_state[key] or "").replace("\n", ",")
            values = read_numbers(typed, range_of("rates", OverTime), limit=MOST_RATES)
            change_load({"rates": values})
        except RecipeError as error:
            numbers.refuse_input(
                "over-time-rates", f"Rates: {error.message} {error.hint or ''}".strip()
            )

    with numbers.group_boxes("over-time-rates"):
        st.text_area(
            "Requests per second, by commas",
            key=key,
            on_change=commit,
            height=AREA_PX,
            help=describe_plainly(OverTime, "rates"),
        )
        step = load.interval_s
        common.draw_choice(
            st.selectbox,
            "Each is for",
            "_over-time-step",
            step,
            lambda step_s: apply_load_changes({"interval_s": step_s}),
            options={**STEPS, **({} if step in STEPS else {step: long_duration(step)})},
        )
    period_s = len(load.rates) * step
    days = f"{period_s / DAY_S:g} days" if period_s >= 2 * DAY_S else long_duration(period_s)
    st.caption(f"{len(load.rates):,} rates: {days}, which repeat. 24 of an hour are a day.")


# --- figures -------------------------------------------------------------------------------------


def draw_load_figures() -> None:
    load = current_load()
    with numbers.group_boxes("over-time"), st.grid(3, min_column_width=150):
        draw_load_figure(
            "mean_rate", "Mean requests/s", optional=bool(load.rates), empty="as typed"
        )
        draw_load_figure("days", "Days")
        draw_load_figure("growth_per_month", "Growth a month (%)", factor=100.0)
        draw_load_figure("burstiness", "Burstiness")
        draw_first_day()


def draw_load_figure(
    field: str, label: str, *, factor: float = 1.0, optional: bool = False, empty: str = ""
) -> None:
    value = getattr(current_load(), field)

    def take(entered: float | None) -> None:
        change_load({field: None if entered is None else numbers.scaled(entered, 1 / factor)})

    numbers.box(
        label,
        f"_over-time-{field}",
        None if value is None else numbers.scaled(value, factor),
        take,
        range_of(field, OverTime).scaled(factor),
        optional=optional,
        placeholder=empty,
        help=describe_plainly(OverTime, field),
    )


def draw_first_day() -> None:
    load = current_load()
    days = [24 * n for n in range(7)]
    common.draw_choice(
        st.selectbox,
        "Begins",
        "_over-time-begin",
        load.start_hour,
        lambda hour: apply_load_changes({"start_hour": hour}),
        options=days if load.start_hour in days else [load.start_hour, *days],
        format_func=lambda hour: week_time(0, hour),
        width=numbers.BOX_PX,
        help=describe_plainly(OverTime, "start_hour"),
    )


def draw_load_charts() -> None:
    try:
        load = whole_load()
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/block:")
        return
    st.caption(
        common.escape(" ".join([*source_line(), views.traffic_sentence(views.load_facts(load))]))
    )
    rates, dark = load.rates.tolist(), common.dark()
    names = ["Through time", "Hours of the week"]
    tabs = st.tabs(names if load.span_s > DAY_S else names[:1], key="over-time-load")
    with tabs[0]:
        common.draw_chart(
            rates_over_time(rates, load.interval_s, load.start_hour, dark=dark),
            "over-time-rates-chart",
            f"Requests per second through {long_duration(load.span_s)}",
        )
    for tab in tabs[1:]:
        with tab:
            common.draw_chart(
                hours_of_week(rates, load.interval_s, load.start_hour, dark=dark),
                "over-time-week-chart",
                "Mean requests per second by day of the week and hour",
            )


def source_line() -> list[str]:
    """Return where the rates are from, and the lengths of requests."""
    load, workload = current_load(), request_workload()
    parts = [f"Rates: {load.source}."] if load.source else []
    if load.lengths:
        return [*parts, f"Lengths: {len(load.lengths)} kinds of requests, as the trace has them."]
    lengths = f"{workload.input_tokens:,} → {workload.output_tokens:,} tokens"
    return [*parts, f"Lengths: {lengths}, from the workload."]


def load_stating_changes() -> dict[str, Any]:
    return {"workload.over_time": current_load().to_json()}
