"""Policies of scaling side by side: their cost, and their cost against the share they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from recipe_core.base.units import percent_text
from recipe_core.views import over_time as view
from recipe_core.views.charts.style import FRAME, SYMBOLS, Palette, filled, palette

Json = Mapping[str, Any]
LEAST_MISSED = 1e-4
"""Share of requests beyond the limits below which policies are drawn alike."""
DRAWN_PX, LETTER_PX, LINE_PX = (280, 300), 7.5, 18
"""A plot on a narrow page, and letters of names in it, for names that do not touch."""
MISSED = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)


def policy_costs(answer: Json, chosen: str = "", *, dark: bool = False) -> go.Figure:
    """Cost of a month by policy, cheapest first; hatched ones miss the wanted share.

    Lines are the two bounds. GPU-hours of the whole time where no price is known.
    """
    colours, amount = palette(dark), amount_of(answer)
    rows = sorted(answer["policies"], key=lambda policy: float(policy[amount]))
    figure = go.Figure()
    for n, (meets, label) in enumerate(((True, "Keeps the limits"), (False, "Misses them"))):
        some = [policy for policy in rows if policy["meets"] == meets]
        if not some:
            continue
        look = {**filled(colours, n), "color": colours.series[0] if meets else colours.muted}
        figure.add_bar(
            y=[_name(policy, chosen) for policy in some],
            x=[policy[amount] for policy in some],
            orientation="h",
            name=label,
            marker=look,
            text=[_said(policy) for policy in some],
            textposition="outside",
            textfont={"color": colours.ink},
            cliponaxis=False,
            customdata=[[view.policy_facts(policy)] for policy in some],
            hovertemplate="<b>%{y}</b><br>%{customdata[0]}<extra></extra>",
        )
    widest = max((float(policy[amount]) for policy in rows), default=1.0)
    bounds = [(name, float(one[amount])) for name, one in answer["bounds"].items()]
    for name, value in bounds:
        figure.add_vline(x=value, line=_bound_line(name, colours), layer="below")
        widest = max(widest, value)
    for name, _ in bounds:  # lines of the legend: those of the figure are none of its traces
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="lines",
            name=f"Bound: {view.policy_title(name).lower()}",
            line=_bound_line(name, colours),
        )
    figure.update_layout(
        height=110 + 34 * len(rows), bargap=0.35, showlegend=True, barmode="overlay", **FRAME
    )
    figure.update_xaxes(title=axis_of(answer), range=[0, widest * 1.5], zeroline=False)
    figure.update_yaxes(
        type="category",
        title=None,
        categoryorder="array",
        categoryarray=[_name(policy, chosen) for policy in reversed(rows)],
    )
    return figure


def amount_of(answer: Json) -> str:
    """The field that policies are compared by: money, or GPU-hours where no price is known."""
    priced = all(policy["usd_per_month"] is not None for policy in answer["policies"])
    return "usd_per_month" if priced else "gpu_hours"


def axis_of(answer: Json) -> str:
    """The title of an axis of what policies are compared by."""
    return "$ a month" if amount_of(answer) == "usd_per_month" else "GPU-hours"


def _name(policy: Json, chosen: str) -> str:
    name = view.policy_title(policy["name"])
    return f"<b>{name}</b>" if policy["name"] == chosen else name


def _said(policy: Json) -> str:
    cost = view.policy_cost(policy).removesuffix(" a month")
    return f"{cost} · {percent_text(policy['attainment']['value'])}"


def _bound_line(name: str, colours: Palette) -> dict[str, Any]:
    peak = name == "always_peak"
    return {
        "color": colours.series[1] if peak else colours.ink,
        "dash": "dash" if peak else "dot",
        "width": 2,
    }


def cost_against_share(answer: Json, chosen: str = "", *, dark: bool = False) -> go.Figure:
    """Cost against the share of requests within the limits, with both bounds.

    The share is drawn by the logarithm of what is missed: 99.9 % is as far from 99 % as that is
    from 90 %.
    """
    colours, amount = palette(dark), amount_of(answer)
    every = [*answer["policies"], *answer["bounds"].values()]
    amounts = [float(one[amount]) for one in every]
    low, high = 0.9 * min(amounts), 1.1 * max(amounts)
    wanted = missed(answer["attainment_wanted"])
    ends = _share_ends([wanted, *(missed(_value(one)) for one in every)])
    places = _label_places(every, chosen, amount, ends, (low, high))
    figure = go.Figure()
    groups = [
        ("Keeps the limits", [one for one in answer["policies"] if one["meets"]], 0),
        ("Misses them", [one for one in answer["policies"] if not one["meets"]], 4),
        ("Bounds", list(answer["bounds"].values()), 2),
    ]
    for label, some, n in groups:
        if not some:
            continue
        colour = {0: colours.series[0], 4: colours.muted, 2: colours.series[1]}[n]
        figure.add_scatter(
            x=[missed(policy["attainment"]["value"]) for policy in some],
            y=[policy[amount] for policy in some],
            mode="markers+text",
            name=label,
            text=[_name(one, chosen) if one["name"] in places else "" for one in some],
            textposition=[places.get(one["name"], "top center") for one in some],
            textfont={"color": colours.ink},
            cliponaxis=False,
            marker={
                "symbol": SYMBOLS[n],
                "color": colour,
                "size": [16 if policy["name"] == chosen else 11 for policy in some],
            },
            error_x=_band(some, colour),
            customdata=[[_name(one, chosen), view.policy_facts(one)] for one in some],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
    figure.add_vline(
        x=wanted,
        line={"dash": "dash", "color": colours.alarm, "width": 2},
    )
    figure.add_annotation(  # one of ``add_vline`` takes no logarithm of its place
        x=math.log10(wanted),
        xanchor="left",
        y=1,
        yref="paper",
        yanchor="top",
        showarrow=False,
        text=f" wanted {percent_text(answer['attainment_wanted'])}",
        font={"color": colours.alarm},
    )
    _share_axis(figure, ends)
    figure.update_layout(height=420, hovermode="closest", showlegend=True, **FRAME)
    figure.update_yaxes(title=axis_of(answer), range=[low, high], zeroline=False)
    return figure


def missed(share: float) -> float:
    """Share of requests beyond the limits, at least the least that is told apart."""
    return max(1.0 - share, LEAST_MISSED)


def _label_places(
    every: list[Json],
    chosen: str,
    amount: str,
    ends: tuple[float, float],
    costs: tuple[float, float],
) -> dict[str, str]:
    """Where names stand beside their marks, by policy: the chosen one's first, then the cheapest.

    A name that finds no room above or below its mark is left to the mark's hover text.
    """
    ordered = sorted(every, key=lambda one: (one["name"] != chosen, float(one[amount])))
    across, up = (math.log(ends[1] / ends[0]), costs[1] - costs[0])
    taken: list[tuple[float, float, float]] = []
    places = {}
    for one in ordered:
        x = math.log(ends[1] / missed(_value(one))) / across * DRAWN_PX[0]
        y = (float(one[amount]) - costs[0]) / up * DRAWN_PX[1]
        half = LETTER_PX * len(view.policy_title(one["name"])) / 2
        for place, above in (("top center", LINE_PX), ("bottom center", -LINE_PX)):
            if all(
                abs(x - other_x) > half + other_half or abs(y + above - other_y) > LINE_PX
                for other_x, other_y, other_half in taken
            ):
                taken.append((x, y + above, half))
                places[one["name"]] = place
                break
    return places


def _band(some: list[Json], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [missed(one["attainment"]["low"]) - missed(_value(one)) for one in some],
        "arrayminus": [missed(_value(one)) - missed(one["attainment"]["high"]) for one in some],
        "color": colour,
        "thickness": 1,
    }


def _value(policy: Json) -> float:
    return float(policy["attainment"]["value"])


def _share_ends(shown: list[float]) -> tuple[float, float]:
    """Least and most of what is missed on the axis."""
    return min(shown) / 2.0, min(max(shown) * 2.5, 1.0)


def _share_axis(figure: go.Figure, ends: tuple[float, float]) -> None:
    """An axis of shares within the limits by the logarithm of what is missed, more to the right."""
    low, high = ends
    ticks = [tick for tick in MISSED if low <= tick <= high]
    figure.update_xaxes(
        title="Requests within the limits",
        type="log",
        range=[math.log10(high), math.log10(low)],
        tickvals=ticks,
        ticktext=[f"{100 - 100 * tick:g} %" for tick in ticks],
        zeroline=False,
    )
