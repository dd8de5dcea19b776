"""The number of replicas at each moment: a policy of an autoscaler, with its parameters.

What is left out is the default of the policy's own project (``recipe_core/scaling/policies/``). The
same object is simulated, and written into the bundle's objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError, look_up
from recipe_core.base.types import Positive

Policy = Literal[
    "fixed",
    "schedule",
    "predictive",
    "hpa",
    "keda",
    "kpa",
    "skyserve",
    "ray-serve",
    "dynamo",
    "llm-d",
]
POLICIES: tuple[Policy, ...] = get_args(Policy)
Metric = Literal["waiting", "running", "in-flight", "kv-usage", "request-rate"]
MOST_REPLICAS = 4096
Replicas = Annotated[int, Field(ge=0, le=MOST_REPLICAS)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Step = Annotated[int, Field(ge=1, le=4096)]

# Policies that can end the last replica.
TO_ZERO = ("schedule", "predictive", "keda", "kpa", "skyserve", "ray-serve", "llm-d")


class Trigger(DescribedModel):
    """A figure that replicas are scaled by, and its target for one replica."""

    metric: Metric
    """What is measured: requests that wait (``waiting``) or run (``running``), both
    (``in-flight``), the share of the cache in use (``kv-usage``), or requests per second
    (``request-rate``)."""

    target: Positive
    """Its value for one replica at which their number is right."""


class Period(DescribedModel):
    """A part of the week with a number of replicas of its own."""

    from_hour: Annotated[int, Field(ge=0, le=167)]
    """First hour of the week, 0 is Monday at midnight."""

    to_hour: Annotated[int, Field(ge=1, le=168)]
    """Hour of the week at which it ends; not after midnight of Sunday."""

    replicas: Replicas
    """Replicas that run then."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.from_hour >= self.to_hour:
            raise ValueError(f"to_hour {self.to_hour} is not after from_hour {self.from_hour}")
        return self


class Scaling(DescribedModel):
    """A policy and its parameters. A replica is one server: what answers at one address."""

    policy: Policy = "keda"
    """Whose rule: a ``fixed`` number, a ``schedule``, a forecast (``predictive``), Kubernetes'
    ``hpa``, ``keda``, Knative's ``kpa``, ``skyserve``, ``ray-serve``, Dynamo's planner
    (``dynamo``) or the workload variant autoscaler of ``llm-d``."""

    min_replicas: Replicas = 1
    """Fewest replicas; 0 ends the last one when nothing comes."""

    max_replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Most replicas."""

    begin_replicas: Replicas | None = None
    """Replicas when the time begins; left out, those that its first load needs."""

    triggers: Annotated[tuple[Trigger, ...], Field(max_length=5)] = ()
    """What replicas are scaled by; of several the one that asks for most counts. Policies that know
    only one metric take the first."""

    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None
    """Distance from the target within which nothing changes, as a share of it."""

    interval_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Time from one look to the next, in seconds."""

    window_s: Seconds | None = None
    """Time over which a metric is averaged, in seconds."""

    up_delay_s: Seconds | None = None
    """Time for which more replicas must be asked for before they are ordered, in seconds."""

    down_delay_s: Seconds | None = None
    """Time for which fewer must be asked for before they are ended, in seconds."""

    up_step: Step | None = None
    """Replicas that are added within ``up_period_s`` at most."""

    up_period_s: Annotated[int, Field(ge=1, le=1800)] | None = None
    """Time that ``up_step`` is for, in seconds."""

    down_step: Step | None = None
    """Replicas that are ended within ``down_period_s`` at most."""

    down_period_s: Annotated[int, Field(ge=1, le=1800)] | None = None
    """Time that ``down_step`` is for, in seconds."""

    idle_s: Seconds | None = None
    """Time without a request after which the last replica ends, in seconds; where ``min_replicas``
    is 0."""

    periods: Annotated[tuple[Period, ...], Field(max_length=168)] = ()
    """Parts of the week with a number of replicas of their own, for ``schedule``; ``min_replicas``
    run at other times."""

    lead_s: Seconds | None = None
    """How far ahead of its load a replica is ordered, in seconds, for ``predictive``; left out, the
    time of a cold start."""

    headroom: Annotated[float, Field(ge=0, le=4)] | None = None
    """Share of replicas beyond those that the forecast needs, for ``predictive`` and
    ``dynamo``."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} is more than max_replicas {self.max_replicas}"
            )
        if self.begin_replicas is not None and self.begin_replicas > self.max_replicas:
            raise ValueError(
                f"begin_replicas {self.begin_replicas} is more than max_replicas "
                f"{self.max_replicas}"
            )
        if self.min_replicas == 0 and self.policy not in TO_ZERO:
            able = ", ".join(TO_ZERO)
            raise ValueError(f"policy {self.policy} never ends the last replica; {able} can")
        if self.policy == "schedule" and not self.periods:
            raise ValueError("policy schedule needs periods")
        largest = max((period.replicas for period in self.periods), default=0)
        if largest > self.max_replicas:
            raise ValueError(
                f"a period has {largest} replicas, max_replicas is {self.max_replicas}"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        return {"policy": self.policy} | self.model_dump(mode="json", exclude_defaults=True)


def policies_named(names: Any) -> tuple[Policy, ...] | None:
    """Policies by their names, each once, in the order given; None for None.

    Raises:
        InputError: for what is no list of their names.
    """
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(
            "is not a list of names.", field="policies", hint=f"Available: {', '.join(POLICIES)}."
        )
    out: list[Policy] = []
    for name in names:
        policy = look_up("policy", name, {policy: policy for policy in POLICIES}, "policies")
        if policy not in out:
            out.append(policy)
    if not out:
        raise InputError("names no policy.", field="policies", hint="Leave it out for all.")
    return tuple(out)
