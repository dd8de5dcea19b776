"""The columns of jobs: how many runs an hour a batch or a training run makes on some devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.fleets.columns import ANYWHERE, Column, Sources, refusal_text, shared_error
from recipe_core.fleets.request import FleetJob
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.plans import plan_splits
from recipe_core.request.split_key import split_name

# Nodes of a training run that are looked at.
NODES = (1, 2, 4, 8, 16, 32, 64)
_FIELDS = ("name", "model", "workload", "objective", "options", "candidate")


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Layouts of a job on a device; ``single``: whether one worker does all of it at a time."""

    columns: tuple[Column, ...]
    single: bool
    reason: str | None = None


def make_job_columns(
    job: FleetJob,
    device: str | Mapping[str, Any],
    per_node: int,
    nodes: int,
    sources: Sources = ANYWHERE,
) -> JobColumns:
    """Return the layouts of a job's workers on nodes of a device.

    ``Column.capacities`` are runs an hour of one worker. A batch is shared by workers, a training
    run has one, on one node or more.

    Raises:
        InputError: for what is wrong with the job's request.
    """
    plain = job.model_dump(mode="json", include=set(_FIELDS), exclude_none=True)
    make = _find_job_columns if sources.cached else _find_job_columns.__wrapped__
    return make(json.dumps([plain, device, per_node, nodes], sort_keys=True), sources)


@lru_cache(maxsize=2048)
def _find_job_columns(key: str, sources: Sources) -> JobColumns:
    plain, device, per_node, nodes = json.loads(key)
    job = FleetJob.model_validate(plain)
    training = job.workload.kind == "training"
    columns, reason = [], None
    for count in (n for n in (NODES if training else (1,)) if n <= max(nodes, 1)):
        hardware = HardwareRequest(
            device=device, per_node=per_node, nodes=count, usd_per_device_hour=1.0
        )
        options = job.options.model_copy(update={"nodes": "all" if training else "any"})
        try:
            plan = plan_splits(
                job.on(hardware, options=options),
                folders=sources.folders,
                corrections=None if training else sources.corrections,
            )
        except InputError:
            raise
        except RecipeError as error:
            reason = reason or error.message
            continue
        rows = np.flatnonzero(plan.feasible)
        if not len(rows):
            reason = reason or refusal_text(plan)
            continue
        columns += _best_rows(device, plan, rows)
    return JobColumns(tuple(columns), training, None if columns else reason)


def _best_rows(device: str | Mapping[str, Any], plan: Any, rows: Any) -> list[Column]:
    """Of each number of devices the layout that is done first."""
    wall = np.asarray(plan.columns["wall_s"], dtype=float)[rows]
    devices = np.asarray(plan.columns["gpus"], dtype=np.int64)[rows]
    out = []
    for size in np.unique(devices).tolist():
        of_size = np.flatnonzero((devices == size) & np.isfinite(wall))
        if not len(of_size):
            continue
        k = int(of_size[wall[of_size].argmin()])
        row = int(rows[k])
        setting = plan.setting(row)
        out.append(
            Column(
                device=device,
                devices=size,
                capacities=(3600.0 / float(wall[k]),),
                watts=float(plan.columns["watts"][row]),
                layout=split_name(plan.candidate(row)),
                engine=plan.candidate(row).get("engine", ""),
                software=tuple(map(str, plan.spec.ranking.software(setting))),
                shared_error=shared_error(plan, row),
                plan=plan,
                row=row,
            )
        )
    return out
