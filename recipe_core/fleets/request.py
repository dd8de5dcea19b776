"""The document of a fleet, ``fleet.yaml``: models, jobs, pools, regions, periods and the objective.

A model is a plan's request without hardware; a pool is machines of one kind at one place. What an
inventory, a page or an agent says of a fleet is written as this document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.types import Count, Positive, Text
from recipe_core.hardware.profile import Line
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.first_error import validate_plain
from recipe_core.request.objective import Objective
from recipe_core.request.schema import Options, PlanRequest, Workload, needs_load
from recipe_core.request.serving_workload import LOADS, ServingWorkload
from recipe_core.request.size import GrowthRequest

# Names of what a fleet has: valid as parts of Kubernetes objects, Slurm partitions and file names.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)]
Price = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
Term = Literal["owned", "reserved", "on-demand", "spot"]
Goal = Literal["money", "power", "co2", "devices", "spread"]
Sharing = Literal["mps", "time-slicing"]
# A field, what is wrong with it, and the fix.
Flaw = tuple[str, str, str]
Names = Annotated[tuple[Label, ...], Field(max_length=256)]

# Power of a grid, where a region says none: the world's mean of 2023 (Ember, Global Electricity
# Review 2024), grams of CO2 per kilowatt-hour.
WORLD_G_CO2_PER_KWH = 480.0
# Power of a building over power of its machines, where a region says none.
PUE = 1.3


class DataRules(DescribedModel):
    """The places where a model's requests may be answered."""

    on_premises: bool = False
    """Whether only machines on one's own premises may serve it."""

    regions: Names = ()
    """Regions that may serve it; none named: all."""

    pools: Names = ()
    """Pools that may serve it; none named: all."""


class Headroom(DescribedModel):
    """Replicas beyond the load, so that limits hold while something is down (N + k)."""

    failures: Annotated[int, Field(ge=0, le=16)] = 1
    """Failure domains that may be down at once."""

    domain: Literal["node", "rack", "pool"] = "node"
    """What fails as one: a node, a rack, or a whole pool."""


class Adapters(DescribedModel):
    """LoRA adapters that one deployment of a base model serves beside it."""

    count: Annotated[int, Field(ge=1, le=1024)]
    """Adapters that are in use at once; each replica keeps all of them on its devices."""

    rank: Annotated[int, Field(ge=1, le=512)] = 16
    """Largest rank of an adapter."""


class Sleep(DescribedModel):
    """A model that may sleep: its weights wait in host memory while others use its devices."""

    wakes_per_hour: Annotated[float, Field(gt=0, le=3600)]
    """Times an hour that it is woken."""

    longest_wake_s: Positive
    """Longest time that the first request after a sleep may wait, in seconds; limits hold for the
    requests after it."""


class Tenant(DescribedModel):
    """A model or a job of a fleet: a plan's request without hardware, and to whom it belongs."""

    name: Label
    """Its name."""

    model: Text | dict[str, Any]
    """Model, as in a plan's request."""

    workload: Workload
    """Its work, as in a plan's request."""

    objective: Objective = Objective(optimize="cost")
    """The limits, and with which ``confidence`` they must hold; what counts most is the fleet's to
    say."""

    options: Options = Options()
    """What the search may vary. No engine named: every engine whose estimates are fitted to
    measurements on the device."""

    candidate: CandidateRequest | None = None
    """What all of its layouts must agree with."""

    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    """Who comes first where not all can be had; a larger number does."""

    team: Line | None = None
    """Team that pays for it."""

    project: Line | None = None
    """Project that it belongs to."""

    cost_centre: Line | None = None
    """Cost centre that is charged."""

    where: DataRules = DataRules()
    """Where its data may go."""

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        """A workload without ``kind`` is serving; an objective without a goal is about cost."""
        if not isinstance(value, Mapping):
            return value
        out = dict(value)
        workload, objective = out.get("workload"), out.get("objective")
        if isinstance(workload, Mapping):
            out["workload"] = {"kind": "serving", **workload}
        goals = {"optimize", "weights", "orientation"}
        if isinstance(objective, Mapping) and not goals & set(objective):
            out["objective"] = {"optimize": "cost", **objective}
        return out

    def on(self, hardware: HardwareRequest, **changes: Any) -> PlanRequest:
        """Return its request on some hardware, with changes to its fields."""
        names = ("model", "workload", "objective", "options", "candidate")
        fields = {name: getattr(self, name) for name in names}
        return PlanRequest(hardware=hardware, **{**fields, **changes})


class FleetModel(Tenant):
    """A model with its traffic and limits: ``mode: open`` or ``closed``, over all replicas."""

    users: Annotated[dict[Label, Positive], Field(max_length=64, default_factory=dict)]
    """Where its users are: parts of its requests by region; left out, beside the machines."""

    load: Annotated[dict[Label, Factor], Field(max_length=24, default_factory=dict)]
    """Load in each period as a share of the workload's; a period left out has all of it."""

    growth: GrowthRequest | None = None
    """Growth of its load; left out, the fleet's."""

    headroom: Headroom | None = None
    """Headroom of its own; left out, the fleet's."""

    adapters: Adapters | None = None
    """LoRA adapters served beside the base."""

    sleep: Sleep | None = None
    """Whether it may sleep between bursts and share devices with others that do."""

    def flaws(self) -> Iterator[Flaw]:
        """Find what its fields alone contradict: the field, what is wrong, and the fix."""
        if self.mode not in ("open", "closed"):
            hint = "Set mode: open or closed; runs that end belong to the fleet's jobs."
            yield "workload.mode", "is no traffic that goes on.", hint
        elif needs_load(self.workload):
            hint = "State how many users there are at once."
            yield "workload.concurrency", "is missing.", hint

    @property
    def mode(self) -> str:
        """Mode of its load: ``open`` (requests a second) or ``closed`` (users at once)."""
        return getattr(self.workload, "mode", "")

    @property
    def peak(self) -> float:
        """Its load by the workload: requests a second (open), or users at once (closed)."""
        return float(getattr(self.workload, LOADS[self.mode]) or 0.0)


class FleetJob(Tenant):
    """A batch of requests (``mode: offline``) or a training run that takes idle devices."""

    every_hours: Annotated[float, Field(gt=0, le=8760)] = 24.0
    """How often it runs, so that it is done within as many hours: 24 is once a day."""

    periods: Names = ()
    """Periods in which it may run; none named: all."""

    preemptible: bool = True
    """Whether serving may take its devices back; if not, it runs in every hour of its periods."""

    priority: Annotated[int, Field(ge=0, le=1000)] = 10
    """Who comes first where not all can run."""

    def flaws(self) -> Iterator[Flaw]:
        """Find what its fields alone contradict: the field, what is wrong, and the fix."""
        workload = self.workload
        if isinstance(workload, ServingWorkload):
            if workload.mode != "offline":
                hint = "Set mode: offline with requests, or list it under models."
                yield "workload.mode", "is no job that ends.", hint
        elif workload.tokens is None:
            yield "workload.tokens", "is missing.", "State how many tokens a run trains on."


class Reserve(DescribedModel):
    """A price for which nodes may be reserved, used or not."""

    usd_per_device_hour: Positive
    """Price of a device-hour over the whole term, in US dollars."""

    months: Annotated[int, Field(ge=1, le=120)] = 12
    """Term, in months."""


class Reclaims(DescribedModel):
    """The habits of a spot market."""

    per_hour: Annotated[float, Field(ge=0, le=60)] | None = None
    """Reclaims of a node in an hour; left out, those of published traces."""

    restart_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    """Seconds from a new node to a replica that serves."""


class Pool(DescribedModel):
    """Machines of one kind at one place, under one term."""

    name: Label
    """Name of the pool."""

    device: Text | dict[str, Any]
    """Device: the name of a profile, or a whole profile of your own."""

    nodes: Annotated[int, Field(ge=0, le=65_536)]
    """Machines there are; of rented ones, the most that may be had."""

    per_node: Count | None = None
    """Devices of a machine; left out, as in the device's profile."""

    racks: Count | None = None
    """Racks that its machines stand in; left out, one. Machine ``k`` stands in rack
    ``k`` modulo ``racks``."""

    region: Label | None = None
    """Region that it is in."""

    term: Term = "owned"
    """``owned`` machines cost what is stated where they are used, ``reserved`` ones cost it in any
    case, ``on-demand`` and ``spot`` ones are rented as needed."""

    usd_per_device_hour: Price | None = None
    """Price of a device-hour, in US dollars; left out: of owned machines the power at their limit,
    of rented ones the offer that a search would take."""

    offer: Text | None = None
    """Offer whose price counts, by its name."""

    rented_by: Literal["node", "device"] | None = None
    """What is rented at once of a rented pool: whole machines, or single devices; left out, as the
    offer of its price says, else whole machines, as ``reserve`` does."""

    reserve: Reserve | None = None
    """Price for which some of its machines may be reserved; how many is decided."""

    reclaims: Reclaims | None = None
    """Of a spot market: how often machines are taken back."""

    power_kw: Positive | None = None
    """Highest power of its devices together, in kilowatts."""

    on_premises: bool | None = None
    """Whether it stands on one's own premises; left out, owned machines do."""

    slices: Annotated[tuple[Label | Text, ...], Field(max_length=64)] = ()
    """Slices that its devices may be cut into (``1g.10gb``, ``cpx-nps4``), or ``any``."""

    sharing: Annotated[tuple[Sharing, ...], Field(max_length=2)] = ()
    """Ways to share a device without cutting it; they are refused or warned of with reasons."""

    labels: Annotated[dict[str, Line], Field(max_length=64, default_factory=dict)]
    """Labels of its machines, for what is written for schedulers."""

    @property
    def is_rented(self) -> bool:
        return self.term in ("on-demand", "spot")

    @property
    def stands_on_premises(self) -> bool:
        return self.term == "owned" if self.on_premises is None else self.on_premises

    def flaws(self) -> Iterator[Flaw]:
        """Find what its fields alone contradict: the field, what is wrong, and the fix."""
        for field in ("reserve", "offer"):
            if getattr(self, field) is not None and not self.is_rented:
                message = f"goes with rented machines, not with {self.term} ones."
                yield field, message, "Leave it out, or set term: on-demand."
        if self.reserve is not None and self.rented_by == "device":
            hint = "Leave rented_by out, or reserve."
            yield "rented_by", "is device, and whole machines are reserved.", hint
        if self.reclaims is not None and self.term != "spot":
            yield "reclaims", "goes with term: spot.", "Leave it out."


class Region(DescribedModel):
    """A place: how far it is from others, and what its power costs."""

    name: Label
    """Name of the region."""

    round_trip_ms: Annotated[dict[Label, Milliseconds], Field(max_length=64, default_factory=dict)]
    """Round-trip times from users of other regions, in milliseconds. One direction is enough."""

    g_co2_per_kwh: Annotated[float, Field(ge=0, le=5000)] = WORLD_G_CO2_PER_KWH
    """Carbon dioxide of its power, in grams per kilowatt-hour; left out, the world's mean."""

    pue: Annotated[float, Field(ge=1, le=5)] = PUE
    """Power of the building over power of the machines."""


class FleetPeriod(DescribedModel):
    """Hours of a day with a load of their own, such as day and night."""

    name: Label
    """Name of the period."""

    hours: Annotated[float, Field(gt=0, le=24)]
    """Hours of a day."""

    start: Annotated[int, Field(ge=0, le=23)] | None = None
    """Hour at which it begins, for schedules; left out, when the one before ends."""


class FleetObjective(DescribedModel):
    """The goal, and the limits of the whole fleet."""

    optimize: Goal = "money"
    """What counts most: money, power, CO₂, devices in use, or an even use of pools (spread). Money
    decides between equals."""

    usd_per_month: Positive | None = None
    """Budget: the highest cost of a month (730 hours), in US dollars."""

    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The probability with which all limits of all models must hold together; left out, each
    model's own counts."""


class Today(DescribedModel):
    """Replicas of a model that run now."""

    model: Label
    """Name of the model."""

    pool: Label
    """Name of the pool."""

    replicas: Count
    """Replicas that run."""

    candidate: CandidateRequest | None = None
    """Their layout; left out, the one that the plan has there, or the model's best there."""

    slice: Text | None = None
    """Slice that each runs on."""


class FleetRequest(DescribedModel):
    """Models and machines: who runs where, and what it costs."""

    name: Label = "fleet"
    """Name of the fleet."""

    models: Annotated[tuple[FleetModel, ...], Field(min_length=1, max_length=256)]
    """Models to be served."""

    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=256)]
    """Machines there are, and those that may be rented."""

    jobs: Annotated[tuple[FleetJob, ...], Field(max_length=256)] = ()
    """Batches and training runs that take what is idle."""

    regions: Annotated[tuple[Region, ...], Field(max_length=64)] = ()
    """Regions, with the times between them."""

    periods: Annotated[tuple[FleetPeriod, ...], Field(max_length=12)] = ()
    """Parts of a day; left out, the load is even."""

    headroom: Headroom = Headroom(failures=0)
    """Headroom of every model that states none."""

    growth: GrowthRequest | None = None
    """Growth of the load of every model that states none."""

    objective: FleetObjective = FleetObjective()
    """What counts, and the limits of the whole."""

    today: Annotated[tuple[Today, ...], Field(max_length=4096)] = ()
    """What runs now, for a plan of moves."""

    @model_validator(mode="after")
    def _names_meet(self) -> Self:
        for field in ("models", "jobs", "pools"):
            for k, part in enumerate(getattr(self, field)):
                for inside, message, hint in part.flaws():
                    raise InputError(message, field=f"{field}.{k}.{inside}", hint=hint)
        fields = ("models", "jobs", "pools", "regions", "periods")
        names = {field: [part.name for part in getattr(self, field)] for field in fields}
        for field, listed in (names | {"jobs": names["models"] + names["jobs"]}).items():
            if twice := [name for name, count in Counter(listed).items() if count > 1]:
                hint = "Give each a name of its own."
                raise InputError(f"has two named {twice[0]!r}.", field=field, hint=hint)
        for field, name, kind in self._named():
            allowed = names[f"{kind}s"]
            if kind == "region" and not allowed and not field.endswith(".users"):
                allowed = [pool.region for pool in self.pools if pool.region]
            if name not in allowed:
                message, hint = unknown(kind, name, sorted(allowed))
                raise InputError(message, field=field, hint=hint)
        hours = sum(period.hours for period in self.periods)
        if self.periods and abs(hours - 24) > 1e-6:
            message, hint = f"last {hours:g} hours together.", "Their hours add up to 24."
            raise InputError(message, field="periods", hint=hint)
        return self

    def _named(self) -> Iterator[tuple[str, str, str]]:
        """Every name that its parts have of another part: its field, the name, of what kind."""
        for k, pool in enumerate(self.pools):
            if pool.region is not None and self.regions:
                yield f"pools.{k}.region", pool.region, "region"
        for kind, tenants in (("models", self.models), ("jobs", self.jobs)):
            for k, tenant in enumerate(tenants):
                field = f"{kind}.{k}"
                yield from ((f"{field}.where.pools", name, "pool") for name in tenant.where.pools)
                yield from (
                    (f"{field}.where.regions", name, "region") for name in tenant.where.regions
                )
        for k, model in enumerate(self.models):
            yield from ((f"models.{k}.users", name, "region") for name in model.users)
            yield from ((f"models.{k}.load", name, "period") for name in model.load)
        for k, job in enumerate(self.jobs):
            yield from ((f"jobs.{k}.periods", name, "period") for name in job.periods)
        for k, part in enumerate(self.today):
            yield f"today.{k}.model", part.model, "model"
            yield f"today.{k}.pool", part.pool, "pool"

    @classmethod
    def parse(cls, value: Any) -> FleetRequest:
        """The fleet in ``value``, plain values read from YAML or JSON.

        Raises:
            InputError: naming the first wrong field and what it takes.
        """
        return validate_plain(value, cls, "docs/guide/fleet.md")

    def to_json(self) -> dict[str, Any]:
        """Plain values; unset fields are left out."""
        out: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return out

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.pools if pool.name == name)

    def headroom_of(self, model: FleetModel) -> Headroom:
        return self.headroom if model.headroom is None else model.headroom
