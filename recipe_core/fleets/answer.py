"""The answer of a fleet as plain values: who runs where, what is rented, and what it costs.

Every door, page and export takes these; ``to_json`` is the contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from recipe_core.fleets.request import FleetRequest, Goal, Term
from recipe_core.hardware.prices import price_month

SCHEMA_VERSION = 1
# ``optimal`` within the gap that was asked for, ``feasible`` where time or the caller ended the
# search before, ``partial`` where some load is not served, because not all of it can be.
Status = Literal["optimal", "feasible", "partial"]
# By period; a fleet without periods has one, "all".
ByPeriod = Mapping[str, float]
ALL_DAY = "all"


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The part of a node that a placement has: whole replicas, in the busiest period."""

    node: str
    """``POOL-K``, from 0."""
    rack: str
    """``POOL-rK``, from 0."""
    replicas: int
    devices: float
    """Devices of the node that they take; parts of one are slices."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Replicas of one model, or workers of one job, with one layout in one pool."""

    pool: str
    device: str
    """Device or slice, as a plan's request names it."""
    slice: str | None
    """Name of the slice that each replica runs on; None for whole devices."""
    layout: str
    """As people read it: TP 2."""
    engine: str
    candidate: Mapping[str, Any]
    """Layout of one replica, as a plan's request takes it."""
    request: Mapping[str, Any]
    """A plan's request of one replica under its share of the load, its layout the candidate."""
    devices_each: float
    """Devices of a replica; of a slice its part of one."""
    replicas: Mapping[str, int]
    """Replicas that serve, by period."""
    capacity_each: float
    """Load that a replica holds within every limit."""
    load_each: ByPeriod
    """Load that a replica has."""
    weight: float
    """Share of the model's requests that a router sends here in the busiest period."""
    figures: Mapping[str, float | None]
    """``ttft_s``, ``tpot_s``, ``output_tokens_per_s``, … of a replica under its largest load."""
    confidence: float
    """Probability that its limits hold under its largest load."""
    watts: float
    """Power of all its devices in the busiest period."""
    usd_per_hour: float
    """Mean over the hours of a day: its part of what its pool costs."""
    shared: bool = False
    """Whether its devices sleep and wake with those of others."""
    nodes: tuple[NodeShare, ...] = ()

    @property
    def most_replicas(self) -> int:
        return max(self.replicas.values(), default=0)

    @property
    def devices(self) -> float:
        """Devices in the busiest period."""
        return self.most_replicas * self.devices_each


@dataclass(frozen=True, slots=True)
class Owned:
    """Models and jobs of a fleet alike, with who pays for them."""

    name: str
    team: str | None
    project: str | None
    cost_centre: str | None


@dataclass(frozen=True, slots=True)
class PlacedModel(Owned):
    """A model with where it runs and how much of its load is served."""

    priority: int
    mode: str
    """``open``: loads are requests a second; ``closed``: users at once."""
    load: ByPeriod
    served: ByPeriod
    placements: tuple[Placement, ...]
    probability: float
    """Probability that all of its limits hold everywhere it runs."""
    usd_per_hour: float
    reason: str | None = None
    """Why some of its load is not served."""

    @property
    def unmet(self) -> float:
        """Largest share of its load that is not served in any period."""
        return max(
            (1 - self.served[name] / load for name, load in self.load.items() if load > 0),
            default=0.0,
        )


@dataclass(frozen=True, slots=True)
class PlacedJob(Owned):
    """A job with where it runs and how long it takes."""

    every_hours: float
    hours: float
    """Hours that a run takes on what it has."""
    preemptible: bool
    placements: tuple[Placement, ...]
    usd_per_hour: float
    """Mean over all hours."""
    reason: str | None = None
    """Why it is not run."""


@dataclass(frozen=True, slots=True)
class CutDevices:
    """Devices of a pool that are cut alike."""

    devices: int
    counts: Mapping[str, int]
    """Slices of each device, by name."""
    used: Mapping[str, int]
    """Slices in use over all of them."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """How many of them each node has, ``POOL-K``; they come before its whole devices."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool with what is used, paid and cut of it."""

    name: str
    device: str
    term: Term
    region: str | None
    nodes: int
    per_node: int
    racks: int
    used: ByPeriod
    """Devices in use."""
    paid: ByPeriod
    """Devices that are paid for."""
    reserved: int
    """Devices to reserve, of a pool that states a price for it."""
    usd_per_device_hour: float
    price_basis: str | None
    usd_per_hour: float
    """Mean over the hours of a day."""
    watts: float
    power_kw: float | None
    cuts: tuple[CutDevices, ...] = ()

    @property
    def devices(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of a team, project and cost centre."""

    team: str | None
    project: str | None
    cost_centre: str | None
    usd_per_hour: float
    usd_per_month: float
    devices: float
    """Mean over the hours of a day."""
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A smallest set of demands and bounds that cannot all hold: each one is needed for it."""

    members: tuple[str, ...]
    """Fields of the fleet, such as ``models.0`` or ``pools.2.power_kw``."""
    text: str


@dataclass(frozen=True)
class FleetAnswer:
    """A fleet, placed."""

    request: FleetRequest
    status: Status
    gap: float
    """Relative distance of the objective to its bound."""
    optimize: Goal
    objective: float
    bound: float
    seconds: float
    models: tuple[PlacedModel, ...]
    jobs: tuple[PlacedJob, ...]
    pools: tuple[PoolUse, ...]
    charges: tuple[Charge, ...]
    usd_per_hour: float
    watts: float
    kg_co2_per_hour: float
    probability: float
    """Joint probability that all limits of all models hold, as far as these are served."""
    conflict: Conflict | None = None
    notes: tuple[str, ...] = ()
    periods: Mapping[str, float] = field(default_factory=lambda: {ALL_DAY: 24.0})
    """Hours of a day, by period."""

    @property
    def usd_per_month(self) -> float:
        return price_month(self.usd_per_hour)

    @property
    def complete(self) -> bool:
        return self.status != "partial"

    @property
    def busiest_period(self) -> str:
        """The period in which most devices are used."""
        return max(
            self.periods, key=lambda name: sum(pool.used.get(name, 0.0) for pool in self.pools)
        )

    def placements(self) -> Iterator[tuple[str, Placement]]:
        """Every placement, with the name of its model or job."""
        for model in self.models:
            yield from ((model.name, placed) for placed in model.placements)
        for job in self.jobs:
            yield from ((job.name, placed) for placed in job.placements)

    def to_json(self) -> dict[str, Any]:
        """Return the whole answer, as the contract writes it."""
        out: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "name": self.request.name}
        fields = [name for name in self.__dataclass_fields__ if name != "request"]
        out |= {name: _plain(getattr(self, name)) for name in fields}
        out["usd_per_month"] = self.usd_per_month
        for part, model in zip(out["models"], self.models, strict=True):
            part["unmet"] = model.unmet
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return dict(value)
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
