"""The load of a serving deployment over hours, weeks and months."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Positive, Text, Tokens


class Start(DescribedModel):
    """The place where a start begins, and what shortens it."""

    node: Literal["new", "ready"] = "new"
    """Whether a node has to be provisioned first, as in an autoscaled cluster of a cloud."""

    image: Literal["pull", "streamed", "cached"] | None = None
    """How the node gets the image: it pulls it, streams it, or has it (``cached``); left out,
    ``pull`` on a new node and ``cached`` on a ready one."""

    weights: Text | None = None
    """Where weights are read from: a storage tier (``hw_profiles/storage/``), ``hub``, ``tmpfs``
    (or a warm page cache), ``peer`` or ``disk`` (of unknown speed); left out, the hub on a new node
    and ``disk`` on a ready one."""

    loader: Literal["default", "streamer", "fastsafetensors", "instanttensor"] = "default"
    """What reads the weights: the engine's own loader, or one that reads in parallel."""

    compile_cache: bool = False
    """Whether compiled code of an earlier start is there."""

    wake: Literal["cold", "sleep-1", "sleep-2", "snapshot"] = "cold"
    """What is waked: nothing (``cold``), an engine that sleeps with its weights in the host's
    memory (``sleep-1``) or without (``sleep-2``), or a snapshot of the process."""

    extra_s: Positive | None = None
    """Seconds that a start takes beside these phases, as measured in the user's own place."""


Dispatch = Literal["least-loaded", "round-robin"]
"""How a router gives requests to replicas that are ready."""

Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class Simulated(DescribedModel):
    """The result of simulating ``options.scaling``; ``recipe simulate -o`` writes it."""

    of: Text
    """Digest of what was simulated: model, device, layout, load, limits on time, policy and start.
    Of a request that was changed since, the figures are not repeated."""

    min_replicas: Amount
    """Fewest replicas that there were, starting ones included."""

    mean_replicas: Amount
    """Replicas on average over the time."""

    max_replicas: Amount
    """Most replicas that there were."""

    device_hours_per_month: Amount
    """Hours of devices that are paid in a month of 365.25 / 12 days."""

    attainment: Annotated[float, Field(ge=0, le=1)]
    """Share of requests that kept every limit on time."""


HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
# Two weeks by the minute.
MOST_RATES = 20_160

Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class LengthPoint(DescribedModel):
    """Some of the requests: how long their prompts and answers are, and how many they are."""

    input_tokens: Tokens
    """Length of their prompts, in tokens."""

    output_tokens: Tokens
    """Length of their answers, in tokens."""

    weight: Positive = 1.0
    """How many requests they stand for, in any unit."""


class OverTime(DescribedModel):
    """The arrival of requests: a named shape, rates by the hour, or what a trace showed."""

    shape: Text | None = None
    """Published shape of a week, by name (``recipe trace --shapes`` lists them): relative rates,
    scaled to ``mean_rate``. Instead of ``rates``."""

    rates: Annotated[tuple[Rate, ...], Field(max_length=MOST_RATES)] = ()
    """Requests per second in intervals of ``interval_s``, one after the other; 24 of an hour are a
    day, 168 a week. They repeat until ``days`` are over. Instead of ``shape``."""

    interval_s: Annotated[float, Field(ge=1, le=DAY_S)] = HOUR_S
    """Length of an interval of ``rates``, in seconds."""

    mean_rate: Positive | None = None
    """Requests per second on average over the shape or the rates, which are scaled to it; left out,
    ``rates`` are as they are. Needed by ``shape``."""

    start_hour: Annotated[int, Field(ge=0, le=167)] = 0
    """Hour of the week at which the time begins, 0 is Monday at midnight; for ``shape``."""

    days: Annotated[float, Field(gt=0, le=366)] = 7.0
    """Time that is looked at, in days."""

    growth_per_month: Annotated[float, Field(gt=-1, le=10)] = 0.0
    """Growth of the rate in 30 days, as a share: 0.1 is ten percent a month."""

    burstiness: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Coefficient of variation of the gaps between requests within an interval: 1 is Poisson,
    clients of production services have 1.5 to 5."""

    lengths: Annotated[tuple[LengthPoint, ...], Field(max_length=1024)] = ()
    """Lengths of prompts and answers together, as a trace has them; left out, those of the workload
    with their spreads."""

    attainment: Annotated[float, Field(ge=0.5, le=0.9999)] = 0.99
    """Share of all requests that must keep the objective's limits on time."""

    source: Text | None = None
    """Where the rates are from, for people."""

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if bool(self.shape) == bool(self.rates):
            raise ValueError("needs either shape or rates")
        if self.shape and self.mean_rate is None:
            raise ValueError("shape needs mean_rate: requests per second on average")
        if self.rates and not any(self.rates):
            raise ValueError("rates are all 0; state one that is not")
        return self

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)
