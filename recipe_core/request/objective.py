"""The objective: what counts, and the limits that come before it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Count, Positive
from recipe_core.request.metrics import Goal

# Kinds of benchmark that accuracy is of.
JudgedOn = Literal[
    "mean",
    "knowledge",
    "math",
    "code",
    "commonsense",
    "reasoning",
    "instruction",
    "long-context",
    "perplexity",
]

Orientation = Literal["latency", "balanced", "throughput"]

# The probability with which limits must hold unless a request states another, and the one from
# which a run is said to start.
SURE = 0.8
# The confidence at which estimates themselves are held against limits.
BY_ESTIMATE = 0.5

# Goals that more requests in flight are good for.
GAIN_FROM_LOAD: frozenset[Goal] = frozenset({"throughput", "cost", "energy"})


class Limits(DescribedModel):
    """The limits of an acceptable plan. A limit left out does not bind."""

    ttft_ms: Positive | None = None
    """Longest mean time to first token, queueing included, in milliseconds; the percentile's where
    ``percentile`` is set."""

    tpot_ms: Positive | None = None
    """Longest mean time per output token, in milliseconds; the percentile's where ``percentile`` is
    set."""

    request_latency_ms: Positive | None = None
    """Longest mean time from a request's arrival to its last token, in milliseconds; the
    percentile's where ``percentile`` is set."""

    usd_per_hour: Positive | None = None
    """Highest price of all devices used, in US dollars per hour."""

    usd_per_million_output_tokens: Positive | None = None
    """Highest price of a million output tokens, in US dollars."""

    wall_hours: Positive | None = None
    """Longest time to finish, in hours: of a training run with ``workload.tokens``, failures
    included, or of the requests of ``mode: offline``."""

    usd: Positive | None = None
    """Highest cost of the whole, in US dollars: of a training run with ``workload.tokens``, or of
    the requests of ``mode: offline``."""

    joules_per_token: Positive | None = None
    """Highest energy in joules per output token, or per trained token."""

    watts: Positive | None = None
    """Highest power of all devices used, in watts."""

    gpus: Count | None = None
    """Most devices that may be used."""

    output_tokens_per_s_at_least: Positive | None = None
    """Lowest throughput of the whole deployment, in output tokens per second."""

    accuracy_recovery: Annotated[float, Field(gt=0, le=1)] | None = None
    """Lowest share of the accuracy of the model's unquantised checkpoint that number formats are
    expected to keep: 0.99 allows them to lose 1 %. A format of which nothing near is published
    does not keep it; a model published in a narrow format is its own base. Serving only."""

    percentile: Annotated[float, Field(ge=50, le=99.9)] | None = None
    """Percentile that the limits on times apply to: 95 bounds the time that 95 % of requests stay
    below. Left out, they apply to means. Percentiles are simulated request by request for the best
    layouts, which takes some seconds."""


class Objective(DescribedModel):
    """The quantity to optimise, and the limits that come first."""

    optimize: Goal = "throughput"
    """What counts most: ``throughput`` (tokens per second), ``latency`` (of a whole request),
    ``ttft`` (time to first token), ``tpot`` (time per output token), ``cost`` (per token), ``gpus``
    (fewest devices), ``energy`` (per token) or ``accuracy`` (what number formats keep of the
    base's). ``weights`` and ``orientation`` go before it."""

    weights: dict[Goal, Annotated[float, Field(gt=0, le=100)]] = {}
    """Several goals at once, each with a weight up to 100: their quantities are multiplied, each to
    the power of its weight. That of ``accuracy`` is the lost share plus 2 %, about the noise of a
    published score: with equal weights, losing the first 2 % counts as much as twice the cost. Not
    together with ``orientation``."""

    orientation: Orientation | None = None
    """Weights by name: ``latency`` (time per output token first), ``throughput`` (tokens per device
    first) or ``balanced`` (both alike). Not together with ``weights``."""

    limits: Limits = Limits()
    """Limits that an acceptable plan must keep."""

    accuracy_of: JudgedOn = "mean"
    """Kind of benchmark that accuracy is of: ``mean`` of all tasks, ``knowledge``, ``math``,
    ``code``, ``commonsense``, ``reasoning``, ``instruction`` (following), ``long-context`` or
    ``perplexity`` (which rises much sooner than tasks suffer). Serving only."""

    confidence: Annotated[
        Annotated[float, Field(ge=BY_ESTIMATE, le=0.99)] | None,
        Field(json_schema_extra={"default": SURE}),
    ] = None
    """Probability with which all limits must hold, if the plan were measured; by the calibrated
    intervals of the estimates. Left out, 0.8. With 0.5, estimates themselves are held against the
    limits, about the median of what is measured: a coin toss where one just keeps them."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.weights and self.orientation is not None:
            raise ValueError("takes weights or an orientation, not both")
        return self

    @property
    def required_confidence(self) -> float:
        """Return the probability with which limits must hold: the one stated, or the usual one."""
        return SURE if self.confidence is None else self.confidence

    @property
    def judges_by_estimate(self) -> bool:
        """Return whether estimates themselves are held against the limits, however unsure."""
        return self.required_confidence <= BY_ESTIMATE

    @property
    def goals(self) -> dict[Goal, float]:
        """Return what counts, with its weight."""
        weights: dict[Orientation, dict[Goal, float]] = {
            "latency": {"tpot": 3.0, "ttft": 1.0, "cost": 1.0},
            "balanced": {"tpot": 1.0, "cost": 1.0},
            "throughput": {"cost": 3.0, "tpot": 1.0},
        }
        if self.orientation:
            return weights[self.orientation]
        return self.weights or {self.optimize: 1.0}
