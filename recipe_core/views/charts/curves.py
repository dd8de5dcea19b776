"""Curves of a few splits over load, utilisation and device count; the sensitivity of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Int
from recipe_core.base.units import duration, rate, significant, usd
from recipe_core.plans.measures import Measure
from recipe_core.views.charts.style import FRAME, SYMBOLS, Palette, filled, palette, stroke
from recipe_core.views.explanations.curves import (
    Crossing,
    LoadCurve,
    Scaling,
    usd_per_million_by_use,
)
from recipe_core.views.explanations.tornado import Swing

USE = np.linspace(0.05, 1.0, 39)


NEAR = 0.02
"""Points of a curve that are closer than this share of both axes share a label."""
APART = (0.09, 0.07)
"""Labels keep this distance, as shares of both axes."""


def load_text(load: float) -> str:
    """A load: whole where it counts requests, else with three digits."""
    return f"{load:,.0f}" if load == round(load) else significant(load)


def load_curves(
    curves: Mapping[str, LoadCurve],
    load: float,
    load_unit: str,
    limit_ms: float | None = None,
    crossings: Mapping[str, Crossing] | None = None,
    *,
    unit: str = "GPU",
    dark: bool = False,
) -> go.Figure:
    """Time per token against output per device as the load grows, one curve per split.

    ``load`` is the request's and gets a large marker; ``load_unit`` follows a load's number. The
    shaded band is within ``limit_ms``, which each curve crosses at its ``crossings``. ``unit``:
    what one device is called.
    """
    colours = palette(dark)
    figure = go.Figure()
    if limit_ms is not None:
        _limit(figure, limit_ms, colours)
    drawn = {
        name: np.flatnonzero(curve.runs & np.isfinite(curve.tpot_s))
        for name, curve in curves.items()
    }
    widest = max(
        (float(curves[name].tpot_s[rows].max()) for name, rows in drawn.items() if len(rows)),
        default=1.0,
    )
    highest = max(
        (float(curves[name].per_gpu[rows].max()) for name, rows in drawn.items() if len(rows)),
        default=1.0,
    )
    scale = (max(widest * 1e3, limit_ms or 0.0), highest)
    taken: list[tuple[float, float]] = []
    for n, (name, curve) in enumerate(curves.items()):
        runs = drawn[name]
        nearest = np.argmin(np.abs(np.log(curve.load[runs] / load))) if len(runs) else 0
        current = int(runs[nearest]) if len(runs) else -1
        figure.add_scatter(
            x=curve.tpot_s[runs] * 1e3,
            y=curve.per_gpu[runs],
            mode="lines+markers+text",
            name=name,
            line=stroke(colours, n),
            marker={
                "symbol": SYMBOLS[n % len(SYMBOLS)],
                "size": [15 if k == current else 8 for k in runs],
                "color": colours.series[n % 5],
            },
            text=_load_labels(curve, runs, current, scale, taken),
            textposition="top center",
            textfont={"color": colours.muted, "size": 11},
            customdata=[
                [
                    f"{load_text(float(curve.load[k]))} {load_unit}",
                    rate(float(curve.output_tokens_per_s[k])),
                    duration(float(curve.tpot_s[k])),
                    duration(float(curve.ttft_s[k])),
                ]
                for k in runs
            ],
            hovertemplate="<b>"
            + name
            + "</b><br>%{customdata[0]}<br>Output %{customdata[1]}<br>Per token %{customdata[2]}"
            "<br>First token %{customdata[3]}<extra></extra>",
            cliponaxis=False,
        )
        if len(runs):
            _end_label(figure, name, curve, int(runs[-1]), scale, colours.series[n % 5])
    _mark_crossings(figure, crossings or {}, [*curves], load_unit, scale, colours)
    figure.update_layout(height=420, hovermode="closest", showlegend=len(curves) > 1, **FRAME)
    figure.update_xaxes(
        title="Time per output token (ms)", range=[0, scale[0] * 1.12], zeroline=False
    )
    figure.update_yaxes(
        title=f"Output per {unit} (tok/s)", range=[0, scale[1] * 1.15], zeroline=False
    )
    return figure


def _limit(figure: go.Figure, limit_ms: float, colours: Palette) -> None:
    """The shaded band within a limit, and its line."""
    figure.add_vrect(
        x0=0,
        x1=limit_ms,
        fillcolor=colours.series[2],
        opacity=0.08,
        line_width=0,
        layer="below",
    )
    figure.add_vline(
        x=limit_ms,
        line={"dash": "dash", "color": colours.alarm, "width": 2},
        annotation={
            "text": f" limit {limit_ms:g} ms",
            "font": {"color": colours.alarm},
        },
    )


def _load_labels(
    curve: LoadCurve,
    runs: Int,
    current: int,
    scale: tuple[float, float],
    taken: list[tuple[float, float]],
) -> list[str]:
    """A text for each point, empty where it would stand on another.

    Loads that all lie on one spot, as those beyond what a split holds do, share one: "64–1,024".
    ``taken``: where labels are already, which grows.
    """
    places = [
        (float(curve.tpot_s[k]) * 1e3 / scale[0], float(curve.per_gpu[k]) / scale[1]) for k in runs
    ]
    groups: list[list[int]] = []
    for j, (x, y) in enumerate(places):
        if groups:
            first_x, first_y = places[groups[-1][0]]
            if abs(x - first_x) < NEAR and abs(y - first_y) < NEAR:
                groups[-1].append(j)
                continue
        groups.append([j])
    texts = [""] * len(runs)
    for group in sorted(groups, key=lambda some: current not in [int(runs[j]) for j in some]):
        x, y = places[group[0]]
        if any(abs(x - a) < APART[0] and abs(y - b) < APART[1] for a, b in taken):
            continue
        taken.append((x, y))
        first, last = (load_text(float(curve.load[runs[j]])) for j in (group[0], group[-1]))
        texts[group[0]] = first if len(group) == 1 else f"{first}–{last}"
    return texts


def _end_label(
    figure: go.Figure,
    name: str,
    curve: LoadCurve,
    k: int,
    scale: tuple[float, float],
    colour: str,
) -> None:
    """The name of a curve below its last point, inside the chart."""
    x = float(curve.tpot_s[k]) * 1e3
    figure.add_annotation(
        x=x,
        y=float(curve.per_gpu[k]),
        text=f"<b>{name}</b>",
        showarrow=False,
        font={"color": colour, "size": 12},
        xanchor="right" if x > 0.5 * scale[0] else "left",
        yanchor="top",
        yshift=-8,
    )


def _mark_crossings(
    figure: go.Figure,
    crossings: Mapping[str, Crossing],
    names: Sequence[str],
    load_unit: str,
    scale: tuple[float, float],
    colours: Palette,
) -> None:
    """Where each curve meets the limit; the first one's load and output are written there."""
    some = {name: crossings[name] for name in names if name in crossings}
    some = {name: at for name, at in some.items() if not at.within}
    if not some:
        return
    figure.add_scatter(
        x=[at.tpot_s * 1e3 for at in some.values()],
        y=[at.per_gpu for at in some.values()],
        mode="markers",
        marker={"symbol": "x-thin", "size": 14, "line": {"color": colours.alarm, "width": 3}},
        customdata=[[name, crossing_text(at, load_unit)] for name, at in some.items()],
        hovertemplate="<b>%{customdata[0]}</b><br>At the limit: %{customdata[1]}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
    )
    first = next(iter(some.values()))
    far = first.tpot_s * 1e3 > 0.5 * scale[0]
    figure.add_annotation(
        x=first.tpot_s * 1e3,
        y=first.per_gpu,
        text=crossing_text(first, load_unit),
        font={"color": colours.alarm, "size": 12},
        bgcolor=colours.paper,
        arrowcolor=colours.alarm,
        ax=-24 if far else 24,
        ay=40,
        xanchor="right" if far else "left",
    )


def crossing_text(at: Crossing, load_unit: str) -> str:
    """The load and the output at a crossing: ``96 in flight, 2,810 tok/s``."""
    return f"{load_text(at.load)} {load_unit}, {rate(at.output_tokens_per_s)}"


def use_curves(rates: Mapping[str, tuple[float, float]], *, dark: bool = False) -> go.Figure:
    """Cost per million output tokens over utilisation: the share of paid hours in use.

    ``rates``: dollars per hour and tokens per second at full load, by the split's name.
    """
    colours = palette(dark)
    figure = go.Figure()
    highest = 0.0
    for n, (name, (usd_per_hour, tokens_per_s)) in enumerate(rates.items()):
        price = usd_per_million_by_use(usd_per_hour, tokens_per_s, USE)
        highest = max(highest, float(price[-1]))
        texts = [[f"{use:.0%}", usd(float(value))] for use, value in zip(USE, price, strict=True)]
        hover = "%{customdata[0]} utilisation: %{customdata[1]} per million tokens<extra></extra>"
        figure.add_scatter(
            x=USE * 100,
            y=price,
            mode="lines",
            name=name,
            line=stroke(colours, n),
            customdata=texts,
            hovertemplate=f"<b>{name}</b><br>{hover}",
        )
    figure.update_layout(height=380, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title="Utilisation (% of paid hours)", range=[0, 102], zeroline=False)
    figure.update_yaxes(
        title="$ per million output tokens", range=[0, highest * 6 or 1], zeroline=False
    )
    return figure


def scaling_curve(best: Scaling, labels: Sequence[str], *, dark: bool = False) -> go.Figure:
    """Tokens per second of the best split at each device count, against linear scaling."""
    colours = palette(dark)
    figure = go.Figure()
    figure.add_scatter(
        x=best.gpus,
        y=best.ideal_tokens_per_s,
        mode="lines",
        name="Linear",
        line={"dash": "dot", "color": colours.muted},
        hoverinfo="skip",
    )
    share = best.tokens_per_s / np.maximum(best.ideal_tokens_per_s, 1e-12)
    figure.add_scatter(
        x=best.gpus,
        y=best.tokens_per_s,
        mode="lines+markers+text",
        name="Best split",
        line=stroke(colours, 0),
        marker={"size": 10, "color": colours.series[0]},
        text=[f"{ratio:.0%}" for ratio in share],
        textposition="top left",
        textfont={"color": colours.ink},
        customdata=[
            [label, rate(float(tokens))]
            for label, tokens in zip(labels, best.tokens_per_s, strict=True)
        ],
        hovertemplate="%{x} devices: %{customdata[1]}<br>%{customdata[0]}<extra></extra>",
        cliponaxis=False,
    )
    figure.update_layout(height=400, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(
        title="Devices",
        type="log",
        tickvals=list(best.gpus),
        ticktext=[f"{n:,.0f}" for n in best.gpus],
        zeroline=False,
    )
    ticks = {
        "tickvals": list(best.tokens_per_s),
        "ticktext": [f"{significant(float(tokens))}" for tokens in best.tokens_per_s],
    }
    figure.update_yaxes(title="Tokens/s", type="log", zeroline=False, **ticks)
    return figure


def swings(
    base: float, moves: Sequence[Swing], measure: Measure, *, dark: bool = False
) -> go.Figure:
    """A tornado: how far a figure moves when each assumption is changed alone, widest first."""
    colours = palette(dark)
    figure = go.Figure()
    names = [f"{swing.name}: {_between(swing.low, swing.high)}" for swing in moves]
    ends = (
        ("Assumption at its lower value", [(swing.less, swing.low) for swing in moves]),
        ("Assumption at its higher value", [(swing.more, swing.high) for swing in moves]),
    )
    for n, (title, values) in enumerate(ends):
        shown = [value if np.isfinite(value) else base for value, _ in values]
        figure.add_bar(
            y=names,
            x=[(value - base) * measure.factor for value in shown],
            base=[base * measure.factor] * len(shown),
            orientation="h",
            name=title,
            marker=filled(colours, n),
            customdata=[
                [
                    f"{swing.name} {at}",
                    measure.show(value) if np.isfinite(value) else "cannot run",
                ]
                for swing, (value, at) in zip(moves, values, strict=True)
            ],
            hovertemplate=f"%{{customdata[0]}}<br>{measure.title} %{{customdata[1]}}"
            "<extra></extra>",
        )
    figure.add_vline(x=base * measure.factor, line={"color": colours.ink, "width": 2})
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    figure.add_annotation(
        x=base * measure.factor,
        text=f" now {measure.show(base)}",
        font={"color": colours.ink},
        **place,
    )
    figure.update_layout(barmode="overlay", height=120 + 34 * len(moves), bargap=0.3, **FRAME)
    figure.update_xaxes(title=measure.axis, zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def _between(low: str, high: str) -> str:
    """Two amounts, with their unit once where it is the same."""
    number, space, unit = low.partition(" ")
    return f"{number if space and high.endswith(f' {unit}') else low} to {high}"
