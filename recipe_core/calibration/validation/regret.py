"""The cost of choices by estimates beside the best that was measured.

A sweep is a set of runs of one source, model, engine version, formats, limits and lengths that
differ in layout, or in device and layout. Its options are compared

* at the same load, on as many devices of one kind: by time per token;
* with all requests queued: by device-seconds per token;
* at a limit on time per token, between the loads that were measured: by device-seconds per token.

Between devices a device-second is worth its list price. The option that is best by estimate is
chosen; its regret is ``measured of the chosen / best measured - 1``. Sweeps count alike, however
many loads or limits they have. Sources whose layouts are in doubt take no part
(``layouts_in_doubt`` in sources.yaml).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.arrays import Float
from recipe_core.base.units import share_text, usd
from recipe_core.calibration.validation.validate import align_table, scored_figures
from recipe_core.estimates.measured.runs import LIMITS, SPLIT, sources_in_doubt
from recipe_core.hardware.offer_tables import shipped_offers_of
from recipe_core.hardware.prices import prefer_offers

_RAN = ("source", "model", "engine", "version", "weight_dtype", "kv_dtype", *LIMITS)
SHARED = (*_RAN, "mode", "scenario", "input_tokens", "output_tokens")
LAYOUT, DEVICE = "layout", "device and layout"
# Noise of repeated runs, their median: a choice so close to the best one is as good.
NOISE = 0.05
# Rules that need no estimate; options that a rule does not tell apart count by their mean.
RULES = {
    "at_random": "at random",
    "largest_tp": "largest TP",
    "fewest_devices": "fewest devices",
}
WORST = 8
_SEEN = ("measured", "estimated")
_OPTION = ["device", *SPLIT]
_TIMES = ("ttft_ms", "tpot_ms", "request_latency_ms")
_RATES = ("output_tokens_per_s", "total_tokens_per_s")
_SWEEP = ("choice", "compared", "sweep", "source", "vendor", "model")
_COLUMNS = (*_SWEEP, "at", "options", "chosen", "best", "regret", *RULES)
Compared = Iterator[tuple[str, pd.DataFrame]]


@cache
def list_price(device: str) -> tuple[float, str] | None:
    """US dollars of a device's hour on demand, and the day of the latest offer; None: no offer.

    The median of the shipped offers that are verified and of no market place, of any age: the same
    on every day.
    """
    offers = [offer for offer in shipped_offers_of(device) if offer.commitment == "on-demand"]
    listed = prefer_offers(offers, older=True)
    if not listed:
        return None
    price = statistics.median(offer.usd_per_device_hour for offer in listed)
    return price, max(offer.date for offer in listed)


def _run_table(figures: pd.DataFrame) -> pd.DataFrame:
    """A row per run: ``time_…`` in seconds per token, ``cost_…`` in device-seconds per token.

    A rate that was not measured is the load over the time of a request.
    """
    keys = dict.fromkeys([*SHARED, *_OPTION, "vendor", "load"])
    runs = figures.drop_duplicates("id").set_index("id")[[*keys]]
    runs["devices"] = runs.nodes * runs.per_node
    for name in _SEEN:
        of = figures.pivot_table(index="id", columns="figure", values=name, aggfunc="first")
        of = of.reindex(index=runs.index, columns=[*_TIMES, *_RATES])
        answer_ms = of.ttft_ms + of.tpot_ms * (runs.output_tokens - 1)
        latency_ms = of.request_latency_ms.fillna(answer_ms)
        generated = runs.output_tokens / (runs.output_tokens + runs.input_tokens)
        rate = of.output_tokens_per_s.fillna(of.total_tokens_per_s * generated)
        rate = rate.fillna(runs.load * runs.output_tokens / latency_ms * 1e3)
        runs[f"time_{name}"] = of.tpot_ms.fillna(latency_ms / runs.output_tokens) / 1e3
        runs[f"cost_{name}"] = runs.devices / rate
    return runs


def regret_choices(figures: pd.DataFrame) -> pd.DataFrame:
    """Every choice: what it costs beyond the best measured option, and what simple rules cost.

    Args:
        figures: of a serving ``Comparison``: a row per measured figure.

    Returns:
        ``choice`` (``LAYOUT``, ``DEVICE``), ``compared`` (same load, all queued, at a limit),
        ``sweep`` (a number), ``source``, ``vendor`` (of all options), ``model``, ``at`` (the load
        or limit), ``options`` (how many), ``chosen`` and ``best`` (words), ``regret`` and ``RULES``
        (fractions), ``weight`` (the choices of a sweep share 1).
    """
    figures = scored_figures(figures)
    runs = _run_table(figures[~figures.source.isin(sources_in_doubt())])
    prices = {device: list_price(device) for device in runs.device.unique()}
    price = runs.device.map({device: of[0] for device, of in prices.items() if of}).astype(float)
    priced = runs.assign(**{f"cost_{name}": runs[f"cost_{name}"] * price for name in _SEEN})
    priced = priced[price.notna()]
    rows = [
        *_sweep_choices(runs, LAYOUT, "same load", ["device", "devices"], _same_load),
        *_sweep_choices(runs, LAYOUT, "all queued", ["device"], _all_queued),
        *_sweep_choices(runs, LAYOUT, "at a limit", ["device"], _at_limits),
        *_sweep_choices(priced, DEVICE, "all queued", [], _all_queued),
        *_sweep_choices(priced, DEVICE, "at a limit", [], _at_limits),
    ]
    choices = pd.DataFrame(rows, columns=list(_COLUMNS))
    count = choices.groupby(["choice", "compared", "sweep"]).regret.transform("size")
    return choices.assign(weight=1.0 / count)


def _sweep_choices(
    runs: pd.DataFrame,
    choice: str,
    compared: str,
    alike: list[str],
    compare: Callable[[pd.DataFrame], Compared],
) -> Iterator[dict[str, Any]]:
    """The choices of all sweeps; ``alike``: what the options share beside ``SHARED``."""
    for sweep, (_, group) in enumerate(runs.groupby([*SHARED, *alike], dropna=False)):
        if len(group.drop_duplicates("device" if choice == DEVICE else _OPTION)) < 2:
            continue
        for at, options in compare(group):
            if len(options) < 2 or (choice == DEVICE and options.device.nunique() < 2):
                continue
            yield {
                "choice": choice,
                "compared": compared,
                "sweep": sweep,
                "source": group.source.iloc[0],
                "vendor": ", ".join(sorted(options.vendor.unique())),
                "model": group.model.iloc[0],
                "at": at,
                **_judge_choice(options),
            }


def _judge_choice(options: pd.DataFrame) -> dict[str, Any]:
    """The regret of the choice by estimate, and of each rule."""
    beyond = options.measured / options.measured.min() - 1
    is_chosen = options.estimated <= options.estimated.min() * (1 + 1e-9)
    return {
        "options": len(options),
        "chosen": _chosen_text(options[is_chosen].iloc[0]),
        "best": _chosen_text(options.loc[beyond.idxmin()]),
        "regret": float(beyond[is_chosen].mean()),
        "at_random": float(beyond.mean()),
        "largest_tp": float(beyond[options.tp == options.tp.max()].mean()),
        "fewest_devices": float(beyond[options.devices == options.devices.min()].mean()),
    }


def _chosen_text(option: pd.Series[Any]) -> str:
    degrees = [("TP", option.tp), ("PP", option.pp), ("DP", option.dp), ("EP", option.ep)]
    shown = [f"{name} {int(degree)}" for name, degree in degrees if degree > 1]
    return f"{option.device}, {' × '.join(shown) or 'TP 1'}"


def _measured_options(runs: pd.DataFrame, value: str) -> pd.DataFrame:
    """An option a row, with the median of its runs."""
    values = {name: (f"{value}_{name}", "median") for name in _SEEN}
    grouped = runs.groupby(_OPTION, as_index=False)
    options = grouped.agg(vendor=("vendor", "first"), devices=("devices", "first"), **values)
    return options.dropna(subset=list(_SEEN))


def _same_load(group: pd.DataFrame) -> Compared:
    for load, runs in group[group["mode"] != "offline"].groupby("load"):
        yield f"load {load:g}", _measured_options(runs, "time")


def _all_queued(group: pd.DataFrame) -> Compared:
    yield "all queued", _measured_options(group[group["mode"] == "offline"], "cost")


def _at_limits(group: pd.DataFrame) -> Compared:
    """Options by cost at each measured time per token that two or more curves enclose."""
    loaded = group[group["mode"].isin(["closed", "static"])]
    curves = [
        (runs[[*_OPTION, "vendor", "devices"]].iloc[0], points)
        for _, runs in loaded.groupby(_OPTION)
        if len(points := _curve_points(runs)) > 1
    ]
    times = [points.time_measured for _, points in curves]
    for limit in sorted(set(pd.concat(times))) if times else []:
        rows = [
            {
                **option,
                **{name: _cost_at(points, name, limit) for name in _SEEN},
            }
            for option, points in curves
            if points.time_measured.min() <= limit <= points.time_measured.max()
        ]
        yield f"{1e3 * limit:.3g} ms per token", pd.DataFrame(rows)


def _curve_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Times and costs by load: the medians of repeated runs."""
    values = [f"{value}_{name}" for value in ("time", "cost") for name in _SEEN]
    return runs.groupby("load")[values].median().dropna()


def _cost_at(points: pd.DataFrame, name: str, limit: float) -> float:
    """Cost at a limit on time per token, along a line through points in logarithms.

    A load is no faster, and costs no less, than a higher one that keeps the same limit. Estimates
    are needed beyond their points where all their times are off: along the last stretch.
    """
    times = np.log(np.maximum.accumulate(points[f"time_{name}"].to_numpy()))
    costs = np.log(np.minimum.accumulate(points[f"cost_{name}"].to_numpy()))
    last = np.append(np.diff(times) > 0, True)  # of loads that take the same time
    x, y, at = times[last], costs[last], np.log(limit)
    if len(x) < 2:
        return float(np.exp(y[0]))
    k = int(np.clip(np.searchsorted(x, at), 1, len(x) - 1))
    return float(np.exp(y[k - 1] + (y[k] - y[k - 1]) * (at - x[k - 1]) / (x[k] - x[k - 1])))


# Groups of choices


def group_regrets(choices: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Regrets of groups of choices, every sweep alike.

    Columns: ``sweeps``, ``choices``, ``median`` and ``p90`` of the regret, ``as_good`` (the share
    within the noise of the best), and of each rule ``…_median`` and ``…_p90``.
    """
    rows = []
    for key, part in choices.groupby(list(by)):
        weights = part.weight.to_numpy()
        as_good = float(np.average(part.regret <= NOISE, weights=weights))
        row = dict(zip(by, key, strict=True))
        row |= {"sweeps": round(weights.sum()), "choices": len(part), "as_good": as_good}
        for name in ("regret", *RULES):
            start = "" if name == "regret" else f"{name}_"
            for end, share in (("median", 0.5), ("p90", 0.9)):
                row[start + end] = _weighted_quantile(part[name].to_numpy(), weights, share)
        rows.append(row)
    return pd.DataFrame(rows)


def _weighted_quantile(values: Float, weights: Float, share: float) -> float:
    """The smallest value up to which a share of the weight lies."""
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(summed, share * summed[-1] * (1 - 1e-12))])


GROUPS = {
    "all": ("choice",),
    "compared": ("choice", "compared", "vendor"),
    "vendors": ("choice", "vendor"),
    "sources": ("choice", "source"),
}
TITLES = {
    "all": "Regret: median / p90",
    "compared": "By how options are compared",
    "vendors": "By vendor",
    "sources": "By source",
    "worst": "The costliest choice of each of the worst sweeps",
    "prices": "List prices: US dollars per device-hour",
}


def worst_choices(choices: pd.DataFrame) -> pd.DataFrame:
    """The costliest choice of each of the sweeps with the largest mean regret."""
    costliest = choices.sort_values("regret", ascending=False, kind="stable")
    means = costliest.groupby(["choice", "compared", "sweep"], sort=False).regret.transform("mean")
    order = costliest.assign(mean=means).sort_values("mean", ascending=False, kind="stable")
    firsts = order.drop_duplicates(["choice", "compared", "sweep"])
    return firsts.head(WORST)[["source", "model", "at", "chosen", "best", "options", "regret"]]


def regret_view(figures: pd.DataFrame) -> dict[str, Any]:
    """Regrets as JSON values; they and shares are fractions."""
    choices = regret_choices(figures)
    devices = sorted(figures.device.unique())
    prices = [(device, of) for device in devices if (of := list_price(device))]
    return {
        **{
            name: group_regrets(choices, by).to_dict(orient="records")
            for name, by in GROUPS.items()
        },
        "worst": worst_choices(choices).to_dict(orient="records"),
        "prices": [
            {"device": device, "usd_per_device_hour": price, "as_of": day}
            for device, (price, day) in prices
        ],
        "left_out": sorted(sources_in_doubt() & set(figures.source)),
    }


def regret_tables(figures: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The view as tables of words, by title."""
    view = regret_view(figures)
    tables = {TITLES[name]: _group_table(view[name], by) for name, by in GROUPS.items()}
    worst = pd.DataFrame(view["worst"])
    if len(worst):
        tables[TITLES["worst"]] = worst.assign(regret=worst.regret.map(share_text))
    prices = pd.DataFrame(view["prices"])
    if len(prices):
        shown = prices.usd_per_device_hour.map(usd)
        tables[TITLES["prices"]] = prices.assign(usd_per_device_hour=shown).rename(
            columns={"usd_per_device_hour": "price", "as_of": "as of"}
        )
    return tables


def _group_table(rows: list[dict[str, Any]], by: Sequence[str]) -> pd.DataFrame:
    shown = []
    for row in rows:
        out = {name: row[name] for name in (*by, "sweeps", "choices")}
        for title, start in (("estimate", ""), *((of, f"{name}_") for name, of in RULES.items())):
            ends = (share_text(row[f"{start}{end}"], 1) for end in ("median", "p90"))
            out[title] = " / ".join(ends)
        shown.append(out | {f"within {share_text(NOISE)}": share_text(row["as_good"])})
    return pd.DataFrame(shown)


def regret_text(figures: pd.DataFrame) -> str:
    """Regrets as tables of text, and how to read them."""
    left_out = ", ".join(sorted(sources_in_doubt() & set(figures.source))) or "none"
    tables = [f"{title}\n{align_table(table)}" for title, table in regret_tables(figures).items()]
    return "\n\n".join([*tables, f"{_NOTE}\nLeft out, their layouts are in doubt: {left_out}."])


_NOTE = """\
Regret: what the choice by estimate costs beyond the best measured option (0 = the best). At the
same load on as many devices it is of time per token, else of device-seconds per token, at list
prices between devices. Limits lie between measured loads. Sweeps count alike. At random: the mean
of the options; largest TP and fewest devices: rules that need no estimate. Repeated runs differ by
5 %: within 5 % a choice is as good as the best."""
