"""Curves of a few splits over load, utilisation, cache and device count, and tornados of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import count_text, share_text, significant, token_rate_text, usd
from recipe_core.estimates.columns.serving import ReuseCurve
from recipe_core.estimates.serving.feature_results import KvTier, PrefixCache
from recipe_core.request.metrics import Metric, column_metric
from recipe_core.views.charts.style import SYMBOLS, Drawing, Style, axis, categories
from recipe_core.views.charts.views import crossing_text, plain_load_text
from recipe_core.views.explanations.arithmetic import TIERS
from recipe_core.views.explanations.curves import (
    Crossing,
    LoadCurve,
    Scaling,
    usd_per_million_by_use,
)
from recipe_core.views.explanations.formats import Swing

USE = np.linspace(0.05, 1.0, 39)
# Points of a curve that are closer than this share of both axes share a label.
NEAR = 0.02
# Figures of a point of a curve over load, by their columns.
LOAD_FIGURES = ("output_tokens_per_s", "tpot_s", "ttft_s")
# Labels keep this distance, as shares of both axes.
APART = (0.09, 0.07)

# The longest time (ms) and the highest output of a chart.
Scale = tuple[float, float]


# Load


def load_curves(
    curves: Mapping[str, LoadCurve],
    load: float,
    load_unit: str,
    limit_ms: float | None = None,
    crossings: Mapping[str, Crossing] | None = None,
    *,
    dark: bool = False,
) -> go.Figure:
    """Time per token against throughput per device as the load grows, one curve per split.

    ``load`` is the request's and gets a large marker; ``load_unit`` follows a load's number. The
    shaded band is within ``limit_ms``, which each curve crosses at its ``crossings``.
    """
    draw = Drawing(dark=dark)
    if limit_ms is not None:
        shade = {"fillcolor": draw.colours.series[2], "opacity": 0.08, "line_width": 0}
        draw.figure.add_vrect(x0=0, x1=limit_ms, layer="below", **shade)
        draw.limit(f" limit {limit_ms:g} ms", x=limit_ms)
    shown = {
        name: np.flatnonzero(curve.runs & np.isfinite(curve.tpot_s))
        for name, curve in curves.items()
    }
    times = [float(curves[name].tpot_s[rows].max()) for name, rows in shown.items() if len(rows)]
    rates = [float(curves[name].per_gpu[rows].max()) for name, rows in shown.items() if len(rows)]
    scale = (max(max(times, default=1.0) * 1e3, limit_ms or 0.0), max(rates, default=1.0))
    labels: list[tuple[float, float]] = []
    for n, (name, curve) in enumerate(curves.items()):
        _add_load_curve(draw, n, name, curve, shown[name], load, load_unit, scale, labels)
    met = {name: crossings[name] for name in curves if crossings and name in crossings}
    _mark_crossings(draw, {k: at for k, at in met.items() if not at.within}, load_unit, scale)
    return draw.set_axes(
        axis(column_metric("tpot_s").axis, range=[0, scale[0] * 1.12]),
        axis(column_metric("output_tokens_per_s_per_gpu").axis, range=[0, scale[1] * 1.15]),
        420,
        hovermode="closest",
        showlegend=len(curves) > 1,
    )


def _add_load_curve(
    draw: Drawing,
    n: int,
    name: str,
    curve: LoadCurve,
    runs: Int,
    load: float,
    load_unit: str,
    scale: Scale,
    labels: list[tuple[float, float]],
) -> None:
    """The n-th curve with a mark at each load, and its name below the last one."""
    colour = draw.colours.series[n % 5]
    current = int(runs[np.argmin(np.abs(np.log(curve.load[runs] / load)))]) if len(runs) else -1
    x, y = curve.tpot_s[runs] * 1e3, curve.per_gpu[runs]
    metrics = [column_metric(column) for column in LOAD_FIGURES]
    hover = "".join(
        f"<br>{metric.head} %{{customdata[{k}]}}" for k, metric in enumerate(metrics, 1)
    )
    sizes = [15 if k == current else 8 for k in runs]
    draw.curve(
        name,
        x,
        y,
        n,
        f"<b>{name}</b><br>%{{customdata[0]}}{hover}",
        [
            [
                f"{plain_load_text(float(curve.load[k]))} {load_unit}",
                *(metric.show(float(getattr(curve, metric.column)[k])) for metric in metrics),
            ]
            for k in runs
        ],
        mode="lines+markers+text",
        marker={"symbol": SYMBOLS[n % len(SYMBOLS)], "size": sizes, "color": colour},
        **draw.labels(_load_labels(curve, runs, current, scale, labels), "top center")
        | {"textfont": {"color": draw.colours.muted, "size": 11}},
    )
    if len(runs):
        side = "right" if x[-1] > 0.5 * scale[0] else "left"
        below = {"xanchor": side, "yanchor": "top", "yshift": -8}
        draw.note(f"<b>{name}</b>", colour, 12, x=x[-1], y=y[-1], **below)


def _load_labels(
    curve: LoadCurve, runs: Int, current: int, scale: Scale, labels: list[tuple[float, float]]
) -> list[str]:
    """A text for each point, empty where it would stand on another.

    Loads that all lie on one spot, as those beyond the split's capacity do, share one:
    "64–1,024". ``labels``: places of all labels, which grows.
    """
    places = [
        (float(curve.tpot_s[k]) * 1e3 / scale[0], float(curve.per_gpu[k]) / scale[1]) for k in runs
    ]
    groups: list[list[int]] = []
    for j, (x, y) in enumerate(places):
        first = places[groups[-1][0]] if groups else (np.inf, np.inf)
        if abs(x - first[0]) < NEAR and abs(y - first[1]) < NEAR:
            groups[-1].append(j)
        else:
            groups.append([j])
    texts = [""] * len(runs)
    # the current load is labelled first, so that no other label takes its place
    for group in sorted(groups, key=lambda group: current not in runs[group]):
        x, y = places[group[0]]
        if any(abs(x - a) < APART[0] and abs(y - b) < APART[1] for a, b in labels):
            continue
        labels.append((x, y))
        ends = [plain_load_text(float(curve.load[runs[j]])) for j in (group[0], group[-1])]
        texts[group[0]] = ends[0] if len(group) == 1 else "–".join(ends)
    return texts


def _mark_crossings(
    draw: Drawing, crossings: Mapping[str, Crossing], load_unit: str, scale: Scale
) -> None:
    if not crossings:
        return
    alarm = draw.colours.alarm
    draw.points(
        None,
        [at.tpot_s * 1e3 for at in crossings.values()],
        [at.per_gpu for at in crossings.values()],
        {"symbol": "x-thin", "size": 14, "line": {"color": alarm, "width": 3}},
        "<b>%{customdata[0]}</b><br>At the limit: %{customdata[1]}",
        [[name, crossing_text(at, load_unit)] for name, at in crossings.items()],
        showlegend=False,
        cliponaxis=False,
    )
    first = next(iter(crossings.values()))
    far = first.tpot_s * 1e3 > 0.5 * scale[0]
    draw.figure.add_annotation(
        x=first.tpot_s * 1e3,
        y=first.per_gpu,
        text=crossing_text(first, load_unit),
        font={"color": alarm, "size": 12},
        bgcolor=draw.colours.paper,
        arrowcolor=alarm,
        ax=-24 if far else 24,
        ay=40,
        xanchor="right" if far else "left",
    )


# Cost, cache, device count


def use_curves(rates: Mapping[str, tuple[float, float]], *, dark: bool = False) -> go.Figure:
    """Cost per million output tokens over utilisation: the share of paid hours in use.

    ``rates``: dollars per hour and tokens per second at full load, by the split's name.
    """
    draw, highest = Drawing(dark=dark), 0.0
    for n, (name, (usd_per_hour, tokens_per_s)) in enumerate(rates.items()):
        price = usd_per_million_by_use(usd_per_hour, tokens_per_s, USE)
        highest = max(highest, float(price[-1]))
        about = [[share_text(use), usd(float(at))] for use, at in zip(USE, price, strict=True)]
        hover = "%{customdata[0]} utilisation: %{customdata[1]} per million tokens"
        draw.curve(name, USE * 100, price, n, f"<b>{name}</b><br>{hover}", about)
    across = axis("Utilisation (% of paid hours)", range=[0, 102])
    up = axis(column_metric("usd_per_million_output_tokens").axis, range=[0, highest * 6 or 1])
    return draw.set_axes(across, up, 380, hovermode="closest", showlegend=True)


def reuse_figure(
    curve: ReuseCurve, cache: PrefixCache, tiers: Sequence[KvTier], *, dark: bool = False
) -> go.Figure:
    """Share of prompt tokens found over the size of the cache, and where each tier stands."""
    draw, marks = Drawing(dark=dark), _tier_marks(cache, tiers)
    ends = (curve.cache_tokens[0], curve.cache_tokens[-1])
    sizes = [*ends, *(size for _, size, *_ in marks if size > 0)]
    x = np.geomspace(min(sizes) / 2, 2 * max(sizes), 120)
    line = {"color": draw.colours.series[0], "width": 2}
    hover = "%{x:,.0f} tokens<br>%{y:.1%} found"
    draw.curve("Found by a cache of this size", x, curve.hit_at(x), line, hover)
    for n, (title, size, hit, text) in enumerate(marks):
        colour = draw.colours.groups[(n + 1) % len(draw.colours.groups)]
        look = {"symbol": SYMBOLS[n % len(SYMBOLS)], "size": 13, "color": colour}
        hover = "<b>%{fullData.name}</b><br>%{customdata[0]}"
        draw.points(title, [size], [hit], look, hover, [[text]])
    return draw.set_axes(
        {"title": "Cache, tokens of all requests together", "type": "log"},
        {"title": "Prompt tokens found", "tickformat": ".0%", "rangemode": "tozero"},
    )


def _tier_marks(cache: PrefixCache, tiers: Sequence[KvTier]) -> list[tuple[str, float, float, str]]:
    """Title, size, share found and text of each cache; a tier also holds those above it."""
    text = f"{count_text(cache.seen_tokens)} tokens, {share_text(cache.device_hit, 1)} found"
    marks = [("Devices", cache.seen_tokens, cache.device_hit, text)]
    size = cache.seen_tokens
    for tier in tiers:
        size = max(size, tier.capacity_tokens)
        hit_text = f"{share_text(tier.hit, 1)} found; {tier.verdict}"
        text = f"{count_text(tier.capacity_tokens)} tokens, {hit_text}"
        marks.append((TIERS[tier.name], size, tier.hit, text))
    return marks


def scaling_curve(best: Scaling, labels: Sequence[str], *, dark: bool = False) -> go.Figure:
    """Tokens per second of the best split at each device count, against linear scaling."""
    draw, ideal, tokens = Drawing(dark=dark), best.ideal_tokens_per_s, best.tokens_per_s
    draw.curve("Linear", best.gpus, ideal, {"dash": "dot", "color": draw.colours.muted})
    shares = tokens / np.maximum(ideal, 1e-12)
    draw.curve(
        "Best layout",
        best.gpus,
        tokens,
        0,
        "%{x} devices: %{customdata[1]}<br>%{customdata[0]}",
        [
            [label, token_rate_text(float(value))]
            for label, value in zip(labels, tokens, strict=True)
        ],
        mode="lines+markers+text",
        marker={"size": 10, "color": draw.colours.series[0]},
        **draw.labels([share_text(share) for share in shares], "top left"),
    )
    across = axis(
        column_metric("gpus").head, **_log_ticks(best.gpus, [f"{n:,.0f}" for n in best.gpus])
    )
    ticks = [significant(float(value)) for value in tokens]
    up = axis(column_metric("tokens_per_s").axis, **_log_ticks(tokens, ticks))
    return draw.set_axes(across, up, 400, hovermode="closest", showlegend=True)


def _log_ticks(values: Float, texts: Sequence[str]) -> dict[str, object]:
    return {"type": "log", "tickvals": list(values), "ticktext": texts}


# Sensitivity


def swings(
    base: float, moves: Sequence[Swing], measure: Metric, *, dark: bool = False
) -> go.Figure:
    """A tornado: how far a figure moves when each assumption is changed alone, widest first."""
    draw, middle = Drawing(dark=dark), base * measure.factor
    names = [f"{swing.name}: {_swing_text(swing.low, swing.high)}" for swing in moves]
    lower = [(swing.name, swing.low, swing.less) for swing in moves]
    higher = [(swing.name, swing.high, swing.more) for swing in moves]
    for n, ends in enumerate((lower, higher)):
        values = np.array([end for *_, end in ends], dtype=np.float64)
        runs = np.isfinite(values)
        draw.bars(
            f"Assumption at its {('lower', 'higher')[n]} value",
            names,
            (np.where(runs, values, base) - base) * measure.factor,
            n,
            f"%{{customdata[0]}}<br>{measure.title} %{{customdata[1]}}",
            [
                [f"{name} {text}", measure.show(end) if run else "cannot run"]
                for (name, text, end), run in zip(ends, runs, strict=True)
            ],
            base=[middle] * len(moves),
        )
    draw.limit(x=middle, colour=draw.colours.ink, dash=None)
    top: Style = {"y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "left"}
    draw.note(f" now {measure.show(base)}", draw.colours.ink, x=middle, **top)
    across, height = axis(measure.axis), 120 + 34 * len(moves)
    return draw.set_axes(across, categories(), height, barmode="overlay", bargap=0.3)


def _swing_text(low: str, high: str) -> str:
    """Two amounts, with their unit once where it is the same."""
    number, space, unit = low.partition(" ")
    return f"{number if space and high.endswith(f' {unit}') else low} to {high}"
