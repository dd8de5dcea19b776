"""Changes to a fleet that are tried, and what they change of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.types import Count
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.request import Factor, FleetModel, FleetRequest, Label, Names, Pool, Price
from recipe_core.request.first_error import validate_plain
from recipe_core.request.serving_workload import LOADS

# Figures of answers whose differences are told.
FIGURES = ("usd_per_hour", "usd_per_month", "watts", "kg_co2_per_hour", "probability")


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
        pools, models, jobs = (
            [part.name for part in parts] for parts in (fleet.pools, fleet.models, fleet.jobs)
        )
        for field, kind, names in (
            ("lose_nodes", "pool", pools),
            ("lose_racks", "pool", pools),
            ("prices", "pool", pools),
            ("loads", "model", models),
            ("drop", "model, job or pool", [*pools, *models, *jobs]),
        ):
            for k, name in enumerate(getattr(self, field)):
                if name not in names:
                    message, hint = unknown(kind, name, names)
                    place = k if field == "drop" else name
                    raise InputError(message, field=f"{field}.{place}", hint=hint)
        gone = {*self.drop}
        stay = [pool for pool in fleet.pools if pool.name not in gone]
        serve = [model for model in fleet.models if model.name not in gone]
        changes = {
            "pools": (*map(self._change_pool, stay), *self.add_pools),
            "models": (*map(self._change_model, serve), *self.add_models),
            "jobs": tuple(job for job in fleet.jobs if job.name not in gone),
            "today": tuple(part for part in fleet.today if not {part.model, part.pool} & gone),
        }
        return FleetRequest.parse(fleet.model_copy(update=changes).to_json())

    def _change_pool(self, pool: Pool) -> Pool:
        racks, nodes = pool.racks or 1, pool.nodes
        lost_racks = min(self.lose_racks.get(pool.name, 0), racks)
        # machine k stands in rack k modulo racks: the fullest are lost
        nodes -= sum(k % racks < lost_racks for k in range(nodes))
        changes: dict[str, Any] = {"nodes": max(nodes - self.lose_nodes.get(pool.name, 0), 0)}
        if lost_racks:
            changes["racks"] = max(racks - lost_racks, 1)
        if pool.name in self.prices:
            changes |= {"usd_per_device_hour": self.prices[pool.name], "offer": None}
        return pool.model_copy(update=changes)

    def _change_model(self, model: FleetModel) -> FleetModel:
        if (factor := self.loads.get(model.name, 1.0)) == 1.0:
            return model
        load = model.peak * factor
        changes = {LOADS[model.mode]: load if model.mode == "open" else max(round(load), 1)}
        return model.model_copy(update={"workload": model.workload.model_copy(update=changes)})


def compare_answers(before: FleetAnswer, after: FleetAnswer) -> dict[str, Any]:
    """Return the differences between two answers: money, power, certainty, and who moves."""
    replicas, unmet = [], []
    for answer in (before, after):
        replicas.append(
            {
                (name, placed.pool, placed.slice, placed.layout): placed.most_replicas
                for name, placed in answer.placements()
            }
        )
        unmet.append({model.name: model.unmet for model in answer.models})
    out = {name: getattr(after, name) - getattr(before, name) for name in FIGURES}
    keys = ("model", "pool", "slice", "layout")
    moved = [dict(zip(keys, key, strict=True)) | pair for key, pair in _differ(*replicas)]
    return {**out, "replicas": moved, "unmet": dict(_differ(*unmet))}


def _differ(
    before: Mapping[Any, float], after: Mapping[Any, float]
) -> Iterator[tuple[Any, dict[str, float]]]:
    """The names whose values differ, with both; 0 where one has none."""
    for name in sorted({*before, *after}, key=str):
        pair = {"before": before.get(name, 0), "after": after.get(name, 0)}
        if pair["before"] != pair["after"]:
            yield name, pair
