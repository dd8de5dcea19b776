"""Changes to a fleet that are tried, and what they change of its answer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.types import Count
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.request import (
    Factor,
    FleetModel,
    FleetRequest,
    Label,
    Names,
    Pool,
    Price,
)
from recipe_core.request.first_error import validate_plain


class FleetChanges(DescribedModel):
    """Changes to a fleet that are tried without making them."""

    lose_nodes: Annotated[dict[Label, Count], Field(max_length=256, default_factory=dict)]
    """Machines that are lost, by pool."""

    lose_racks: Annotated[dict[Label, Count], Field(max_length=256, default_factory=dict)]
    """Racks that are lost with all of their machines, by pool."""

    prices: Annotated[dict[Label, Price], Field(max_length=256, default_factory=dict)]
    """Other prices of a device-hour, in US dollars, by pool."""

    loads: Annotated[dict[Label, Factor], Field(max_length=256, default_factory=dict)]
    """Factors on the load, by model."""

    months: Annotated[float, Field(ge=0, le=600)] = 0.0
    """Months of growth ahead of today."""

    add_models: Annotated[tuple[FleetModel, ...], Field(max_length=64)] = ()
    """Models that come."""

    add_pools: Annotated[tuple[Pool, ...], Field(max_length=64)] = ()
    """Pools that come."""

    drop: Names = ()
    """Models, jobs and pools that go, by name."""

    @classmethod
    def parse(cls, value: Any) -> FleetChanges:
        """The changes in ``value``, plain values.

        Raises:
            InputError: naming the first wrong field.
        """
        return validate_plain(value, cls, "docs/guide/fleet.md")

    def apply(self, fleet: FleetRequest) -> FleetRequest:
        """Return the fleet with these changes; ``months`` are for whoever places it.

        Raises:
            InputError: for a name that the fleet does not have.
        """
        names = {
            "pool": [pool.name for pool in fleet.pools],
            "model": [model.name for model in fleet.models],
        }
        everything = [*names["pool"], *names["model"], *(job.name for job in fleet.jobs)]
        for field, kind, listed in (
            ("lose_nodes", "pool", self.lose_nodes),
            ("lose_racks", "pool", self.lose_racks),
            ("prices", "pool", self.prices),
            ("loads", "model", self.loads),
        ):
            for name in listed:
                _check_name(name, names[kind], f"{field}.{name}", kind)
        for k, name in enumerate(self.drop):
            _check_name(name, everything, f"drop.{k}", "model, job or pool")
        pools = [self._pool(pool) for pool in fleet.pools if pool.name not in self.drop]
        models = [self._model(model) for model in fleet.models if model.name not in self.drop]
        gone = {*self.drop}
        values = fleet.model_dump(mode="json", exclude_none=True) | {
            "pools": [_dump_part(pool) for pool in (*pools, *self.add_pools)],
            "models": [_dump_part(model) for model in (*models, *self.add_models)],
            "jobs": [_dump_part(job) for job in fleet.jobs if job.name not in gone],
            "today": [
                _dump_part(part) for part in fleet.today if not {part.model, part.pool} & gone
            ],
        }
        return FleetRequest.parse(values)

    def _pool(self, pool: Pool) -> Pool:
        racks, nodes = pool.racks or 1, pool.nodes
        lost_racks = min(self.lose_racks.get(pool.name, 0), racks)
        # machine k stands in rack k modulo racks: the fullest are lost
        nodes -= sum(1 for k in range(nodes) if k % racks < lost_racks)
        nodes = max(nodes - self.lose_nodes.get(pool.name, 0), 0)
        changes: dict[str, Any] = {"nodes": nodes}
        if lost_racks:
            changes["racks"] = max(racks - lost_racks, 1)
        if pool.name in self.prices:
            changes |= {"usd_per_device_hour": self.prices[pool.name], "offer": None}
        return pool.model_copy(update=changes)

    def _model(self, model: FleetModel) -> FleetModel:
        factor = self.loads.get(model.name, 1.0)
        if factor == 1.0:
            return model
        field = "request_rate" if getattr(model.workload, "mode", "") == "open" else "concurrency"
        load = model.peak * factor
        load = load if field == "request_rate" else max(round(load), 1)
        workload = model.workload.model_copy(update={field: load})
        return model.model_copy(update={"workload": workload})


def _dump_part(part: Any) -> dict[str, Any]:
    out: dict[str, Any] = part.model_dump(mode="json", exclude_none=True)
    return out


def _check_name(name: str, names: list[str], field: str, kind: str) -> None:
    if name not in names:
        message, hint = unknown(kind, name, names)
        raise InputError(message, field=field, hint=hint)


def compare_answers(before: FleetAnswer, after: FleetAnswer) -> dict[str, Any]:
    """Return the differences between two answers: money, power, certainty, and who moves."""
    replicas = [
        {
            (name, placed.pool, placed.slice, placed.layout): placed.most_replicas
            for name, placed in answer.placements()
        }
        for answer in (before, after)
    ]
    moved = [
        {
            "model": key[0],
            "pool": key[1],
            "slice": key[2],
            "layout": key[3],
            "before": replicas[0].get(key, 0),
            "after": replicas[1].get(key, 0),
        }
        for key in sorted({*replicas[0], *replicas[1]}, key=str)
        if replicas[0].get(key, 0) != replicas[1].get(key, 0)
    ]
    unmet = [{model.name: model.unmet for model in answer.models} for answer in (before, after)]
    return {
        "usd_per_hour": after.usd_per_hour - before.usd_per_hour,
        "usd_per_month": after.usd_per_month - before.usd_per_month,
        "watts": after.watts - before.watts,
        "kg_co2_per_hour": after.kg_co2_per_hour - before.kg_co2_per_hour,
        "probability": after.probability - before.probability,
        "replicas": moved,
        "unmet": {
            name: {"before": unmet[0].get(name, 0.0), "after": unmet[1].get(name, 0.0)}
            for name in sorted({*unmet[0], *unmet[1]})
            if unmet[0].get(name, 0.0) != unmet[1].get(name, 0.0)
        },
    }
