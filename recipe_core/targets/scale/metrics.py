"""What replicas are scaled by, as queries of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import Metrics
from recipe_core.engines.spec import engine_names
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.defaults import default_of
from recipe_core.targets.context import Context
from recipe_core.targets.monitoring.thresholds import engine_metrics
from recipe_core.targets.pod import object_name
from recipe_core.targets.scale.bounds import whole_seconds

# Seconds over which a rate is taken where no window is stated: two scrapes and more.
RATE_S = int(default_of("hpa", "rate_window_s"))
# Gauges of an engine that make up a metric.
_PARTS: dict[Metric, tuple[str, ...]] = {
    "waiting": ("waiting",),
    "running": ("running",),
    "in-flight": ("waiting", "running"),
    "kv-usage": ("kv_usage",),
}
_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_WINDOW = re.compile(r"\[(\d+)s\]")
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
    names = [getattr(metrics, part) if metrics else None for part in _PARTS[metric]]
    if None in names:
        raise NoAnswer(
            f"{context.engine} does not report {metric}.",
            field="options.scaling.triggers",
            hint=f"It reports {', '.join(reported_metrics(metrics)) or 'none of the metrics'}.",
        )
    return [str(name) for name in names]


def reported_metrics(metrics: Metrics | None) -> list[Metric]:
    """Metrics that an engine's gauges give."""
    if metrics is None:
        return []
    return [
        metric for metric, parts in _PARTS.items() if all(getattr(metrics, part) for part in parts)
    ]


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


def read_metric_query(text: str) -> tuple[Metric, int | None]:
    """The metric that a query asks for, and the window it averages over.

    A rate over the time that is taken where none is stated has no window.
    """
    window = _WINDOW.search(text)
    window_s = int(window[1]) if window else None
    metric = metric_of_gauges(_NAME.findall(text))
    if metric == "request-rate" and window_s == RATE_S:
        window_s = None
    return metric, window_s


def metric_of_gauges(words: Sequence[str]) -> Metric:
    """The metric that is the sum of an engine's gauges; without gauges, the rate of requests."""
    parts = {
        part
        for name in engine_names()
        for part in ("waiting", "running", "kv_usage")
        if getattr(engine_metrics(name), part, None) in words
    }
    for metric, gauges in _PARTS.items():
        if parts == set(gauges):
            return metric
    return "request-rate"
