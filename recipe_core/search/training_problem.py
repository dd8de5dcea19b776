"""A training request with its names looked up, and what follows from it for every split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.documents import parse_json, to_json
from recipe_core.base.errors import InputError
from recipe_core.engines.frameworks import framework, training_data
from recipe_core.hardware.cluster import Cluster, cluster
from recipe_core.hardware.request import HardwareRequest
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec
from recipe_core.physics.training.run import SECONDS_PER_HOUR, Failures
from recipe_core.request.schema import CandidateRequest, Loading, PlanRequest, TrainingWorkload
from recipe_core.space.training import (
    OFFLOADS,
    RECOMPUTE,
    SCHEDULES,
    Precision,
    TrainingCases,
    TrainingSetting,
    calibration,
    training_cases,
)

MAX_DEVICES = 65_536
SERVING_FIELDS = (
    *("weight_dtype", "kv_dtype", "max_batched_tokens", "max_num_seqs", "memory_fraction"),
    *("block_size", "eager", "speculative", "prefill", "replicas"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A training request with its names looked up."""

    request: PlanRequest
    workload: TrainingWorkload
    model: ModelSpec
    cluster: Cluster

    @property
    def failures(self) -> Failures:
        """As stated, or the defaults."""
        w, usual = self.workload, training_data().run
        return Failures(
            device_mtbf_s=w.device_mtbf_hours * SECONDS_PER_HOUR
            if w.device_mtbf_hours
            else usual.device_mtbf_s.value,
            storage_bytes_per_s=w.storage_bytes_per_s,
            restart_s=w.restart_s or usual.restart_s.value,
            repair_s=w.repair_s,
            min_nodes=w.min_nodes,
            asynchronous=w.checkpoints == "asynchronous",
            interval_s=w.checkpoint_interval_s,
            kept=w.kept_checkpoints,
        )


@lru_cache(maxsize=1024)
def _inline_model(text: str) -> ModelSpec:
    """A model given as a config; lines of a file repeat few."""
    return load_model(parse_json(text, "model"))


def resolve_training(request: PlanRequest, *, folders: bool = True) -> Asked:
    """Look up model, device and links.

    Raises:
        InputError: for unknown names, fields that are serving's, and sequences longer than the model's positions.
    """
    workload = request.workload
    if not isinstance(workload, TrainingWorkload):
        raise InputError("is not training.", field="workload.kind", hint="Use kind: training.")
    if request.hardware.devices > MAX_DEVICES:
        said = f"per_node × nodes = {request.hardware.devices:,}; at most {MAX_DEVICES:,} devices are planned."
        raise InputError(said, field="hardware.nodes")
    candidate = request.candidate or CandidateRequest()
    given = [name for name in SERVING_FIELDS if getattr(candidate, name) is not None]
    if given:
        raise InputError(
            "belongs to serving, not to training.",
            field=f"candidate.{given[0]}",
            hint="Leave it out.",
        )
    if request.options.hardware:
        raise InputError(
            "training is planned on one cluster at a time.",
            field="options.hardware",
            hint="Leave it out.",
        )
    model = (
        load_model(request.model, folders=folders)
        if isinstance(request.model, str)
        else _inline_model(to_json(request.model, indent=None))
    )
    if workload.sequence_length > model.max_context:
        raise InputError(
            f"{workload.sequence_length:,} tokens are more than the {model.max_context:,} positions of {model.name}.",
            field="workload.sequence_length",
            hint="Shorten sequences, or give a config with rope scaling.",
        )
    return Asked(request, workload, model, _cluster(request.hardware.model_dump_json()))


@lru_cache(maxsize=1024)
def _cluster(text: str) -> Cluster:
    return cluster(HardwareRequest.model_validate_json(text))


def training_setting(
    asked: Asked, engine: str | None = None, precision: Precision | None = None
) -> TrainingSetting:
    """What all splits of a request share, with one framework and precision; raises InputError for an unknown framework."""
    w, candidate = asked.workload, asked.request.candidate or CandidateRequest()
    name = (
        engine
        or candidate.engine
        or (asked.request.options.engines[0] if asked.request.options.engines else "torchtitan")
    )
    return TrainingSetting(
        model=asked.model,
        cluster=asked.cluster,
        engine=name,
        framework=framework(name),
        precision=precision or candidate.precision or "bf16",
        method=w.method,
        optimizer_name=w.optimizer,
        optimizer=training_data().optimizers[w.optimizer],
        flash=w.attention == "flash",
        fused_loss=w.fused_loss,
        lora_rank=w.lora_rank,
        lora_alpha=w.lora_alpha or 2.0 * w.lora_rank,
        calibration=calibration(),
        document_tokens=w.document_tokens,
        packed=w.packed,
        gradient_dtype=w.gradient_dtype,
        loading=w.loading or Loading(),
    )


def setting_key(asked: Asked, setting: TrainingSetting) -> str:
    """What requests must share to be columns of one estimate: all but lengths, the budget, and how many devices there are."""
    hardware = asked.request.hardware.model_dump_json(exclude={"per_node", "nodes"})
    workload = asked.workload.model_dump_json(exclude={"sequence_length", "global_batch", "tokens"})
    return "|".join(
        (
            setting.model.name,
            str(setting.model.digest),
            setting.engine,
            setting.precision,
            hardware,
            workload,
        )
    )


def one_case(asked: Asked) -> TrainingCases | None:
    """The candidate as a case, when it states tp, pp and dp; what it leaves out is plain: no recomputation, a micro-batch of one."""
    c = asked.request.candidate
    if c is None or c.tp is None or c.pp is None or c.dp is None or c.micro_batch is None:
        return None
    virtual, cp = c.virtual_stages or 1, c.cp or 1
    columns: dict[str, Any] = {
        "tp": c.tp,
        "pp": c.pp,
        "virtual_stages": virtual,
        "cp": cp,
        "ep": c.ep or 1,
        "dp": c.dp,
    }
    columns |= {
        "zero_stage": c.zero_stage or 0,
        "micro_batch": c.micro_batch,
        "recompute": RECOMPUTE.index(c.recompute or "none"),
    }
    columns |= {
        "shard": c.shard or c.dp * cp,
        "sequence_parallel": 0 if c.sequence_parallel is False else 1,
    }
    return training_cases(1, **columns, **stated_columns(c), **shared_columns(asked))


def stated_columns(c: CandidateRequest) -> dict[str, int]:
    """Columns of what a search does not vary, where the candidate states it."""
    out = {
        "recompute_layers": c.recompute_layers or 0,
        "offload": OFFLOADS.index(c.offload or "none"),
    }
    out["sync_step"] = int(c.gradient_sync == "step")
    return out | ({"schedule": SCHEDULES.index(c.schedule)} if c.schedule else {})


def shared_columns(asked: Asked) -> dict[str, int]:
    """Columns that all splits of a request have in common."""
    w, c = asked.workload, asked.cluster
    lengths = {
        "sequence_length": w.sequence_length,
        "global_batch": w.global_batch,
        "fused_loss": int(bool(w.fused_loss)),
    }
    return lengths | {"per_node": c.per_node, "nodes": c.nodes}


def budget(asked: Asked, n: int) -> Float:
    """The token budget as a column."""
    return np.full(n, np.nan if asked.workload.tokens is None else asked.workload.tokens)
