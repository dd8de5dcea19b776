"""A simulation over time as sentences and columns, for terminal and page.

Answers are those of ``OverTimeAnswer.to_json``, as workers send them to pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.base import units
from recipe_core.base.units import chance_text, long_duration, percent_text, significant, trimmed
from recipe_core.request.over_time import DAY_S, HOUR_S, WEEK_S
from recipe_core.request.scaling import Period, Scaling
from recipe_core.request.split_key import split_name
from recipe_core.scaling.policies.rows import policy_rows
from recipe_core.views.columns import Column, terminal
from recipe_core.views.size_view import dollars, engine_title
from recipe_core.views.traces import request_rate, traffic_sentence

PHASES: tuple[Column[Json], ...] = (
    Column("Phase", lambda phase: phase["name"].replace("_", " ").capitalize(), align="left"),
    Column("Time", "seconds", long_duration),
    Column(
        "Likely",
        lambda phase: f"{long_duration(phase['low_s'])} to {long_duration(phase['high_s'])}",
        help="Eight of ten starts",
    ),
    Column("Basis", "basis", align="left"),
)


def start_text(candidate: Json, devices: int, start: Json) -> str:
    """The time of a start, its phases, and what single changes save."""
    lines = [
        f"{engine_title(candidate['engine'])} on {devices} device{'s' * (devices != 1)}. "
        + start_sentence(start),
        terminal(start["phases"], PHASES),
    ]
    savings = [(_saving_text(saving), saving["change"]) for saving in start["savings"]]
    if savings:
        lines.append("One change of options.start at a time:")
        lines += [f"  {text} ({change})" for text, change in savings]
    return "\n".join(lines)


def start_sentence(start: Json) -> str:
    """The time of a start with its band."""
    low, high = long_duration(start["low_s"]), long_duration(start["high_s"])
    return (
        f"A replica answers {long_duration(start['seconds'])} after it is ordered; "
        f"eight of ten starts take {low} to {high}."
    )


def start_savings(start: Json) -> list[tuple[str, dict[str, Any]]]:
    """Each saving, the largest first, and the change of a request that makes it."""
    changes = []
    for saving in start["savings"]:
        field, _, value = saving["change"].partition(": ")
        changes.append((_saving_text(saving), {f"options.start.{field}": value}))
    return changes


def _saving_text(saving: Json) -> str:
    text = saving["text"]
    return f"{text[0].upper()}{text[1:]}: {long_duration(saving['seconds_saved'])} shorter"


Json = Mapping[str, Any]
BOUND_TITLES = {"always_peak": "Always at peak", "clairvoyant": "Clairvoyant"}
BOUNDS = {
    "always_peak": "as many replicas as the busiest hour needs, all the time",
    "clairvoyant": "the fewest replicas at every moment for whoever knows all arrivals beforehand",
}
# Triggers of scaling.
METRICS = {
    "waiting": "waiting requests",
    "running": "running requests",
    "in-flight": "requests at once",
    "kv-usage": "share of the KV cache in use",
    "request-rate": "requests a second",
}
LIMITS = {
    "ttft_s": "first token",
    "tpot_s": "each further token",
    "request_latency_s": "whole answer",
}
SCALING_TIMES = {
    "interval_s": "Looks every",
    "window_s": "Averages over",
    "up_delay_s": "Waits before it adds",
    "down_delay_s": "Waits before it ends",
    "idle_s": "Ends the last one after",
    "lead_s": "Orders ahead by",
}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Periods of a schedule that are listed.
MAX_PERIODS = 12


def over_time_text(answer: Json) -> str:
    """The verdict, the policies side by side, and the parameters of the best one."""
    _, sentence = over_time_verdict(answer)
    lines = [f"{sentence}.", *scenario_sentences(answer)]
    lines.append(terminal(policies_and_bounds(answer), policy_columns(answer)))
    lines += _best_policy(answer)
    lines += [f"note: {note}" for note in answer["notes"]]
    return "\n".join(lines)


def _best_policy(answer: Json) -> Iterator[str]:
    policy = policies_by_name(answer).get(answer["best"])
    if policy is None:
        return
    yield f"{policy_title(policy['name'])}, as bundles write it:"
    for name, text in scaling_rows(policy["scaling"]).items():
        yield f"  {name}: {text}"
    if sentence := worst_hour_sentence(answer, policy):
        yield f"  {sentence}"


# --- words ---------------------------------------------------------------------------------------


def policy_title(name: str) -> str:
    titles: dict[str, str] = {policy: row.title for policy, row in policy_rows().items()}
    return (titles | BOUND_TITLES).get(name, name)


def week_time(at_s: float, start_hour: float = 0) -> str:
    """A second of a load as a time of the week: ``Tue 14:35``, of later weeks with its day."""
    since_monday = start_hour * HOUR_S + at_s
    day, rest = divmod(since_monday, DAY_S)
    minutes = int(rest // 60)
    later = f" (day {int(at_s // DAY_S) + 1})" if since_monday >= WEEK_S else ""
    return f"{DAYS[int(day) % 7]} {minutes // 60:02d}:{minutes % 60:02d}{later}"


def _replica_count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else significant(value, 2)


def _replica_span(policy: Json) -> str:
    low, high = (_replica_count(policy["replicas"][end]) for end in ("min", "max"))
    return low if low == high else f"{low} to {high}"


def policy_cost(policy: Json) -> str:
    """Dollars of a month; hours of devices where no price is known."""
    if policy["usd_per_month"] is not None:
        return f"{dollars(policy['usd_per_month'])} a month"
    return f"{significant(policy['gpu_hours'])} GPU-hours"


def attainment_band(policy: Json) -> str:
    """The likely range of the share of requests within the limits."""
    low, high = (percent_text(policy["attainment"][end]) for end in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def time_limits_text(ttft_ms: float, tpot_ms: float) -> str:
    """Two limits in few words: ``2 s, then 200 ms a token``."""
    return f"{long_duration(ttft_ms / 1e3)}, then {long_duration(tpot_ms / 1e3)} a token"


# --- sentences -----------------------------------------------------------------------------------


def policies_by_name(answer: Json) -> dict[str, Json]:
    """The policies of an answer, the best first."""
    return {policy["name"]: policy for policy in answer["policies"]}


def policies_and_bounds(answer: Json) -> list[Json]:
    """The policies of an answer, the best first, then both bounds."""
    return [*answer["policies"], *answer["bounds"].values()]


def over_time_verdict(answer: Json) -> tuple[bool, str]:
    """Tell if some policy keeps the limits, and name the cheapest that does, else the nearest."""
    best = policies_by_name(answer).get(answer["best"])
    if best is not None:
        return (
            True,
            f"{_best_words(answer, best)} {policy_title(best['name'])}: {policy_facts(best)}",
        )
    if not answer["policies"]:
        return False, "No policy was simulated"
    nearest = max(answer["policies"], key=lambda policy: float(policy["attainment"]["value"]))
    share = percent_text(nearest["attainment"]["value"])
    return False, (
        f"No policy keeps the limits for {percent_text(answer['attainment_wanted'])} of the "
        f"requests. Nearest is {policy_title(nearest['name'])} with {share}, "
        f"for {policy_cost(nearest)}"
    )


def _best_words(answer: Json, best: Json) -> str:
    """``Cheapest is``, or how sure the best is where that decides, or is less than wanted."""
    confidence = answer.get("confidence_wanted", 0.0)
    if _policy_confidence(best) < confidence:
        share = f"{chance_text(_policy_confidence(best))} of the repetitions keep the limits"
        return f"None is {chance_text(confidence)} sure; cheapest ({share}) is"
    cheaper = any(
        policy["meets"]
        and _policy_confidence(policy) < confidence
        and policy["gpu_hours"] < best["gpu_hours"]
        for policy in answer["policies"]
    )
    return f"Cheapest that is {chance_text(confidence)} sure is" if cheaper else "Cheapest is"


def _policy_confidence(policy: Json) -> float:
    """The share of repetitions that reach the wanted share; 1 in answers of earlier builds."""
    return float(policy.get("confidence", 1.0))


def policy_facts(policy: Json) -> str:
    """Cost, share within the limits, replicas, and the cost beside that of both bounds."""
    share = percent_text(policy["attainment"]["value"])
    facts = f"{policy_cost(policy)}, {share} within the limits, {_replica_span(policy)} replicas"
    against = policy["against"]
    beside = []
    if (peak := against.get("always_peak")) is not None:
        beside.append(f"{units.share_text(peak)} of what replicas for the peak cost")
    if against.get("clairvoyant") is not None:
        beside.append(f"{significant(against['clairvoyant'])} times the clairvoyant bound")
    return f"{facts}; {' and '.join(beside)}" if beside else facts


def _worst_time(answer: Json, policy: Json) -> str:
    worst = policy["worst_interval"]
    at = week_time(worst["at_s"], answer["load"]["start_hour"])
    return f"{at}: {percent_text(worst['share'])} of {long_duration(worst['seconds'])}"


def worst_hour_sentence(answer: Json, policy: Json) -> str:
    """The worst hour simulated request by request; empty where it was not."""
    checked = policy.get("checked")
    if not checked:
        return ""
    begin, end = checked["window"]
    return (
        f"Its worst {long_duration(end - begin)}, from "
        f"{week_time(begin, answer['load']['start_hour'])}, once more request by request: "
        f"{percent_text(checked['attainment'])} within the limits, "
        f"{percent_text(checked['flow'])} in the simulation of the whole time."
    )


def scenario_sentences(answer: Json) -> list[str]:
    """The limits, the replica, the load and the cold start that were simulated."""
    limits = [
        f"{LIMITS[name]} in {long_duration(value)}" for name, value in answer["limits"].items()
    ]
    devices, price = answer["devices_per_replica"], answer["usd_per_replica_hour"]
    cost = "" if price is None else f", for {dollars(price)} an hour"
    served = request_rate(answer["service"]["requests_per_s"])
    return [
        f"{percent_text(answer['attainment_wanted'])} of all requests: {', '.join(limits)}.",
        f"One replica is {engine_title(answer['engine'])} with {split_name(answer['candidate'])} "
        f"on {devices} device{'s' * (devices != 1)}{cost}. It serves {served} within the limits.",
        traffic_sentence(answer["load"]),
        start_sentence(answer["start"]),
    ]


# --- tables --------------------------------------------------------------------------------------


def policy_columns(answer: Json) -> list[Column[Json]]:
    """Columns of the policies and bounds of an answer."""
    required = percent_text(answer["attainment_wanted"])

    def keeps(policy: Json) -> str:
        if policy["scaling"] is None:
            return "bound"
        return "yes" if policy["meets"] else "no"

    return [
        Column("Policy", lambda policy: policy_title(policy["name"]), align="left"),
        Column("Keeps limits", keeps, align="left", help=f"For {required} of the requests"),
        Column("$ a month", "usd_per_month", "{:,.0f}".format),
        Column(
            "GPU-hours", "gpu_hours", lambda hours: significant(hours, 4), help="Of the whole time"
        ),
        Column(
            "Within limits",
            "attainment.value",
            percent_text,
            help="Share of requests that keep every limit on time",
        ),
        Column("Likely", attainment_band, help="The lowest and the highest of the repetitions"),
        Column(
            "Sure",
            lambda policy: chance_text(_policy_confidence(policy)),
            help=f"Repetitions in which at least {required} of the requests keep the limits",
        ),
        Column("Replicas", _replica_span, help="Fewest and most"),
        Column(
            "Cold starts",
            "cold_starts",
            "{:,.0f}".format,
            help="Replicas started after the beginning",
        ),
        Column(
            "Worst time",
            lambda policy: _worst_time(answer, policy),
            help="When the fewest requests kept the limits",
        ),
        Column("Of peak cost", "against.always_peak", units.share_text, help=BOUNDS["always_peak"]),
        Column("× clairvoyant", "against.clairvoyant", "{:.2f}".format, help=BOUNDS["clairvoyant"]),
    ]


def outcome_rows(answer: Json, policy: Json) -> dict[str, str]:
    """Figures of one policy, by their titles."""
    rows = {column.title: column.text(policy) for column in policy_columns(answer)[1:]}
    rows["Replicas on average"] = _replica_count(policy["replicas"]["mean"])
    rows["Requests that waited for one"] = f"{policy['requests_delayed']:,.0f}"
    rows["Replicas lost"] = f"{policy['replicas_lost']:,.0f}"
    return rows


def scaling_rows(scaling: Json) -> dict[str, str]:
    """The parameters of a policy that are stated, by their titles."""
    policy = Scaling.model_validate(scaling)
    low, high = policy.min_replicas, policy.max_replicas
    rows = {"Replicas": f"{low} to {high}" if low != high else f"{low}"}
    for trigger in policy.triggers:
        rows[f"Target of {METRICS[trigger.metric]}"] = f"{trimmed(trigger.target)} a replica"
    for name, title in SCALING_TIMES.items():
        if (seconds := getattr(policy, name)) is not None:
            rows[title] = long_duration(seconds)
    for name, title in (("tolerance", "Tolerance"), ("headroom", "Headroom")):
        if (share := getattr(policy, name)) is not None:
            rows[title] = units.share_text(share)
    for direction, title in (("up", "Added at most"), ("down", "Ended at most")):
        step, period_s = (
            getattr(policy, f"{direction}_step"),
            getattr(policy, f"{direction}_period_s"),
        )
        if step is not None:
            within = f" in {long_duration(period_s)}" if period_s else ""
            rows[title] = f"{step} replica{'s' * (step != 1)}{within}"
    if policy.periods:
        periods = [_period_text(period) for period in policy.periods[:MAX_PERIODS]]
        more = len(policy.periods) - MAX_PERIODS
        rows["Periods"] = "; ".join(periods + [f"and {more} more"] * (more > 0))
    return rows


def _period_text(period: Period) -> str:
    end_hour = period.to_hour
    # midnight at the end of a period is that of the day that it ends
    end = f"{DAYS[(end_hour - 1) // 24]} 24:00" if end_hour % 24 == 0 else week_time(0, end_hour)
    return f"{week_time(0, period.from_hour)} to {end}: {period.replicas}"


def scaled_files(with_policy: Mapping[str, bytes], without: Mapping[str, bytes]) -> dict[str, str]:
    """Files of targets that a policy changes, by path, autoscalers' own first."""
    changed = {
        path: data.decode(errors="replace")
        for path, data in with_policy.items()
        if path.startswith("targets/") and without.get(path) != data
    }
    return dict(sorted(changed.items(), key=lambda item: (item[0] in without, item[0])))


def days_of_load(load: Json) -> dict[str, tuple[float, float]]:
    """The whole of a load and each of its days, as seconds from and to."""
    span, first = float(load["span_s"]), load["start_hour"] * HOUR_S
    windows = {"Whole": (0.0, span)}
    begin, end = 0.0, DAY_S - first % DAY_S
    while begin < span and span > DAY_S:
        week, weekday = divmod(int((first + begin) // DAY_S), 7)
        title = DAYS[weekday] + (f", week {week + 1}" if week else "")
        windows[title] = (begin, min(end, span))
        begin, end = end, end + DAY_S
    return windows
