"""A simulation over time as text for a terminal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator

from recipe_core.base.columns import aligned
from recipe_core.base.labels import split_name
from recipe_core.base.units import duration, significant
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.result import OverTimeAnswer, PolicyAnswer

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LONG_S = 90.0
PERIODS_SHOWN = 12
LEAST_DECIMALS = 4
"""Of shares in percent, at most."""


def over_time_text(answer: OverTimeAnswer) -> str:
    """What was simulated, the policies side by side, and what was chosen with its numbers."""
    return "\n".join(
        [_verdict(answer), *_about(answer), _table(answer), *_chosen(answer), *_notes(answer)]
    )


def _verdict(answer: OverTimeAnswer) -> str:
    chosen = answer.chosen
    wanted = share_text(answer.attainment_wanted)
    if chosen is None:
        best = max(answer.policies, key=lambda one: one.attainment.value)
        return (
            f"No policy keeps the limits for {wanted} of requests. "
            f"Nearest: {best.name}, {share_text(best.attainment.value)}."
        )
    money = "" if chosen.usd_per_month is None else f" for ${chosen.usd_per_month:,.0f} a month"
    return (
        f"{chosen.name} keeps the limits for {share_text(chosen.attainment.value)} of requests "
        f"({wanted} wanted){money}"
    )


def _about(answer: OverTimeAnswer) -> Iterator[str]:
    load, start, service = answer.load, answer.start, answer.service
    devices = "device" if answer.devices_per_replica == 1 else "devices"
    price = answer.usd_per_replica_hour
    cost = "price unknown" if price is None else f"${price:,.2f} an hour"
    yield (
        f"replica: {split_name(answer.candidate)}, {answer.engine}, "
        f"{answer.devices_per_replica} {devices}, {cost}; "
        f"{significant(service.requests_per_s)} requests/s within the limits"
    )
    yield (
        f"load: {load.source}: {load.requests:,.0f} requests over {long_duration(load.span_s)}, "
        f"{significant(load.mean_rate_per_s)}/s on average, "
        f"{significant(load.peak_rate_per_s)}/s at the peak"
    )
    yield (
        f"start of a replica: {long_duration(start.seconds)} "
        f"({long_duration(start.low_s)} to {long_duration(start.high_s)})"
    )


def _table(answer: OverTimeAnswer) -> str:
    bounds = (answer.bounds.always_peak, answer.bounds.clairvoyant)
    cells: dict[str, Callable[[PolicyAnswer], str]] = {
        "policy": lambda one: one.name,
        "kept": lambda one: share_text(one.attainment.value),
        "band": _band,
        "GPU-hours": lambda one: significant(one.gpu_hours, 4),
        "$/month": lambda one: "–" if one.usd_per_month is None else f"{one.usd_per_month:,.0f}",
        "replicas": _replicas,
        "starts": lambda one: significant(one.cold_starts),
        "worst": _worst,
        "vs peak": lambda one: _ratio(one.against.always_peak),
        "vs clairvoyant": lambda one: _ratio(one.against.clairvoyant),
        "": lambda one: "" if one.meets or one.scaling is None else "too few",
    }
    width = max(shutil.get_terminal_size((160, 40)).columns, 120)
    rows = [[show(one) for show in cells.values()] for one in (*answer.policies, *bounds)]
    return aligned(list(cells), rows, left=("policy", ""), width=width)


def _band(one: PolicyAnswer) -> str:
    low, high = share_text(one.attainment.low), share_text(one.attainment.high)
    return low if low == high else f"{low} – {high}"


def _replicas(one: PolicyAnswer) -> str:
    counts = one.replicas
    return f"{counts.min:.0f} – {counts.max:.0f}, mean {counts.mean:.1f}"


def _worst(one: PolicyAnswer) -> str:
    worst = one.worst_interval
    return f"{share_text(worst.share)} at {moment(worst.at_s)}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _chosen(answer: OverTimeAnswer) -> Iterator[str]:
    """The parameters of the chosen policy, one a line."""
    chosen = answer.chosen
    if chosen is None or chosen.scaling is None:
        return
    yield f"{chosen.name}, as bundles write it:"
    for name, value in scaling_rows(chosen.scaling):
        yield f"  {name}: {value}"
    if chosen.checked is not None:
        checked = chosen.checked
        begin, end = (moment(at) for at in checked.window)
        yield (
            f"  request by request from {begin} to {end}: "
            f"{share_text(checked.attainment)} of {checked.requests:,} requests in the limits, "
            f"{share_text(checked.flow)} by flows"
        )


def scaling_rows(scaling: Scaling) -> Iterator[tuple[str, str]]:
    """The parameters of a policy, each with its name: what is the policy's own default is not."""
    for name, value in scaling.to_json().items():
        if name == "triggers":
            for trigger in scaling.triggers:
                yield f"target of {trigger.metric}", f"{trigger.target:g} a replica"
        elif name == "periods":
            yield from _period_rows(scaling)
        elif name.endswith("_s"):
            yield name.removesuffix("_s"), long_duration(float(value))
        elif name != "policy":
            yield name, str(value)


def _period_rows(scaling: Scaling) -> Iterator[tuple[str, str]]:
    periods = scaling.periods
    for period in periods[:PERIODS_SHOWN]:
        when = f"{hour_text(period.from_hour)} to {hour_text(period.to_hour)}"
        yield when, f"{period.replicas} replicas"
    if len(periods) > PERIODS_SHOWN:
        yield "and", f"{len(periods) - PERIODS_SHOWN} more periods; --json lists them"


def _notes(answer: OverTimeAnswer) -> Iterator[str]:
    for note in answer.notes:
        yield f"note: {note}"


def hour_text(hour: int) -> str:
    """An hour of the week: ``Mon 08:00``."""
    if hour == 168:
        return "Sun 24:00"
    return f"{DAYS[hour // 24]} {hour % 24:02d}:00"


def moment(at_s: float) -> str:
    """A second of the load as days and a time of day: ``day 2 13:05``."""
    days, rest = divmod(int(at_s), 86_400)
    return f"day {days + 1} {rest // 3600:02d}:{rest % 3600 // 60:02d}"


def long_duration(seconds: float) -> str:
    """A time in the unit that people would say it in: ``45 s``, ``6.2 min``, ``7 days``."""
    for size, unit in ((2 * 86_400.0, "days"), (7200.0, "h"), (LONG_S, "min")):
        if seconds >= size:
            per = {"days": 86_400.0, "h": 3600.0, "min": 60.0}[unit]
            return f"{significant(seconds / per, 3)} {unit}"
    return duration(seconds) if seconds else "0 s"


def share_text(share: float) -> str:
    """A share in percent, never rounded up, with two digits of what it lacks: ``99.95 %``."""
    missing = 1 - share
    if missing <= 0:
        return "100 %"
    decimals = 1
    while missing * 10**decimals < 0.1 - 1e-9 and decimals < LEAST_DECIMALS:
        decimals += 1
    scale = 10**decimals
    return (
        f"{math.floor(share * 100 * scale + 1e-6) / scale:.{decimals}f}".rstrip("0").rstrip(".")
        + " %"
    )
