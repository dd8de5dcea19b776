"""Policies of scaling: cold starts by phase, costs, and costs against the share within limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from recipe_core.base.units import long_duration, percent_text
from recipe_core.views import over_time as view
from recipe_core.views.charts.style import (
    SYMBOLS,
    Drawing,
    Palette,
    Style,
    axis,
    error_bars,
    part_marker,
)

Json = Mapping[str, Any]
# Share of requests beyond the limits below which policies are drawn alike.
LEAST_MISSED = 1e-4
# A plot on a narrow page, and letters of names in it, for names that do not touch.
DRAWN_PX, LETTER_PX, LINE_PX = (280, 300), 7.5, 18
MISSED = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)


def start_phases(start: Json, *, dark: bool = False) -> go.Figure:
    """The phases of a cold start, one after the other, and the band of the whole."""
    draw = Drawing(dark=dark)
    ink, seconds = draw.colours.ink, [start["seconds"]]
    for n, phase in enumerate(start["phases"]):
        name = phase["name"].replace("_", " ").capitalize()
        about = [[long_duration(phase["seconds"]), phase["basis"]]]
        hover = f"<b>{name}</b><br>%{{customdata[0]}}, %{{customdata[1]}}"
        draw.bars(name, ["Start"], [phase["seconds"]], n, hover, about)
    mark = {"symbol": "line-ns-open", "color": ink, "size": 18}
    ends = error_bars(seconds, [start["low_s"]], [start["high_s"]], ink)
    hover = "eight of ten starts lie within the line"
    draw.points("Whole, with its band", seconds, ["Start"], mark, hover, error_x=ends)
    legend = {"orientation": "h", "yanchor": "top", "y": -0.3, "x": 0, "traceorder": "normal"}
    frame = {"margin": {"l": 10, "r": 16, "t": 10, "b": 10}, "legend": legend, "showlegend": True}
    # no title: on a phone the legend has many rows, and stands where it would be
    across = {"ticksuffix": " s", "rangemode": "tozero", "zeroline": False}
    look = {"barmode": "stack", "hovermode": "closest"}
    return draw.set_axes(across, {"visible": False}, 230, frame, **look)


def policy_costs(answer: Json, selected: str = "", *, dark: bool = False) -> go.Figure:
    """Cost of a month by policy, cheapest first; hatched ones miss the target share.

    Lines are the two bounds. GPU-hours of the whole time where no price is known.
    """
    draw, amount = Drawing(dark=dark), amount_field(answer)
    colours = draw.colours
    rows = sorted(answer["policies"], key=lambda policy: float(policy[amount]))
    names = {policy["name"]: _policy_label(policy, selected) for policy in rows}
    for n, (meets, label) in enumerate(((True, "Keeps the limits"), (False, "Misses them"))):
        some = [policy for policy in rows if policy["meets"] == meets]
        if some:
            draw.bars(
                label,
                [names[policy["name"]] for policy in some],
                [policy[amount] for policy in some],
                {**part_marker(colours, n), "color": colours.series[0] if meets else colours.muted},
                "<b>%{y}</b><br>%{customdata[0]}",
                [[view.policy_facts(policy)] for policy in some],
                **draw.labels([_cost_text(policy) for policy in some]),
            )
    bounds = {name: float(bound[amount]) for name, bound in answer["bounds"].items()}
    for name, value in bounds.items():
        line = _bound_line(name, colours)
        draw.figure.add_vline(x=value, line=line, layer="below")
        # lines of the figure are none of its traces: the legend needs one of its own
        draw.legend_entry(f"Bound: {view.policy_title(name).lower()}", mode="lines", line=line)
    widest = max([*(float(policy[amount]) for policy in rows), *bounds.values()], default=1.0)
    up: Style = {"type": "category", "title": None, "categoryorder": "array"}
    up["categoryarray"] = [*reversed(names.values())]
    across = axis(amount_title(answer), range=[0, widest * 1.5])
    look: Style = {"bargap": 0.35, "showlegend": True, "barmode": "overlay"}
    return draw.set_axes(across, up, 110 + 34 * len(rows), **look)


def amount_field(answer: Json) -> str:
    """The field that policies are compared by: money, or GPU-hours where no price is known."""
    priced = all(policy["usd_per_month"] is not None for policy in answer["policies"])
    return "usd_per_month" if priced else "gpu_hours"


def amount_title(answer: Json) -> str:
    return "$ a month" if amount_field(answer) == "usd_per_month" else "GPU-hours"


def _policy_label(policy: Json, selected: str) -> str:
    name = view.policy_title(policy["name"])
    return f"<b>{name}</b>" if policy["name"] == selected else name


def _cost_text(policy: Json) -> str:
    cost = view.policy_cost(policy).removesuffix(" a month")
    return f"{cost} · {percent_text(policy['attainment']['value'])}"


def _bound_line(name: str, colours: Palette) -> dict[str, Any]:
    if name == "always_peak":
        return {"color": colours.series[1], "dash": "dash", "width": 2}
    return {"color": colours.ink, "dash": "dot", "width": 2}


def cost_against_share(answer: Json, selected: str = "", *, dark: bool = False) -> go.Figure:
    """Cost against the share of requests within the limits, with both bounds.

    The share is drawn by the logarithm of the share missed: 99.9 % is as far from 99 % as that is
    from 90 %.
    """
    draw, amount = Drawing(dark=dark), amount_field(answer)
    colours, policies = draw.colours, answer["policies"]
    rows = [*policies, *answer["bounds"].values()]
    amounts = [float(row[amount]) for row in rows]
    costs = (0.9 * min(amounts), 1.1 * max(amounts))
    target = missed(answer["attainment_wanted"])
    shares = [target, *(_missed(row) for row in rows)]
    ends = (min(shares) / 2.0, min(max(shares) * 2.5, 1.0))
    places = _label_places(rows, selected, amount, ends, costs)
    groups = (
        ("Keeps the limits", [row for row in policies if row["meets"]], 0, colours.series[0]),
        ("Misses them", [row for row in policies if not row["meets"]], 4, colours.muted),
        ("Bounds", list(answer["bounds"].values()), 2, colours.series[1]),
    )
    for label, some, symbol, colour in groups:
        if some:
            look = {"symbol": SYMBOLS[symbol], "color": colour}
            _add_policies(draw, label, some, look, selected, amount, places)
    draw.limit(x=target)
    # a note of its own: that of a limit takes no logarithm of its place
    place: Style = {"xanchor": "left", "y": 1, "yref": "paper", "yanchor": "top"}
    text = f" wanted {percent_text(answer['attainment_wanted'])}"
    draw.note(text, colours.alarm, x=math.log10(target), **place)
    ticks = [tick for tick in MISSED if ends[0] <= tick <= ends[1]]
    across = axis("Requests within the limits", type="log", tickvals=ticks)
    across["range"] = [math.log10(ends[1]), math.log10(ends[0])]
    across["ticktext"] = [f"{100 - 100 * tick:g} %" for tick in ticks]
    up = axis(amount_title(answer), range=costs)
    return draw.set_axes(across, up, 420, hovermode="closest", showlegend=True)


def _add_policies(
    draw: Drawing,
    label: str,
    policies: Sequence[Json],
    look: dict[str, Any],
    selected: str,
    amount: str,
    places: Mapping[str, str],
) -> None:
    x, low, high = (
        [missed(policy["attainment"][end]) for policy in policies]
        for end in ("value", "high", "low")
    )
    names = [_policy_label(policy, selected) for policy in policies]
    keys = [policy["name"] for policy in policies]
    texts = [name if key in places else "" for name, key in zip(names, keys, strict=True)]
    beside = draw.labels(texts) | {"textposition": [places.get(key, "top center") for key in keys]}
    draw.points(
        label,
        x,
        [policy[amount] for policy in policies],
        {**look, "size": [16 if key == selected else 11 for key in keys]},
        "%{customdata[0]}<br>%{customdata[1]}",
        [[name, view.policy_facts(policy)] for name, policy in zip(names, policies, strict=True)],
        mode="markers+text",
        error_x=error_bars(x, low, high, look["color"], thickness=1),
        **beside,
    )


def missed(share: float) -> float:
    """Share of requests beyond the limits, at least the least that is told apart."""
    return max(1.0 - share, LEAST_MISSED)


def _missed(policy: Json) -> float:
    return missed(float(policy["attainment"]["value"]))


def _label_places(
    policies: Sequence[Json],
    selected: str,
    amount: str,
    ends: tuple[float, float],
    costs: tuple[float, float],
) -> dict[str, str]:
    """Places of names beside their marks, by policy: the selected one's first, then the cheapest.

    A name that finds no room above or below its mark is left to the mark's hover text.
    """
    across, up = math.log(ends[1] / ends[0]), costs[1] - costs[0]
    boxes: list[tuple[float, float, float]] = []
    places = {}
    for policy in sorted(policies, key=lambda row: (row["name"] != selected, float(row[amount]))):
        x = math.log(ends[1] / _missed(policy)) / across * DRAWN_PX[0]
        y = (float(policy[amount]) - costs[0]) / up * DRAWN_PX[1]
        half = LETTER_PX * len(view.policy_title(policy["name"])) / 2
        for place, above in (("top center", LINE_PX), ("bottom center", -LINE_PX)):
            if all(
                abs(x - box_x) > half + box_half or abs(y + above - box_y) > LINE_PX
                for box_x, box_y, box_half in boxes
            ):
                boxes.append((x, y + above, half))
                places[policy["name"]] = place
                break
    return places
