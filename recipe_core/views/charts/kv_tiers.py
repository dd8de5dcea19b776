"""What caches of every size find, with the devices' cache and the tiers below it marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import count, significant
from recipe_core.estimates.columns.reuse import ReuseCurve
from recipe_core.estimates.serving.cache_results import KvTier, PrefixCache
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.views.charts.style import FRAME, SYMBOLS, palette
from recipe_core.views.charts.views import Table

TIERS = {"host": "Host memory", "disk": "Drives", "remote": "Remote store"}
_POINTS = 120


@dataclass(frozen=True, slots=True)
class _Mark:
    """A cache on the curve; ``seen_tokens``: the largest size down to it."""

    title: str
    seen_tokens: float
    hit: float
    text: str


def reuse_curve(
    curve: ReuseCurve, cache: PrefixCache, tiers: list[KvTier], *, dark: bool = False
) -> go.Figure:
    """Share of prompt tokens found over the size of the cache, and where each tier stands."""
    colours, marks = palette(dark), _marks(cache, tiers)
    sizes = np.geomspace(*_range(curve, marks), _POINTS)
    figure = go.Figure()
    figure.add_scatter(
        x=sizes,
        y=curve.hit_at(sizes),
        mode="lines",
        name="Found by a cache of this size",
        line={"color": colours.series[0], "width": 2},
        hovertemplate="%{x:,.0f} tokens<br>%{y:.1%} found<extra></extra>",
    )
    for n, mark in enumerate(marks):
        figure.add_scatter(
            x=[mark.seen_tokens],
            y=[mark.hit],
            mode="markers",
            name=mark.title,
            marker={
                "symbol": SYMBOLS[n % len(SYMBOLS)],
                "size": 13,
                "color": colours.groups[(n + 1) % len(colours.groups)],
            },
            customdata=[[mark.text]],
            hovertemplate="<b>%{fullData.name}</b><br>%{customdata[0]}<extra></extra>",
        )
    figure.update_layout(
        **FRAME,
        xaxis={"title": "Cache, tokens of all requests together", "type": "log"},
        yaxis={"title": "Prompt tokens found", "tickformat": ".0%", "rangemode": "tozero"},
    )
    return figure


def _marks(cache: PrefixCache, tiers: list[KvTier]) -> list[_Mark]:
    text = f"{count(cache.seen_tokens)} tokens, {cache.device_hit:.1%} found"
    marks = [_Mark("Devices", cache.seen_tokens, cache.device_hit, text)]
    seen = cache.seen_tokens
    for tier in tiers:
        seen = max(seen, tier.capacity_tokens)
        text = f"{count(tier.capacity_tokens)} tokens, {tier.hit:.1%} found; {tier.verdict}"
        marks.append(_Mark(TIERS[tier.name], seen, tier.hit, text))
    return marks


def _range(curve: ReuseCurve, marks: list[_Mark]) -> tuple[float, float]:
    """Sizes that are drawn: the points of the curve, and every mark."""
    seen = [mark.seen_tokens for mark in marks if mark.seen_tokens > 0]
    return min([*seen, curve.cache_tokens[0]]) / 2, 2 * max([*seen, curve.cache_tokens[-1]])


def device_table(estimate: ServingEstimate, stated_hit: float) -> Table:
    """What the devices' cache of a replica holds, and finds; ``stated_hit``: by the workload."""
    memory, cache = estimate.memory.prefill or estimate.memory, estimate.prefix_cache
    row = {"Cache": "Devices, a replica", "Holds": f"{count(memory.kv_cache_tokens)} tokens"}
    if cache is None:
        return Table.of([{**row, "Prompt tokens found": f"{stated_hit:.1%}, as stated"}])
    row["Free for reuse"] = f"{count(cache.free_tokens)} tokens"
    return Table.of([{**row, "Prompt tokens found": f"{cache.device_hit:.1%}"}])


def tier_table(tiers: list[KvTier]) -> Table:
    """What each tier adds and costs, and whether it is worth it."""
    rows = [
        {
            "Tier": TIERS[tier.name],
            "Holds": f"{count(tier.capacity_tokens)} tokens",
            "Adds": f"{100 * tier.hit_added:.1f} % of prompt tokens",
            "A token": f"{significant(tier.load_s_per_token * 1e6)} µs to load, "
            f"{significant(tier.recompute_s_per_token * 1e6)} µs to compute",
            "First token": f"{1e3 * tier.ttft_change_s:+,.0f} ms",
            "Throughput": f"{tier.throughput_change:+.1%}",
            "Reads": f"{tier.read_bytes_per_s / 1e9:.2f} GB/s",
            "Writes": f"{tier.write_bytes_per_s / 1e9:.2f} GB/s",
            "Verdict": tier.verdict,
        }
        for tier in tiers
    ]
    return Table.of(rows, "Tiers below the devices' cache")
