"""Curves of a few splits over load, utilisation and device count; the sensitivity of a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import duration, rate, significant, usd
from recipe_core.explain.curves import LoadCurve, Scaling, usd_per_million_by_use
from recipe_core.explain.tornado import Swing
from recipe_core.present.charts.style import FRAME, SYMBOLS, filled, palette, stroke
from recipe_core.search.measures import Measure

USE = np.linspace(0.05, 1.0, 39)


def load_curves(
    curves: Mapping[str, LoadCurve],
    load: float,
    load_unit: str,
    limit_ms: float | None = None,
    *,
    unit: str = "GPU",
    dark: bool = False,
) -> go.Figure:
    """Time per token against output per device as the load grows, one curve per split.

    ``load`` is the request's and gets a large marker; ``load_unit`` follows a load's number. The
    shaded band is within ``limit_ms``. ``unit``: what one device is called.
    """
    colours = palette(dark)
    figure = go.Figure()
    if limit_ms is not None:
        figure.add_vrect(
            x0=0,
            x1=limit_ms,
            fillcolor=colours.series[2],
            opacity=0.08,
            line_width=0,
            layer="below",
        )
        line = {"dash": "dash", "color": colours.alarm, "width": 2}
        figure.add_vline(
            x=limit_ms,
            line=line,
            annotation={
                "text": f" limit {significant(limit_ms)} ms",
                "font": {"color": colours.alarm},
            },
        )
    for n, (name, curve) in enumerate(curves.items()):
        runs = np.flatnonzero(curve.runs & np.isfinite(curve.tpot_s))
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
            text=[
                significant(float(curve.load[k]), 3 if curve.load[k] < 10 else 0)
                if n == 0 and j % 2 == 0
                else ""
                for j, k in enumerate(runs)
            ],
            textposition="top center",
            textfont={"color": colours.muted, "size": 11},
            customdata=[
                [
                    f"{significant(float(curve.load[k]))} {load_unit}",
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
    figure.update_layout(height=420, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title="Time per output token (ms)", rangemode="tozero", zeroline=False)
    figure.update_yaxes(title=f"Output per {unit} (tok/s)", rangemode="tozero", zeroline=False)
    return figure


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
    names = [f"{swing.name} ±{swing.share:.0%}" for swing in moves]
    for n, (title, values) in enumerate(
        (("Less", [swing.less for swing in moves]), ("More", [swing.more for swing in moves]))
    ):
        shown = [value if np.isfinite(value) else base for value in values]
        figure.add_bar(
            y=names,
            x=[(value - base) * measure.factor for value in shown],
            base=[base * measure.factor] * len(shown),
            orientation="h",
            name=title,
            marker=filled(colours, n),
            customdata=[
                measure.show(value) if np.isfinite(value) else "cannot run" for value in values
            ],
            hovertemplate=f"%{{y}}, {title.lower()}<br>%{{customdata}}<extra></extra>",
        )
    figure.add_vline(x=base * measure.factor, line={"color": colours.ink, "width": 2})
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    figure.add_annotation(
        x=base * measure.factor,
        text=f" current {measure.show(base)}",
        font={"color": colours.ink},
        **place,
    )
    figure.update_layout(barmode="overlay", height=120 + 34 * len(moves), bargap=0.3, **FRAME)
    figure.update_xaxes(title=measure.axis, zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure
