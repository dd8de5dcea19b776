"""Tables of rates: requests per second in windows of time, without single requests.

Columns ``t_s`` (or another name for a time), ``rate_rps`` (or another name for a rate), and where
there are any ``cv…`` (coefficient of variation of gaps), ``model`` and ``clients_active``: a window
without any active client was not recorded. ServeGen's client files, summed by window, have them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.errors import unknown
from recipe_core.scaling.traces.formats.columns import (
    read_csv_columns,
    read_number_column,
    read_time_column,
)
from recipe_core.scaling.traces.formats.content import Content, wrong
from recipe_core.scaling.traces.formats.table import column_of, normalise_column_name, time_column
from recipe_core.scaling.traces.trace import Rates, fill_missing_rates

TITLE = "table of rates"
MOST_WINDOWS = 2_000_000


def is_rate_table(content: Content) -> bool:
    """Return whether the head has a time and a rate."""
    head = content.head
    return time_column(head) is not None and column_of(head, "rates") is not None


def read_rate_table(content: Content, model: str | None = None, unit: str | None = None) -> Rates:
    """The rates of such a file; ``model``: which, where it has several.

    Raises:
        InputError: for a model that is unknown or left open, or windows of different lengths.
    """
    head = content.head
    stamp, rate = time_column(head), column_of(head, "rates")
    if stamp is None or rate is None:
        raise wrong(f"{content.title} has no time or no rate.", "Name them t_s and rate_rps.")
    spread = next((name for name in head if normalise_column_name(name).startswith("cv")), None)
    active, series = column_of(head, "active"), column_of(head, "models")
    optional = [name for name in (spread, active, series) if name is not None]
    table = _select_model(
        read_csv_columns(content, [stamp[0], rate], optional=optional), series, model
    )
    arrival, origin, _ = read_time_column(table, stamp[0], unit=unit or stamp[1])
    order = np.argsort(arrival, kind="stable")
    start, per_s = arrival[order], read_number_column(table, rate)[order]
    recorded = (
        read_number_column(table, active)[order] > 0
        if active
        else np.ones(len(start), dtype=np.bool_)
    )
    place, interval_s = _place_windows(start)
    rates, missing = _fill_windows(place, per_s, recorded)
    gaps = read_number_column(table, spread)[order] if spread else None
    name = ", ".join(
        filter(None, (content.name, TITLE, model or _first_series_name(table, series)))
    )
    return Rates(
        fill_missing_rates(rates, missing),
        interval_s,
        missing,
        _mean_burstiness(gaps, per_s),
        name,
        origin + float(start[0]) if origin else None,
    )


def _select_model(table: Any, series: str | None, model: str | None) -> Any:
    if series is None:
        return table
    models = sorted(filter(None, pc.unique(table[series]).to_pylist()))
    if model is None and len(models) > 1:
        raise wrong(f"the table has several of {series}: {', '.join(models[:12])}.", "Choose one.")
    if model is not None and model not in models:
        message, hint = unknown(series, model, models)
        raise wrong(message, hint)
    return table if model is None else table.filter(pc.equal(table[series], model))


def _first_series_name(table: Any, series: str | None) -> str:
    return str(table[series][0].as_py() or "") if series and len(table) else ""


def _place_windows(start: Float) -> tuple[Any, float]:
    """The window of each row, and the length of a window: the shortest distance of two."""
    if len(start) < 2:
        raise wrong("the table has fewer than two windows.", "Give more rows.")
    steps = np.diff(start)
    if (steps <= 0).any():
        raise wrong("two windows begin at the same time.", "Give each window once.")
    interval_s = float(steps.min())
    place = np.rint((start - start[0]) / interval_s).astype(np.int64)
    if np.abs(place * interval_s - (start - start[0])).max() > 0.01 * interval_s:
        raise wrong("the windows have different lengths.", "Give windows of one length.")
    if place[-1] >= MOST_WINDOWS:
        raise wrong(f"the table spans {place[-1] + 1:,} windows.", "Give longer or fewer windows.")
    return place, interval_s


def _fill_windows(place: Any, per_s: Float, recorded: Bool) -> tuple[Float, Bool]:
    rates = np.zeros(int(place[-1]) + 1)
    missing = np.ones(len(rates), dtype=np.bool_)
    rates[place] = per_s
    missing[place] = ~recorded
    if missing.all() or not rates[~missing].any():
        raise wrong("all rates are 0.", "Give a table with requests.")
    return rates, missing


def _mean_burstiness(gaps: Float | None, per_s: Float) -> float | None:
    if gaps is None or not (gaps * per_s).any():
        return None
    return float(np.average(gaps, weights=per_s))
