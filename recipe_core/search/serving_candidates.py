"""From a request to the columns that the estimate takes: which engines, dtypes, splits and limits a plan has to judge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.engines.spec import Engine, default_engine, engine
from recipe_core.hardware.cluster import Cluster, cluster
from recipe_core.hardware.request import HardwareRequest
from recipe_core.model.catalog import load_model
from recipe_core.model.spec import ModelSpec
from recipe_core.physics.serving.simulate import TYPICAL, Spread
from recipe_core.request.schema import (
    CandidateRequest,
    PlanRequest,
    PoolRequest,
    ServingWorkload,
    Speculative,
)
from recipe_core.space.rules import refusals, search_rules, start_rules
from recipe_core.space.serving import WIDE, Cases, Setting, cases
from recipe_core.space.splits import enumerate_splits

MAX_DEVICES = 4096
CONTEXT_STEP = 1024
_TRAINING_FIELDS = (
    *(
        "virtual_stages",
        "zero_stage",
        "micro_batch",
        "recompute",
        "recompute_layers",
        "precision",
        "schedule",
        "shard",
    ),
    *("sequence_parallel", "offload", "gradient_sync"),
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with its names looked up."""

    request: PlanRequest
    workload: ServingWorkload
    model: ModelSpec
    clusters: tuple[Cluster, ...]

    @property
    def cluster(self) -> Cluster:
        """The cluster of the request, before those that its options put beside it."""
        return self.clusters[0]

    def engine(self, name: str | None, where: Cluster | None = None) -> Engine:
        """The named engine, or the preferred one for the device."""
        return engine(name) if name else default_engine((where or self.cluster).device.runtime)


def resolve(request: PlanRequest, *, folders: bool = True) -> Resolved:
    """Look up model, device and links.

    Raises:
        InputError: for unknown names, and for what the schema has but this version does not model.
    """
    workload = request.workload
    if not isinstance(workload, ServingWorkload):
        raise InputError(
            "training is not planned here.",
            field="workload.kind",
            hint="Use recipe plan or recipe estimate, or kind: serving.",
        )
    clusters = tuple(
        _cluster(hardware, k)
        for k, hardware in enumerate((request.hardware, *request.options.hardware))
    )
    found = Resolved(request, workload, load_model(request.model, folders=folders), clusters)
    _check_draft(found, workload.speculative, "workload.speculative")
    for k, draft in enumerate(request.options.speculative):
        _check_draft(found, draft, f"options.speculative.{k}")
    if request.options.disaggregated:
        _check_pools(found, CandidateRequest(prefill=PoolRequest(tp=1)), "options.disaggregated")
    if workload.mode != "open" and any(load != int(load) for load in request.options.loads):
        raise InputError(
            f"mode {workload.mode} counts whole requests.",
            field="options.loads",
            hint="Give whole numbers.",
        )
    return found


def _cluster(hardware: HardwareRequest, k: int) -> Cluster:
    """The cluster of the request (the first) or of its options; errors name the field that it stands in."""
    where = f"options.hardware.{k - 1}" if k else "hardware"
    if hardware.devices > MAX_DEVICES:
        said = (
            f"per_node × nodes = {hardware.devices:,}; at most {MAX_DEVICES:,} devices are planned."
        )
        raise InputError(said, field=f"{where}.nodes")
    try:
        return cluster(hardware)
    except HardwareError as error:
        raise HardwareError(
            error.message,
            field=(error.field or "hardware").replace("hardware", where, 1),
            hint=error.hint,
        ) from None


def _check_draft(found: Resolved, wanted: Speculative | None, field: str) -> None:
    """Raise for a draft that the model does not have, and for percentiles of a step whose tokens are counted on average only."""
    if wanted is None:
        return
    if wanted.method == "mtp" and not found.model.draft_layers:
        raise InputError(
            f"{found.model.name} has no draft layers.",
            field=f"{field}.method",
            hint="Use eagle or ngram.",
        )
    _check_means(found, "speculative decoding")


def _check_means(found: Resolved, what: str) -> None:
    if found.request.objective.limits.percentile is not None:
        raise InputError(
            f"percentiles of {what} are not simulated by this version.",
            field="objective.limits.percentile",
            hint="Leave it out.",
        )


def weight_dtype(wanted: str, model: ModelSpec) -> str:
    """The stored format a request means: "auto" is the checkpoint's, and "fp8" or a 4-bit float any such that it already has."""
    stored = model.weight_dtype
    if (
        wanted == "auto"
        or (wanted == "fp8" and stored.startswith("fp8"))
        or {wanted, stored} == {"mxfp4", "nvfp4"}
    ):
        return stored
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
    wanted = workload.longest_tokens
    rounded = math.ceil(wanted / CONTEXT_STEP) * CONTEXT_STEP
    return max(wanted, min(rounded, model.max_context))


def spread_of(workload: ServingWorkload) -> Spread:
    """How lengths vary around their means: as stated, else as is typical."""
    stated = (workload.input_spread, workload.output_spread)
    return Spread(
        *(
            usual if spread is None else spread
            for spread, usual in zip(stated, (TYPICAL.input, TYPICAL.output), strict=True)
        )
    )


def load_of(workload: ServingWorkload) -> float:
    """The number that the mode is about."""
    named = {
        "closed": workload.concurrency,
        "open": workload.request_rate,
        "static": workload.batch,
        "offline": workload.requests,
    }
    return float(named[workload.mode] or 0)


def setting(
    found: Resolved, chosen: Engine, weights: str, cache: str, where: Cluster | None = None
) -> Setting:
    """What all splits of one engine and one pair of dtypes share."""
    where = where or found.cluster
    stored = weight_dtype(weights, found.model)
    if weights == "auto" and stored == "fp32" and "fp32" not in where.device.kv_dtypes:
        stored = "bf16"  # what engines load such a checkpoint as where they compute in 16 bit
    return Setting(
        found.model,
        where,
        chosen,
        found.workload.mode,
        stored,
        kv_dtype(cache, stored, found.model),
    )


def settings(found: Resolved) -> list[Setting]:
    """Every cluster × engine × weight dtype × cache dtype of the request's options, without repeats."""
    options = found.request.options
    out: dict[tuple[Any, ...], Setting] = {}
    for k, where in enumerate(found.clusters):
        engines = [found.engine(name, where) for name in options.engines or (None,)]
        every = [
            setting(found, e, w, c, where)
            for e in engines
            for w in options.weight_dtypes
            for c in options.kv_dtypes
        ]
        out |= {(k, s.engine.name, s.weight_dtype, s.kv_dtype): s for s in every}
    return list(out.values())


def _columns(
    found: Resolved, chosen: Engine, limits: CandidateRequest, where: Cluster | None = None
) -> dict[str, Any]:
    """Columns that do not depend on the split."""
    where = where or found.cluster
    device = where.device
    batching = chosen.batch_limits(device.usable_memory_bytes, device.architecture)
    workload = found.workload
    return {
        "per_node": where.per_node,
        "nodes": where.nodes,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "max_context": served_context(workload, found.model),
        "load": load_of(workload),
        "prefix_hit": workload.prefix_hit,
        "max_batched_tokens": limits.max_batched_tokens or batching.max_batched_tokens,
        "max_num_seqs": limits.max_num_seqs or batching.max_num_seqs,
        "memory_fraction": limits.memory_fraction or chosen.memory.fraction.value,
        "block_tokens": limits.block_size or chosen.memory.block_tokens,
        **_draft_columns(limits.speculative or workload.speculative, found.model),
        **_pool_columns(limits),
    }


def _draft_columns(wanted: Speculative | None, model: ModelSpec) -> dict[str, Any]:
    """What is drafted a step, and by how many layers."""
    if wanted is None:
        return {}
    layers = {"mtp": model.draft_layers, "eagle": 1, "ngram": 0}
    method = wanted.method or ("mtp" if model.draft_layers else "eagle")
    return {
        "draft_tokens": wanted.tokens,
        "acceptance": wanted.acceptance,
        "draft_layers": layers[method],
    }


def _pool_columns(limits: CandidateRequest) -> dict[str, Any]:
    """The prefill pool, and how many copies of the decoding split there are beside it."""
    pool = limits.prefill
    if pool is None:
        return {}
    degrees = {"tp": pool.tp, "pp": pool.pp, "dp": pool.dp, "ep": pool.ep, "copies": pool.replicas}
    return {"copies": limits.replicas or 1} | {
        f"prefill_{name}": value for name, value in degrees.items()
    }


def every_split(found: Resolved, chosen: Setting, limits: CandidateRequest | None = None) -> Cases:
    """All splits over the cluster for one setting; ``limits`` keeps those that agree with what it states."""
    limits, options, where = limits or CandidateRequest(), found.request.options, chosen.cluster
    pool = limits.prefill.devices if limits.prefill else 0
    devices = max(where.devices - pool, 0) // (limits.replicas or 1)
    shared = options.context_parallel or limits.cp is not None
    splits = enumerate_splits(
        devices,
        shares_experts=chosen.engine.split.experts if found.model.is_moe else "none",
        kv_heads=max(
            (a.kv_heads for layer, _ in found.model.kinds if (a := layer.attention)), default=1
        )
        if shared
        else None,
    )
    if options.nodes == "all":
        whole = (
            splits["tp"] * splits["pp"] * splits["dp"] * (limits.replicas or 1) + pool
            == where.devices
        )
        splits = {name: column[whole] for name, column in splits.items()}
    stated = {
        name: getattr(limits, name)
        for name in ("tp", "pp", "dp", "ep", "cp")
        if getattr(limits, name) is not None
    }
    keep = (
        np.all([splits[name] == value for name, value in stated.items()], axis=0)
        if stated
        else slice(None)
    )
    splits = {name: column[keep] for name, column in splits.items()}
    return cases(len(splits["tp"]), **splits, **_columns(found, chosen.engine, limits, where))


def every_case(found: Resolved, chosen: Setting, limits: CandidateRequest | None = None) -> Cases:
    """All splits, and those that no rule refuses with each draft, limit on a step and load of the options."""
    limits, options = limits or CandidateRequest(), found.request.options
    splits = every_split(found, chosen, limits)
    drafts = () if limits.speculative else options.speculative
    steps = () if limits.max_batched_tokens else options.max_batched_tokens
    loads = (
        tuple(dict.fromkeys((load_of(found.workload), *map(float, options.loads))))
        if options.loads
        else ()
    )
    if not (drafts or steps or loads):
        return splits
    legal = _worth_a_look(chosen, splits)
    rows, refused = np.flatnonzero(legal), np.flatnonzero(~legal)
    variants = [{}, *(_draft_columns(draft, found.model) for draft in drafts)]
    grid = [
        draft
        | ({} if tokens is None else {"max_batched_tokens": tokens})
        | ({} if load is None else {"load": load})
        for draft in variants
        for tokens in steps or (None,)
        for load in loads or (None,)
    ]
    out = splits.take(
        np.concatenate([refused, np.tile(rows, len(grid))])
    )  # a copy, so that its columns may be written to
    for k, changed in enumerate(grid):
        start = len(refused) + k * len(rows)
        for name, value in changed.items():
            getattr(out, name)[start : start + len(rows)] = value
    return out


def _worth_a_look(chosen: Setting, splits: Cases) -> Bool:
    """Splits that no rule refuses, whatever the load."""
    legal = np.ones(len(splits), dtype=np.bool_)
    for rule in (
        *refusals(chosen, splits),
        *search_rules(chosen, splits),
        *start_rules(chosen, splits),
    ):
        legal &= ~rule.broken
    return legal


def every_pair_of_pools(found: Resolved, chosen: Setting) -> Cases:
    """All deployments with a prefill pool beside the decoding one: any legal split in each, copied as often as the cluster holds."""
    splits = every_split(found, chosen)
    legal = _worth_a_look(chosen, splits)
    units = splits.take(np.flatnonzero(legal & ((splits.dp == 1) | splits.shares_experts)))
    size = units.devices
    rows = []
    for decode, prefill in np.ndindex(len(units), len(units)):
        most = int((chosen.cluster.devices - size[prefill]) // size[decode])
        for copies in range(1, most + 1):
            others = int((chosen.cluster.devices - copies * size[decode]) // size[prefill])
            rows.append(
                np.stack(
                    [
                        np.full(others, decode),
                        np.full(others, prefill),
                        np.full(others, copies),
                        np.arange(1, others + 1),
                    ]
                )
            )
    if not rows:
        return splits.take(np.zeros(0, dtype=np.int64))
    decode, prefill, copies, others = np.concatenate(rows, axis=1)
    pool = {f"prefill_{name}": getattr(units, name)[prefill] for name in ("tp", "pp", "dp", "ep")}
    return replace(units.take(decode), copies=copies, prefill_copies=others, **pool)


def one_split(found: Resolved, candidate: CandidateRequest) -> tuple[Setting, Cases] | None:
    """The one case of a candidate whose split is stated in full (ep left out means 1), else None."""
    check_candidate(candidate)
    _check_draft(found, candidate.speculative, "candidate.speculative")
    _check_pools(found, candidate)
    if candidate.tp is None or candidate.pp is None or candidate.dp is None:
        return None
    chosen_engine = found.engine(candidate.engine)
    chosen = setting(
        found, chosen_engine, candidate.weight_dtype or "auto", candidate.kv_dtype or "auto"
    )
    split = {
        "tp": candidate.tp,
        "pp": candidate.pp,
        "dp": candidate.dp,
        "ep": candidate.ep or 1,
        "cp": candidate.cp or 1,
    }
    return chosen, cases(1, **split, **_columns(found, chosen_engine, candidate))


def check_candidate(candidate: CandidateRequest) -> None:
    """Raise for fields that serving does not have or this version does not model."""
    given = [name for name in _TRAINING_FIELDS if getattr(candidate, name) is not None]
    if given:
        raise InputError(
            "belongs to training, not to serving.",
            field=f"candidate.{given[0]}",
            hint="Leave it out.",
        )
    if candidate.eager:
        raise InputError(
            "eager execution is not modelled by this version.",
            field="candidate.eager",
            hint="Leave it out.",
        )


def _check_pools(
    found: Resolved, candidate: CandidateRequest, field: str = "candidate.prefill"
) -> None:
    """Raise for what pools of their own do not go with."""
    if candidate.prefill is None:
        if candidate.replicas is not None:
            raise InputError(
                "goes with a prefill pool.",
                field="candidate.replicas",
                hint="Use dp, or add candidate.prefill.",
            )
        return
    if found.workload.mode == "static":
        raise InputError(
            "a static batch is not served by two pools.",
            field=field,
            hint="Leave it out or change the mode.",
        )
    _check_means(found, "disaggregated pools")


def describe(chosen: Setting, columns: Cases, i: int) -> dict[str, Any]:
    """Row ``i`` as the candidate of the contract: what a recipe pins and a launch repeats."""
    return _split(chosen, columns, i) | _draft(chosen, columns, i) | _pools(columns, i)


def _draft(chosen: Setting, columns: Cases, i: int) -> dict[str, Any]:
    if not columns.draft_tokens[i]:
        return {}
    layers = columns.draft_layers[i]
    method = "ngram" if not layers else "mtp" if layers == chosen.model.draft_layers else "eagle"
    return {
        "speculative": {
            "tokens": int(columns.draft_tokens[i]),
            "acceptance": float(columns.acceptance[i]),
            "method": method,
        }
    }


def _pools(columns: Cases, i: int) -> dict[str, Any]:
    if not columns.prefill_tp[i]:
        return {}
    degrees = {
        name: int(getattr(columns, f"prefill_{name}")[i]) for name in ("tp", "pp", "dp", "ep")
    }
    return {
        "replicas": int(columns.copies[i]),
        "prefill": degrees | {"replicas": int(columns.prefill_copies[i])},
    }


def _split(chosen: Setting, columns: Cases, i: int) -> dict[str, Any]:
    return {
        "engine": chosen.engine.name,
        "tp": int(columns.tp[i]),
        "pp": int(columns.pp[i]),
        "dp": int(columns.dp[i]),
        "ep": int(columns.ep[i]),
        "cp": int(columns.cp[i]),
        "weight_dtype": chosen.weight_dtype,
        "kv_dtype": chosen.kv_dtype,
        "max_batched_tokens": int(columns.max_batched_tokens[i]),
        "max_num_seqs": int(columns.max_num_seqs[i]),
        "memory_fraction": float(columns.memory_fraction[i]),
        "block_size": int(columns.block_tokens[i]),
    }
