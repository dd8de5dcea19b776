"""A deployment over time in words and tables, for a page.

Answers are those of ``OverTimeAnswer.to_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.units import count, significant
from recipe_core.plans.plan import Plan
from recipe_core.request.over_time import DAY_S, HOUR_S, WEEK_S, OverTime
from recipe_core.request.scaling import Scaling
from recipe_core.scaling import setup
from recipe_core.scaling.traces.load import Load
from recipe_core.scaling.traces.shapes import published, shape, shape_names
from recipe_core.views.over_time_text import share_text
from recipe_core.views.size_view import dollars

Json = Mapping[str, Any]
TITLES = {
    "fixed": "Fixed number",
    "schedule": "Schedule",
    "predictive": "Forecast",
    "hpa": "Kubernetes HPA",
    "keda": "KEDA",
    "kpa": "Knative KPA",
    "skyserve": "SkyServe",
    "ray-serve": "Ray Serve",
    "dynamo": "Dynamo planner",
    "llm-d": "llm-d autoscaler",
    "always_peak": "Always at peak",
    "clairvoyant": "Clairvoyant",
}
"""Policies and bounds as people write them."""
BOUNDS = {
    "always_peak": "as many replicas as the busiest hour needs, all the time",
    "clairvoyant": "the fewest replicas at every moment for whoever knows all arrivals beforehand",
}
"""What the two bounds are."""
METRICS = {
    "waiting": "waiting requests",
    "running": "running requests",
    "in-flight": "requests in flight",
    "kv-usage": "share of the KV cache in use",
    "request-rate": "requests per second",
}
"""What replicas are scaled by."""
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


# --- numbers as texts ----------------------------------------------------------------------------


def title(name: str) -> str:
    """A policy or a bound as people write it."""
    return TITLES.get(name, name)


def plain(value: float, digits: int = 3) -> str:
    """A number with at most so many significant digits, without zeros at its end."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def time_text(seconds: float) -> str:
    """A time of milliseconds to days: ``45 s``, ``7.7 min``, ``2.1 h``, ``3 days``."""
    if seconds < 1:
        return f"{plain(seconds * 1e3)} ms"
    for least, factor, unit in (
        (2 * DAY_S, DAY_S, "days"),
        (5400.0, HOUR_S, "h"),
        (120.0, 60.0, "min"),
    ):
        if seconds >= least:
            return f"{plain(seconds / factor, 2)} {unit}"
    return f"{plain(seconds, 2)} s"


def moment(at_s: float, start_hour: float = 0) -> str:
    """A second of a load as a time of the week: ``Tue 14:35``, of later weeks with its day."""
    since_monday = start_hour * HOUR_S + at_s
    day, rest = divmod(since_monday, DAY_S)
    minutes = int(rest // 60)
    later = f" (day {int(at_s // DAY_S) + 1})" if since_monday >= WEEK_S else ""
    return f"{DAYS[int(day) % 7]} {minutes // 60:02d}:{minutes % 60:02d}{later}"


def rate_text(per_s: float) -> str:
    """Requests a second, or a minute or an hour where they are few."""
    for factor, unit in ((1.0, "a second"), (60.0, "a minute")):
        if per_s * factor >= 0.5:
            return f"{significant(per_s * factor)} requests {unit}"
    return f"{significant(per_s * HOUR_S)} requests an hour"


def replicas_text(value: float) -> str:
    """A mean number of replicas; whole ones without digits."""
    return f"{value:,.0f}" if value == round(value) else significant(value, 2)


def cost_text(policy: Json) -> str:
    """What a month of a policy costs; hours of devices where no price is known."""
    if policy["usd_per_month"] is not None:
        return f"{dollars(policy['usd_per_month'])} a month"
    return f"{significant(policy['gpu_hours'])} GPU-hours"


def shape_title(name: str) -> str:
    """A published shape of a week, as people write it; its name where it is not known."""
    if name not in shape_names():
        return name
    title = published(name).facts.title
    return f"{title[0].upper()}{title[1:]}"


def shape_note(name: str) -> str:
    """What to know of a published shape: whose hours, where from."""
    known = published(name)
    error = known.facts.error
    about = f" Hours are within {error.value:.0%}." if error else ""
    return f"{known.facts.note} Clock: {known.facts.clock}.{about} Source: {known.source}."


def hourly(over_time: OverTime) -> list[float]:
    """Requests per second in each hour of the week of a shape, from its beginning on."""
    rates = np.roll(shape(over_time.shape or ""), -over_time.start_hour)
    return [float(f"{rate:.3g}") for rate in rates * (over_time.mean_rate or 1.0)]


# --- sentences -----------------------------------------------------------------------------------


def policies(answer: Json) -> dict[str, Json]:
    """The policies of an answer by name, the best first."""
    return {policy["name"]: policy for policy in answer["policies"]}


def best(answer: Json) -> Json | None:
    """The cheapest policy that keeps the limits; None where none does."""
    return policies(answer).get(answer["best"]) if answer["best"] else None


def verdict(answer: Json) -> tuple[bool, str]:
    """Whether some policy keeps the limits, and the cheapest, else the nearest."""
    found, wanted = best(answer), share_text(answer["attainment_wanted"])
    if found is None:
        if not answer["policies"]:
            return False, "No policy was simulated."
        near = max(answer["policies"], key=lambda policy: float(policy["attainment"]["value"]))
        share = share_text(near["attainment"]["value"])
        return False, (
            f"No policy keeps the limits for {wanted} of the requests. Nearest is "
            f"{title(near['name'])} with {share}, for {cost_text(near)}"
        )
    return True, f"Cheapest is {title(found['name'])}: {facts(found)}"


def facts(policy: Json) -> str:
    """Cost, share within the limits, replicas, and the cost beside the bounds."""
    counts = policy["replicas"]
    span = f"{replicas_text(counts['min'])} to {replicas_text(counts['max'])} replicas"
    parts = [cost_text(policy), f"{share_text(policy['attainment']['value'])} within the limits"]
    return ", ".join([*parts, span]) + against_text(policy)


def against_text(policy: Json) -> str:
    """The cost beside that of both bounds."""
    against = policy["against"]
    parts = []
    if against.get("always_peak") is not None:
        parts.append(f"{against['always_peak']:.0%} of what replicas for the peak cost")
    if against.get("clairvoyant") is not None:
        parts.append(f"{significant(against['clairvoyant'])} times the clairvoyant bound")
    return f"; {' and '.join(parts)}" if parts else ""


def band_text(attainment: Json) -> str:
    """The band of a share within the limits."""
    return f"{share_text(attainment['low'])} to {share_text(attainment['high'])}"


def worst_text(answer: Json, policy: Json) -> str:
    """When the fewest requests kept the limits."""
    worst = policy["worst_interval"]
    at = moment(worst["at_s"], answer["load"]["start_hour"])
    return f"{at}: {share_text(worst['share'])} of {time_text(worst['seconds'])}"


def checked_text(answer: Json, policy: Json) -> str:
    """How the worst hour came out request by request; empty where it was not looked at."""
    checked = policy.get("checked")
    if not checked:
        return ""
    at = moment(checked["window"][0], answer["load"]["start_hour"])
    span = time_text(checked["window"][1] - checked["window"][0])
    return (
        f"Its worst {span}, from {at}, once more request by request: "
        f"{share_text(checked['attainment'])} within the limits, {share_text(checked['flow'])} in "
        "the simulation of the whole time."
    )


def load_sentence(load: Json) -> str:
    """A load in one sentence."""
    return (
        f"{count(load['requests'])} requests in {time_text(load['span_s'])}: "
        f"{rate_text(load['mean_rate_per_s'])} on average, {rate_text(load['peak_rate_per_s'])} "
        "at the peak."
    )


def start_sentence(start: Json) -> str:
    """How long a cold start takes."""
    low, high = time_text(start["low_s"]), time_text(start["high_s"])
    return (
        f"A replica answers {time_text(start['seconds'])} after it is ordered; "
        f"eight of ten starts take {low} to {high}."
    )


def limits_sentence(answer: Json) -> str:
    """The limits that requests had to keep, and for how many of them."""
    names = {
        "ttft_s": "first token",
        "tpot_s": "each further token",
        "request_latency_s": "whole answer",
    }
    parts = [f"{names[name]} in {time_text(value)}" for name, value in answer["limits"].items()]
    return f"{share_text(answer['attainment_wanted'])} of all requests: {', '.join(parts)}."


def service_sentence(answer: Json) -> str:
    """What one replica is, serves and costs."""
    devices, rate = answer["devices_per_replica"], answer["service"]["requests_per_s"]
    on = f"{devices} device{'s' * (devices != 1)}"
    price = answer["usd_per_replica_hour"]
    cost = "" if price is None else f", for {dollars(price)} an hour"
    return f"One replica is a server on {on}{cost}. It serves {rate_text(rate)} within the limits."


def load_of_sentence(load: Load) -> str:
    """The same of a load that is not simulated yet."""
    return load_sentence(
        {
            "requests": load.requests,
            "span_s": load.span_s,
            "mean_rate_per_s": float(load.rates.mean()),
            "peak_rate_per_s": float(load.rates.max()),
        }
    )


def limits_text(ttft_ms: float, tpot_ms: float) -> str:
    """Two limits in few words: ``2 s, then 200 ms a token``."""
    return f"{time_text(ttft_ms / 1e3)}, then {time_text(tpot_ms / 1e3)} a token"


# --- tables --------------------------------------------------------------------------------------


def policies_frame(answer: Json) -> pd.DataFrame:
    """A row for each policy, the best first, then the two bounds."""
    named = [*policies(answer).values(), *answer["bounds"].values()]
    return pd.DataFrame([policy_row(answer, policy) for policy in named])


def policy_row(answer: Json, policy: Json) -> dict[str, Any]:
    """The figures of a policy; shares in percent."""
    attainment, counts = policy["attainment"], policy["replicas"]
    span = f"{replicas_text(counts['min'])} – {replicas_text(counts['max'])}"
    bound = policy["scaling"] is None
    state = "yes" if policy["meets"] else "no"
    return {
        "key": policy["name"],
        "policy": title(policy["name"]),
        "keeps": "bound" if bound else state,
        "month": policy["usd_per_month"],
        "gpu_hours": policy["gpu_hours"],
        "attainment": 100.0 * attainment["value"],
        "band": band_text(attainment),
        "replicas": span,
        "cold_starts": policy["cold_starts"],
        "worst": worst_text(answer, policy),
        "peak": policy["against"].get("always_peak"),
        "clairvoyant": policy["against"].get("clairvoyant"),
    }


def outcome_rows(answer: Json, policy: Json) -> dict[str, str]:
    """What a policy does, as names and texts."""
    counts, attainment = policy["replicas"], policy["attainment"]
    wanted = share_text(answer["attainment_wanted"])
    within = f"{share_text(attainment['value'])} ({band_text(attainment)}), wanted {wanted}"
    mean = f"{replicas_text(counts['mean'])} on average"
    least, most = replicas_text(counts["min"]), replicas_text(counts["max"])
    rows = {
        "Cost": cost_text(policy),
        "GPU-hours": f"{significant(policy['gpu_hours'])} in {time_text(answer['load']['span_s'])}",
        "Within the limits": within,
        "Worst time": worst_text(answer, policy),
        "Replicas": f"{least} to {most}, {mean}",
        "Cold starts": f"{policy['cold_starts']:,.0f}",
        "Requests that waited for one": f"{policy['requests_delayed']:,.0f}",
    }
    if policy["replicas_lost"]:
        rows["Replicas lost"] = f"{policy['replicas_lost']:,.0f}"
    return rows


def scaled_files(with_policy: Mapping[str, bytes], without: Mapping[str, bytes]) -> dict[str, str]:
    """Files of targets that a policy changes, by path, autoscalers' own first."""
    changed = {
        path: data.decode(errors="replace")
        for path, data in with_policy.items()
        if path.startswith("targets/") and without.get(path) != data
    }
    return dict(sorted(changed.items(), key=lambda item: (item[0] in without, item[0])))


def scaling_rows(scaling: Json) -> dict[str, str]:
    """The parameters of a policy that are stated, as names and texts."""
    stated = Scaling.model_validate(scaling)
    least, most = stated.min_replicas, stated.max_replicas
    rows = {"Replicas": f"{least} to {most}" if least != most else f"{least}"}
    for trigger in stated.triggers:
        rows[f"Target of {METRICS[trigger.metric]}"] = f"{plain(trigger.target)} a replica"
    rows |= _times(stated)
    for name, text in (("tolerance", "Tolerance"), ("headroom", "Headroom")):
        if (value := getattr(stated, name)) is not None:
            rows[text] = f"{value:.0%}"
    for way, text in (("up", "Added at most"), ("down", "Ended at most")):
        step, period = getattr(stated, f"{way}_step"), getattr(stated, f"{way}_period_s")
        if step is not None:
            within = f" in {time_text(period)}" if period else ""
            rows[text] = f"{step} replica{'s' * (step != 1)}{within}"
    if stated.periods:
        rows["Periods"] = "; ".join(
            f"{moment(0, one.from_hour)} to {_end(one.to_hour)}: {one.replicas}"
            for one in stated.periods
        )
    return rows


def _end(hour: int) -> str:
    """The end of a period: midnight is that of the day that it ends."""
    return f"{DAYS[(hour - 1) // 24]} 24:00" if hour % 24 == 0 else moment(0, hour)


def _times(stated: Scaling) -> dict[str, str]:
    names = {
        "interval_s": "Looks every",
        "window_s": "Averages over",
        "up_delay_s": "Waits before it adds",
        "down_delay_s": "Waits before it ends",
        "idle_s": "Ends the last one after",
        "lead_s": "Orders ahead by",
    }
    values = {text: getattr(stated, name) for name, text in names.items()}
    return {text: time_text(value) for text, value in values.items() if value is not None}


def phase_rows(start: Json) -> list[dict[str, str]]:
    """The phases of a cold start."""
    return [
        {
            "Phase": phase["name"].replace("_", " ").capitalize(),
            "Time": time_text(phase["seconds"]),
            "Likely": f"{time_text(phase['low_s'])} to {time_text(phase['high_s'])}",
            "Basis": phase["basis"],
        }
        for phase in start["phases"]
    ]


def savings(start: Json) -> list[tuple[str, dict[str, Any]]]:
    """What shortens a cold start by how much, and the change of a request that says so."""
    out = []
    for saving in start["savings"]:
        seconds = saving.get("seconds", saving.get("seconds_saved"))
        field, _, value = saving["change"].partition(": ")
        text = f"{saving['text'][0].upper()}{saving['text'][1:]}: {time_text(seconds)} shorter"
        out.append((text, {f"options.start.{field}": value}))
    return out


def start_of(plan: Plan, row: int) -> Json:
    """A cold start of one replica of a row."""
    start, _ = setup.start_of(plan, row)
    return start.to_json()


def days_of(load: Json) -> dict[str, tuple[float, float]]:
    """The whole of a load and each of its days, as seconds from and to."""
    span, first = float(load["span_s"]), load["start_hour"] * HOUR_S
    whole = {"Whole": (0.0, span)}
    end = DAY_S - first % DAY_S
    begin = 0.0
    while begin < span and span > DAY_S:
        whole[day_title(begin, first)] = (begin, min(end, span))
        begin, end = end, end + DAY_S
    return whole


def day_title(begin_s: float, first_s: float) -> str:
    """The name of a day of a load, with its week from the second one on."""
    day = int((first_s + begin_s) // DAY_S)
    week = day // 7
    return f"{DAYS[day % 7]}{f', week {week + 1}' if week else ''}"
