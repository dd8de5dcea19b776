"""The answer of ``recipe simulate``: policies side by side, and bounds of any policy.

SI units, in the names. Series are means over intervals that are long enough for some hundred
points.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from recipe_core.base.documented import DESCRIBED
from recipe_core.request.scaling import Scaling

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = DESCRIBED


class StartPhase(_Part):
    """A part of a cold start."""

    name: str
    """What happens in it."""

    seconds: Amount
    """How long it takes, in seconds."""

    low_s: Amount
    """Lower end of its 80 % band, in seconds."""

    high_s: Amount
    """Upper end of its 80 % band, in seconds."""

    basis: str
    """What the figure rests on."""


class Saving(_Part):
    """A change that shortens a cold start."""

    change: str
    """Field of ``options.start`` and its value then."""

    text: str
    """What to do."""

    seconds: Amount
    """How much shorter a start is then, in seconds."""


class StartAnswer(_Part):
    """A cold start of one replica."""

    seconds: Amount
    """From the order of a replica until it answers, in seconds."""

    low_s: Amount
    """Lower end of the 80 % band, in seconds."""

    high_s: Amount
    """Upper end of the 80 % band, in seconds."""

    phases: tuple[StartPhase, ...] = ()
    """Its parts, one after the other."""

    savings: tuple[Saving, ...] = ()
    """What would shorten it, the largest saving first."""


class ServiceAnswer(_Part):
    """The service of one replica."""

    requests_per_s: Amount
    """Most requests per second that one replica serves within the limits, at the load's lengths."""

    slots: Number
    """Most requests that it runs at once."""


class LoadAnswer(_Part):
    """The load, from its beginning to its end."""

    source: str
    """Where it is from."""

    span_s: Amount
    """Its length, in seconds."""

    requests: Amount
    """Requests in it."""

    mean_rate_per_s: Amount
    """Requests per second, on average."""

    peak_rate_per_s: Amount
    """Requests per second in its busiest interval."""

    burstiness: Amount
    """Coefficient of variation of the gaps between requests within an interval."""

    input_tokens: Amount
    """Tokens of a mean prompt."""

    output_tokens: Amount
    """Tokens of a mean answer."""

    start_hour: Annotated[int, Field(ge=0, le=167)]
    """Hour of the week at which it begins, 0 is Monday at midnight."""

    interval_s: Amount
    """Length of an interval of the rates, in seconds."""

    rates_per_s: tuple[Amount, ...]
    """Requests per second in one interval after the other."""


class Band(_Part):
    """A share with its band."""

    value: Share
    """The share of all requests that keep every limit on time."""

    low: Share
    """The lowest of the repetitions, and with slow starts."""

    high: Share
    """The highest of the repetitions, and with quick starts."""


class WorstInterval(_Part):
    """The interval in which the fewest requests kept the limits."""

    at_s: Amount
    """Second at which it begins."""

    share: Share
    """Share of its requests that kept the limits."""

    seconds: Amount
    """Its length, in seconds."""


class ReplicaCounts(_Part):
    """The number of replicas, starting ones included."""

    min: Amount
    """Fewest."""

    mean: Amount
    """On average over the time."""

    max: Amount
    """Most."""


class Against(_Part):
    """The cost beside that of the bounds."""

    always_peak: Amount | None
    """Share of what the replicas for the peak, always running, cost."""

    clairvoyant: Amount | None
    """Multiple of what whoever knew all arrivals beforehand would pay."""


class Checked(_Part):
    """The worst hour once more, request by request."""

    attainment: Share
    """Share of its requests that kept the limits, request by request."""

    flow: Share
    """The same share in the simulation by flows."""

    requests: Number
    """Requests in it."""

    window: tuple[Amount, Amount]
    """From and to, in seconds of the load."""


class SeriesAnswer(_Part):
    """One number an interval."""

    interval_s: Amount
    """Length of an interval, in seconds."""

    arrived: tuple[Amount, ...]
    """Requests that arrived in it."""

    kept: tuple[Amount, ...]
    """Those of them that kept the limits."""

    ready: tuple[Amount, ...]
    """Replicas that answered, on average."""

    starting: tuple[Amount, ...]
    """Replicas that were starting, on average."""

    wanted: tuple[Amount, ...]
    """Replicas that the policy wanted, on average."""

    waiting: tuple[Amount, ...]
    """Requests that no engine had taken, on average."""

    running: tuple[Amount, ...]
    """Requests in the engines, on average."""

    ttft_s: tuple[Amount | None, ...]
    """Mean time to first token of those that arrived in it, in seconds; null where none did."""


class PolicyAnswer(_Part):
    """The behaviour of a policy over the whole time, and what that costs."""

    name: str
    """Its name."""

    scaling: Scaling | None
    """Its parameters, as ``options.scaling`` states them; null for a bound."""

    meets: bool
    """Whether the share of requests within the limits is at least the wanted one."""

    attainment: Band
    """Share of requests that keep every limit on time."""

    confidence: Share = 1.0
    """Share of the repetitions in which that is at least the wanted one."""

    replica_hours: Amount
    """Hours of replicas that are paid, starting ones included."""

    gpu_hours: Amount
    """Hours of devices that are paid, of whole machines where these are rented."""

    usd: Amount | None
    """Cost of the whole time, in US dollars; null without a price."""

    usd_per_month: Amount | None
    """Cost of a month of 365.25 / 12 days at this rate, in US dollars; null without a price."""

    worst_interval: WorstInterval
    """When the fewest requests kept the limits."""

    cold_starts: Amount
    """Replicas that were started after the beginning."""

    requests_delayed: Amount
    """Requests that waited because a replica was still starting."""

    replicas_lost: Amount
    """Replicas that failed or were reclaimed."""

    replicas: ReplicaCounts
    """Fewest, mean and most replicas."""

    against: Against
    """Its cost beside that of the bounds."""

    checked: Checked | None
    """Its worst hour request by request; null where it was not looked at."""

    series: SeriesAnswer
    """What happened, interval by interval."""


class Bounds(_Part):
    """The bounds that any policy can be held against."""

    always_peak: PolicyAnswer
    """As many replicas as the wanted share needs, running all the time."""

    clairvoyant: PolicyAnswer
    """The fewest replicas at every moment for whoever knows all arrivals beforehand."""


class OverTimeAnswer(_Part):
    """A deployment over time: what each policy of scaling reaches, and what it costs."""

    schema_version: Literal[1] = 1
    """Version of this document."""

    candidate: dict[str, Any]
    """The layout of one replica, as a request states it."""

    per_replica: dict[str, Number | Amount] = {}
    """What else of the request changes for one replica, by dotted field: its share of a load, and
    of a throughput, that were stated for all of them."""

    engine: str
    """The engine that serves."""

    devices_per_replica: Annotated[int, Field(ge=1)]
    """Devices of one replica."""

    usd_per_replica_hour: Amount | None
    """Price of the devices of one replica, in US dollars per hour; null where none is known."""

    price_basis: str | None
    """Where the price is from, and how it is counted for one replica."""

    service: ServiceAnswer
    """What one replica serves."""

    start: StartAnswer
    """A cold start of one replica."""

    load: LoadAnswer
    """The load."""

    limits: dict[str, Amount]
    """Limits on time that a request must keep, in seconds, by figure."""

    attainment_wanted: Share
    """Share of all requests that must keep the limits."""

    confidence_wanted: Share = 0.0
    """Share of the repetitions that must reach it: the objective's confidence."""

    best: str | None
    """Name of the cheapest policy that reaches the wanted share in so many repetitions; where none
    does, of the cheapest that reaches it; null where none reaches it at all."""

    policies: tuple[PolicyAnswer, ...]
    """Every policy with its best parameters, the best first."""

    bounds: Bounds
    """What any policy can be held against."""

    kv_tiers: tuple[dict[str, Any], ...] | None
    """What larger caches would hold of the prompts; null where the reuse is not known."""

    notes: tuple[str, ...]
    """What to know of these figures."""

    def policy(self, name: str) -> PolicyAnswer | None:
        return next((policy for policy in self.policies if policy.name == name), None)

    @property
    def chosen(self) -> PolicyAnswer | None:
        """The best policy; None where none reaches the wanted share."""
        return None if self.best is None else self.policy(self.best)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as the contract writes them."""
        out: dict[str, Any] = self.model_dump(mode="json")
        for policy in (*out["policies"], *out["bounds"].values()):
            if policy["scaling"] is not None:
                policy["scaling"] = Scaling.model_validate(policy["scaling"]).to_json()
        return out
