"""The columns of jobs: how many runs an hour a batch or a training run makes on some devices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.fleets.columns import ANYWHERE, Column, Columns, Sources, make_column, refusal_text
from recipe_core.fleets.request import FleetJob
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_splits

# Nodes of a training run that are looked at.
NODES = (1, 2, 4, 8, 16, 32, 64)


def make_job_columns(
    job: FleetJob,
    device: str | Mapping[str, Any],
    per_node: int,
    nodes: int,
    sources: Sources = ANYWHERE,
) -> Columns:
    """Return the layouts of a job's workers on nodes of a device.

    ``Column.capacities`` are runs an hour of one worker. A batch is shared by workers, a training
    run has one, on one node or more.

    Raises:
        InputError: for what is wrong with the job's request.
    """
    names = {"name", "model", "workload", "objective", "options", "candidate"}
    plain = job.model_dump(mode="json", include=names, exclude_none=True)
    make = _find_job_columns if sources.cached else _find_job_columns.__wrapped__
    return make(json.dumps([plain, device, per_node, nodes], sort_keys=True), sources)


@lru_cache(maxsize=2048)
def _find_job_columns(key: str, sources: Sources) -> Columns:
    plain, device, per_node, nodes = json.loads(key)
    job = FleetJob.model_validate(plain)
    trains = job.workload.kind == "training"
    options = job.options.model_copy(update={"nodes": "all" if trains else "any"})
    columns, reason = list[Column](), None
    for count in (n for n in (NODES if trains else (1,)) if n <= max(nodes, 1)):
        hardware = HardwareRequest(
            device=device, per_node=per_node, nodes=count, usd_per_device_hour=1.0
        )
        try:
            plan = plan_splits(
                job.on(hardware, options=options),
                folders=sources.folders,
                corrections=None if trains else sources.corrections,
            )
        except InputError:
            raise
        except RecipeError as error:
            reason = reason or error.message
            continue
        columns += (columns_there := [*_find_fastest(device, plan)])
        if not columns_there:
            reason = reason or refusal_text(plan)
    return Columns(tuple(columns), None if columns else reason)


def _find_fastest(device: str | Mapping[str, Any], plan: Plan) -> Iterator[Column]:
    """Of each number of devices the layout that is done first."""
    wall = np.asarray(plan.columns["wall_s"], dtype=float)
    wall = np.where(plan.feasible & np.isfinite(wall), wall, np.inf)
    devices = np.asarray(plan.columns["gpus"])
    for size in np.unique(devices[np.isfinite(wall)]):
        row = int(np.where(devices == size, wall, np.inf).argmin())
        yield make_column(device, plan, row, (3600.0 / float(wall[row]),))
