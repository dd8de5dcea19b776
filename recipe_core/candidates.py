"""From a request to the columns that the estimate takes: which engines, dtypes, splits and limits a plan has to judge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.engines.spec import Engine, default_engine, engine
from recipe_core.errors import InputError
from recipe_core.estimate.cases import WIDE, Cases, Setting, cases
from recipe_core.hardware.catalog import Cluster, cluster
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec, MoeMlp
from recipe_core.request import CandidateRequest, PlanRequest, ServingWorkload
from recipe_core.split import enumerate_splits

MAX_DEVICES = 4096
CONTEXT_STEP = 1024
_TRAINING_FIELDS = ("virtual_stages", "zero_stage", "micro_batch", "recompute", "precision")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with its names looked up."""

    request: PlanRequest
    workload: ServingWorkload
    model: ModelSpec
    cluster: Cluster

    def engine(self, name: str | None) -> Engine:
        """The named engine, or the preferred one for the device."""
        return engine(name) if name else default_engine(self.cluster.device.runtime)


def resolve(request: PlanRequest, *, folders: bool = True) -> Resolved:
    """Look up model, device and links.

    Raises:
        InputError: for unknown names, and for what the schema has but this version does not model.
    """
    workload = request.workload
    if not isinstance(workload, ServingWorkload):
        raise InputError("training is not planned by this version.", field="workload.kind", hint="Use kind: serving.")
    if workload.speculative is not None:
        raise InputError("speculative decoding is not modelled by this version.", field="workload.speculative", hint="Leave it out.")
    if request.objective.limits.percentile is not None:
        raise InputError(
            "percentiles are not modelled by this version; limits apply to means.",
            field="objective.limits.percentile",
            hint="Leave it out.",
        )
    if request.hardware.devices > MAX_DEVICES:
        raise InputError(
            f"per_node × nodes = {request.hardware.devices:,}; at most {MAX_DEVICES:,} devices are planned.", field="hardware.nodes"
        )
    return Resolved(request, workload, load_model(request.model, folders=folders), cluster(request.hardware))


def weight_dtype(wanted: str, model: ModelSpec) -> str:
    """The stored format a request means: "auto" is the checkpoint's, and "fp8" any fp8 the checkpoint already has."""
    if wanted == "auto" or (wanted == "fp8" and model.weight_dtype.startswith("fp8")):
        return model.weight_dtype
    return wanted


def kv_dtype(wanted: str, weights: str, model: ModelSpec) -> str:
    """The cache format a request means: "auto" is the checkpoint's, else the format that activations have."""
    if wanted != "auto":
        return wanted
    return model.kv_dtype or (weights if weights in WIDE else model.dtype)


def served_context(workload: ServingWorkload, model: ModelSpec) -> int:
    """The longest request the engine is told to accept: as asked, else input + output up to the next multiple of 1,024."""
    if workload.max_context is not None:
        return workload.max_context
    wanted = workload.input_tokens + workload.output_tokens
    rounded = math.ceil(wanted / CONTEXT_STEP) * CONTEXT_STEP
    return max(wanted, min(rounded, model.max_context))


def load_of(workload: ServingWorkload) -> float:
    """The number that the mode is about."""
    named = {"closed": workload.concurrency, "open": workload.request_rate, "static": workload.batch, "offline": workload.requests}
    return float(named[workload.mode] or 0)


def setting(found: Resolved, chosen: Engine, weights: str, cache: str) -> Setting:
    """What all splits of one engine and one pair of dtypes share."""
    stored = weight_dtype(weights, found.model)
    return Setting(found.model, found.cluster, chosen, found.workload.mode, stored, kv_dtype(cache, stored, found.model))


def settings(found: Resolved) -> list[Setting]:
    """Every engine × weight dtype × cache dtype of the request's options, without repeats."""
    options = found.request.options
    engines = [found.engine(name) for name in options.engines or (None,)]
    every = [setting(found, e, w, k) for e in engines for w in options.weight_dtypes for k in options.kv_dtypes]
    return list({(s.engine.name, s.weight_dtype, s.kv_dtype): s for s in every}.values())


def _columns(found: Resolved, chosen: Engine, limits: CandidateRequest) -> dict[str, Any]:
    """Columns that do not depend on the split."""
    device = found.cluster.device
    batching = chosen.batch_limits(device.usable_memory_bytes, device.architecture)
    workload = found.workload
    return {
        "per_node": found.cluster.per_node,
        "nodes": found.cluster.nodes,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "max_context": served_context(workload, found.model),
        "load": load_of(workload),
        "prefix_hit": workload.prefix_hit,
        "max_batched_tokens": limits.max_batched_tokens or batching.max_batched_tokens,
        "max_num_seqs": limits.max_num_seqs or batching.max_num_seqs,
        "memory_fraction": limits.memory_fraction or chosen.memory.fraction.value,
        "block_tokens": limits.block_size or chosen.memory.block_tokens,
    }


def every_split(found: Resolved, chosen: Setting, limits: CandidateRequest | None = None) -> Cases:
    """All splits over the cluster for one setting; ``limits`` keeps those that agree with what it states."""
    limits = limits or CandidateRequest()
    experts = max((layer.mlp.experts for layer, _ in found.model.kinds if isinstance(layer.mlp, MoeMlp)), default=0)
    splits = enumerate_splits(found.cluster.devices, experts=experts, shares_experts=chosen.engine.split.experts != "none")
    if found.request.options.nodes == "all":
        whole = splits["tp"] * splits["pp"] * splits["dp"] == found.cluster.devices
        splits = {name: column[whole] for name, column in splits.items()}
    stated = {name: getattr(limits, name) for name in ("tp", "pp", "dp", "ep") if getattr(limits, name) is not None}
    keep = np.all([splits[name] == value for name, value in stated.items()], axis=0) if stated else slice(None)
    splits = {name: column[keep] for name, column in splits.items()}
    return cases(len(splits["tp"]), **splits, **_columns(found, chosen.engine, limits))


def one_split(found: Resolved, candidate: CandidateRequest) -> tuple[Setting, Cases] | None:
    """The one case of a candidate whose split is stated in full (ep left out means 1), else None."""
    check_candidate(candidate)
    if candidate.tp is None or candidate.pp is None or candidate.dp is None:
        return None
    chosen_engine = found.engine(candidate.engine)
    chosen = setting(found, chosen_engine, candidate.weight_dtype or "auto", candidate.kv_dtype or "auto")
    split = {"tp": candidate.tp, "pp": candidate.pp, "dp": candidate.dp, "ep": candidate.ep or 1}
    return chosen, cases(1, **split, **_columns(found, chosen_engine, candidate))


def check_candidate(candidate: CandidateRequest) -> None:
    """Raise for fields that serving does not have or this version does not model."""
    given = [name for name in _TRAINING_FIELDS if getattr(candidate, name) is not None]
    if given:
        raise InputError("belongs to training, not to serving.", field=f"candidate.{given[0]}", hint="Leave it out.")
    if (candidate.cp or 1) > 1:
        raise InputError("context parallelism is not modelled by this version.", field="candidate.cp", hint="Use cp: 1.")
    if candidate.eager:
        raise InputError("eager execution is not modelled by this version.", field="candidate.eager", hint="Leave it out.")


def describe(chosen: Setting, columns: Cases, i: int) -> dict[str, Any]:
    """Row ``i`` as the candidate of the contract: what a recipe pins and a launch repeats."""
    return {
        "engine": chosen.engine.name,
        "tp": int(columns.tp[i]),
        "pp": int(columns.pp[i]),
        "dp": int(columns.dp[i]),
        "ep": int(columns.ep[i]),
        "weight_dtype": chosen.weight_dtype,
        "kv_dtype": chosen.kv_dtype,
        "max_batched_tokens": int(columns.max_batched_tokens[i]),
        "max_num_seqs": int(columns.max_num_seqs[i]),
        "memory_fraction": float(columns.memory_fraction[i]),
        "block_size": int(columns.block_tokens[i]),
    }
