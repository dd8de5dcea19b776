"""A scaling policy in a target: how many servers, by which queries of Prometheus."""

from __future__ import annotations

from collections.abc import Collection

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.launch.process import Launch
from recipe_core.recipe.place import Parameters
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.rows import (
    GAUGE_PARTS,
    default_of,
    policy_row,
    replica_bounds_of,
    reported_metrics,
)
from recipe_core.targets.context import Context
from recipe_core.targets.layout import Unit, has_independent_servers, launch_units
from recipe_core.targets.monitoring import engine_metrics
from recipe_core.targets.pod import object_name

_ALWAYS = {"policy", "min_replicas", "max_replicas"}
# Kubernetes reads targets to a thousandth (``MilliValue``).
GRAIN = 1000


def in_copies(context: Context, unit: Unit, replicas: int) -> int:
    """Pods (or groups of pods) of a unit for a number of replicas.

    A replica is one independent server, or all pools of a recipe together.
    """
    return replicas if has_independent_servers(context.launch) else unit.copies * replicas


def fewest_copies(context: Context, unit: Unit) -> int:
    """Fewest pods (or groups of pods) of a unit; 0 where its last one may end."""
    if context.scaling is None:
        return unit.copies * context.parameters.min_replicas
    return in_copies(context, unit, fewest_replicas(context.scaling))


def most_copies(context: Context, unit: Unit) -> int:
    """Most pods (or groups of pods) of a unit."""
    if context.scaling is None:
        return unit.copies * context.parameters.max_replicas
    return in_copies(context, unit, context.scaling.max_replicas)


def fewest_replicas(scaling: Scaling) -> int:
    """Fewest replicas; all of them where their number is fixed."""
    return replica_bounds_of(scaling)[0]


def refuse_other_bounds(scaling: Scaling, parameters: Parameters, launch: Launch) -> None:
    """Refuse deployment settings that would change the number of replicas.

    Raises:
        InputError: where they are stated and are not the policy's.
    """
    bounds = (parameters.min_replicas, parameters.max_replicas)
    defaults = Parameters()
    if bounds == (defaults.min_replicas, defaults.max_replicas):
        return
    copies = launch_units(launch)[0].copies if has_independent_servers(launch) else 1
    if tuple(copies * number for number in bounds) == (
        fewest_replicas(scaling),
        scaling.max_replicas,
    ):
        return
    raise InputError(
        f"min_replicas {bounds[0]} and max_replicas {bounds[1]} of the deployment settings are "
        f"{copies * bounds[0]} to {copies * bounds[1]} servers; options.scaling has "
        f"{fewest_replicas(scaling)} to {scaling.max_replicas}.",
        field="parameters.min_replicas",
        hint="Leave min_replicas and max_replicas out, or change options.scaling.",
    )


def refuse_policy(scaling: Scaling, target: str, where: str) -> None:
    """Refuse a policy whose row has no such target, so that ``where`` does not run it.

    Raises:
        NoAnswer: it says what writes the policy.
    """
    if target not in policy_row(scaling.policy).targets:
        raise NoAnswer(
            f"the chosen policy is {scaling.policy}, which {where} does not run: "
            f"{policy_row(scaling.policy).written}.",
            field="options.scaling.policy",
        )


def refuse_fields(scaling: Scaling, where: str, lacking: Collection[str] = ()) -> None:
    """Refuse what ``where`` cannot be told: all but the fields of the policy's row.

    Raises:
        NoAnswer: for the first such field that is stated, or one of ``lacking``.
    """
    row = policy_row(scaling.policy)
    for name in stated_fields(scaling):
        if name not in (*row.fields, *["triggers"] * bool(row.metrics)) or name in lacking:
            raise NoAnswer(
                f"{where} cannot be told {name}.",
                field=f"options.scaling.{name}",
                hint=f"Leave {name} out, or choose another policy.",
            )


def stated_fields(scaling: Scaling) -> list[str]:
    """Fields of a policy beside its name and bounds that are stated, in their order."""
    return [
        name
        for name in Scaling.model_fields
        if name not in _ALWAYS and getattr(scaling, name) not in (None, ())
    ]


def whole_seconds(scaling: Scaling, name: str, *, most_s: int | None = None) -> int | None:
    """A time in whole seconds; None where it is not stated.

    Raises:
        NoAnswer: for a fraction of a second, and for more than ``most_s``.
    """
    value: float | None = getattr(scaling, name)
    if value is None:
        return None
    if not float(value).is_integer():
        raise NoAnswer(
            f"{name} is {value:g} s, and Kubernetes takes whole seconds.",
            field=f"options.scaling.{name}",
            hint=f"Set {round(value)}.",
        )
    if most_s is not None and value > most_s:
        raise NoAnswer(
            f"{name} is {value:g} s; at most {most_s} s can be written.",
            field=f"options.scaling.{name}",
            hint=f"Set at most {most_s}.",
        )
    return int(value)


def shortest_number(value: float) -> str:
    """A number as its shortest text: whole ones without a fraction, none with an exponent."""
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.12f}".rstrip("0") if value < 1e-4 else repr(float(value))


def grain_target(value: float, field: str) -> str:
    """A target as Kubernetes reads it.

    Raises:
        NoAnswer: where it is finer than a thousandth, to which it would be rounded.
    """
    rounded = round(value * GRAIN) / GRAIN
    if abs(rounded - value) > 1e-9 * value:
        nearest = max(rounded, 1 / GRAIN)
        raise NoAnswer(
            f"{value!r} is finer than a thousandth, to which Kubernetes rounds it.",
            field=field,
            hint=f"Set {nearest:g}.",
        )
    return shortest_number(rounded)


# Seconds over which a rate is taken where no window is stated: two scrapes and more.
RATE_S = int(default_of("hpa", "rate_window_s"))
_EXAMPLE = 'gateway_metric: nginx_ingress_controller_requests{ingress="llm"}'


def triggers_of(scaling: Scaling) -> tuple[Trigger, ...]:
    """The policy's triggers.

    Raises:
        NoAnswer: where it has none.
    """
    if not scaling.triggers:
        raise NoAnswer(
            f"policy {scaling.policy} scales by a metric, and none is stated.",
            field="options.scaling.triggers",
            hint="Add one, such as {metric: in-flight, target: 32}; "
            "`recipe simulate` searches its value.",
        )
    return scaling.triggers


def only_trigger(scaling: Scaling, where: str) -> Trigger | None:
    """The trigger of a policy that knows one metric; None where its own default applies.

    Raises:
        NoAnswer: where several are stated.
    """
    if len(scaling.triggers) > 1:
        raise NoAnswer(
            f"{where} scales by one metric; {len(scaling.triggers)} are stated.",
            field="options.scaling.triggers",
            hint="Leave one.",
        )
    return scaling.triggers[0] if scaling.triggers else None


def engine_gauges(context: Context, metric: Metric) -> list[str]:
    """Names of the engine's gauges that a metric is the sum of.

    Raises:
        NoAnswer: where the engine does not report one of them.
    """
    metrics = engine_metrics(context.engine)
    names = [getattr(metrics, part) if metrics else None for part in GAUGE_PARTS[metric]]
    if None in names:
        raise NoAnswer(
            f"{context.engine} does not report {metric}.",
            field="options.scaling.triggers",
            hint=f"It reports {', '.join(reported_metrics(metrics)) or 'none of the metrics'}.",
        )
    return [str(name) for name in names]


def gateway_counter(context: Context, why: str) -> str:
    """The counter of requests at the gateway.

    Raises:
        NoAnswer: where the deployment settings have none.
    """
    counter = context.parameters.gateway_metric
    if counter is None:
        raise NoAnswer(
            f"{why} Only what stands before the servers can count them.",
            field="parameters.gateway_metric",
            hint=f"Set the counter of requests at the gateway, such as {_EXAMPLE}",
        )
    return counter


def metric_query(context: Context, metric: Metric, window_s: int | None = None) -> str:
    """A metric of all replicas together; averaged over ``window_s`` where that is stated.

    Raises:
        NoAnswer: where the engine, or the gateway, does not report it.
    """
    if metric == "request-rate":
        counter = gateway_counter(
            context, f"{context.engine} counts requests when they end, not arrivals."
        )
        return request_rate_query(counter, window_s or RATE_S)
    sums = []
    for name in engine_gauges(context, metric):
        value = select_pods(context, name)
        sums.append(f"sum(avg_over_time({value}[{window_s}s]))" if window_s else f"sum({value})")
    return " + ".join(sums)


def request_rate_query(counter: str, window_s: int) -> str:
    """Requests per second of a counter, over a window."""
    return f"sum(rate({counter}[{window_s}s]))"


def engaged_terms(context: Context) -> list[str]:
    """Terms of a query that count what the engines hold: 0 where no replica reports."""
    metrics = engine_metrics(context.engine)
    names = [metrics.waiting, metrics.running] if metrics else []
    return [f"(sum({select_pods(context, name)}) or vector(0))" for name in names if name]


def select_pods(context: Context, name: str) -> str:
    """A series of the recipe's own pods."""
    pods = f"{object_name(context)}-.*"
    return f'{name}{{namespace="{context.parameters.namespace}",pod=~"{pods}"}}'


def averaging_window_s(scaling: Scaling) -> int | None:
    """The window of averages in whole seconds; None where metrics are taken as they are.

    Raises:
        NoAnswer: for a fraction of a second.
    """
    window_s = whole_seconds(scaling, "window_s")
    return window_s or None
