"""Facts that all cases of a serving estimate share: cluster, engine, formats and context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from recipe_core.accuracy.choice import weight_dtypes
from recipe_core.accuracy.technique import Making
from recipe_core.base.errors import HardwareError
from recipe_core.base.types import Task
from recipe_core.base.units import GIB
from recipe_core.engines.memory import Through, Tier
from recipe_core.engines.spec import Engine, default_engine, engine
from recipe_core.estimates.columns.serving import WIDE, ReuseCurve, Setting
from recipe_core.estimates.rules.kv_offload import FIELD, Offload, Store
from recipe_core.estimates.rules.links import apart_on
from recipe_core.estimates.rules.own_options import effects_of
from recipe_core.estimates.serving.simulate import TYPICAL, Spread
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.host import storage_tier
from recipe_core.models.spec import ModelSpec
from recipe_core.models.towers import Media
from recipe_core.plans.problem import ServingProblem, refuse_field
from recipe_core.plans.size import HALVES, model_on_device
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import timed_limits
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import (
    LOADS,
    SIDES,
    WAITED_FOR,
    KvOffload,
    KvStore,
    ServingWorkload,
    whole_steps,
)

# What a workload means to an engine


def weight_dtype(dtype: str, model: ModelSpec) -> str:
    """The stored format that a requested ``dtype`` means.

    "auto" is the checkpoint's; "fp8" or a 4-bit float is any such format the checkpoint already
    has.
    """
    stored = model.weight_dtype
    same_width = (dtype == "fp8" and stored.startswith("fp8")) or {dtype, stored} == {
        "mxfp4",
        "nvfp4",
    }
    return stored if dtype == "auto" or same_width else dtype


def kv_dtype(dtype: str, weights: str, model: ModelSpec) -> str:
    """The cache format that a requested ``dtype`` means.

    "auto" is the checkpoint's, else that of activations.
    """
    if dtype != "auto":
        return dtype
    return model.kv_dtype or (weights if weights in WIDE else model.dtype)


def cached_as(dtype: str, shared: Setting) -> str:
    """The cache format that a requested ``dtype`` means for a setting."""
    return kv_dtype(dtype, shared.weight_dtype, shared.model)


class Positions(Protocol):
    """Whatever says how many tokens a model takes."""

    @property
    def max_context(self) -> int: ...


def served_context(workload: ServingWorkload, model: Positions) -> int:
    """The longest request, in tokens, that the engine is told to accept.

    As requested, else the usual one of such traffic within the model's context.
    """
    if workload.max_context is not None:
        return workload.max_context
    return max(workload.longest_tokens, min(workload.usual_longest, model.max_context))


def load_context(workload: ServingWorkload, model: ModelSpec) -> int:
    """The longest request of the load itself, in tokens, on which times and the cache are counted.

    As requested, else the mean request, or with spreads the longest, in whole steps.
    """
    if workload.max_context is not None:
        return workload.max_context
    longest = workload.longest_tokens
    return max(longest, min(whole_steps(longest), model.max_context))


def workload_spread(workload: ServingWorkload) -> Spread:
    """Return how lengths vary around their means: as requested, else as is typical."""
    prompt, answer = workload.input_spread, workload.output_spread
    return Spread(
        TYPICAL.input if prompt is None else prompt,
        TYPICAL.output if answer is None else answer,
        *(workload.relative_lengths(side) for side in SIDES),
    )


def length_variances(workload: ServingWorkload) -> dict[str, float]:
    """Return the columns of variances of lengths that have a shape."""
    out = {}
    for side in SIDES:
        if relative := workload.relative_lengths(side):
            out[f"{side}_variance"] = float(np.var(relative))
    return out


def mode_load(workload: ServingWorkload) -> float:
    """The number that the mode is about: concurrency, requests per second, batch or requests.

    1 where the load is searched.
    """
    return float(getattr(workload, LOADS[workload.mode]) or 1)


def admits_by_limits(request: PlanRequest, candidate: CandidateRequest | None) -> bool:
    """Return whether engines admit no more requests than keep the limits on time.

    So they do for users who wait, unless the request or a candidate says how many are admitted.
    """
    workload, limits = request.workload, request.objective.limits
    if not isinstance(workload, ServingWorkload) or workload.mode not in WAITED_FOR:
        return False
    if workload.pooled or request.options.admit != "limits":
        return False
    if candidate is not None and candidate.max_num_seqs is not None:
        return False
    return any(getattr(limits, name) is not None for name in timed_limits())


# Settings: what all cases of an estimate share


def serving_setting(
    problem: ServingProblem, spec: Engine, weights: str, cache: str, place: Cluster | None = None
) -> Setting:
    """Return what all splits of one engine and one pair of formats share on a cluster.

    The request's by default.
    """
    place = place or problem.cluster
    model = model_on_device(problem.model, place.device)
    stored = weight_dtype(weights, model)
    if weights == "auto" and stored == "fp32" and "fp32" not in place.device.kv_dtypes:
        # what engines load such a checkpoint as where they compute in 16 bit
        stored = next(half for half in HALVES if half in place.device.kv_dtypes)
    cached = kv_dtype(cache, stored, model)
    corrections, options = problem.corrections, problem.request.options
    shared = Setting(
        model,
        place,
        apart_on(place, spec),
        problem.workload.mode,
        stored,
        cached,
        media=_media(problem.workload, problem.model),
        reuse=reuse_of(problem.workload),
        offload=offload_of(options.kv_offload, spec),
        judged_on=problem.request.objective.accuracy_of,
        assumed=problem.assumed,
        compressed=() if corrections is None else corrections.compressed,
        making=_checkpoint_making(problem),
        effects=effects_of(spec, options.engine_options, options.environment, model),
        exact=problem.workload.exact,
        answers=problem.workload.relative_lengths("output"),
    )
    if corrections is None or (corrections.compressed and not corrections.count):
        return shared
    return replace(shared, correction=corrections.of(shared))


def _checkpoint_making(problem: ServingProblem) -> Making | None:
    """Return how the bundle makes the checkpoint, as far as stated; None where it makes none."""
    compression = problem.request.options.compression
    if compression is None:
        return None
    method = "" if compression.method == "auto" else compression.method
    return Making(method, technique=compression.technique or "")


def _media(workload: ServingWorkload, model: ModelSpec) -> tuple[Media, ...]:
    """Return what prompts hold besides text, with the towers that encode it."""
    tower_parts = ((model.tower("image"), workload.images), (model.tower("audio"), workload.audio))
    return tuple(
        Media(tower, part.per_request, part.tokens)
        for tower, part in tower_parts
        if tower is not None and part is not None
    )


def reuse_of(workload: ServingWorkload) -> ReuseCurve | None:
    """Return what prefix caches find by their size; None where the workload states one share."""
    points = [(point.cache_tokens, point.hit) for point in workload.prefix_reuse]
    return ReuseCurve.of(points, workload.prefix_affinity) if points else None


def offload_of(offload: KvOffload | None, spec: Engine) -> Offload | None:
    """The tiers of an engine; None where none is asked for.

    Raises:
        HardwareError: for a storage tier that there is not, naming close ones.
    """
    if offload is None:
        return None
    ways: list[Through] = [*spec.kv_offload]
    through = offload.through or (ways[0] if ways else None)
    per_device = offload.host_gib is None
    host_gib = offload.host_gib_per_device if per_device else offload.host_gib
    stores = (*_kv_store("disk", offload.disk), *_kv_store("remote", offload.remote))
    connector = spec.kv_offload.get(through) if through else None
    return Offload(through, connector, (host_gib or 0.0) * GIB, per_device, stores)


def _kv_store(tier: Tier, store: KvStore | None) -> Iterator[Store]:
    if store is None:
        return
    try:
        storage = storage_tier(store.tier)
    except HardwareError as error:
        field = f"{FIELD}.{tier}.tier"
        raise HardwareError(error.message, field=field, hint=error.hint) from error
    yield Store(tier, storage, store.gib * GIB, store.path, store.url)


def requested_engine(name: str | None, place: Cluster, task: Task = "generate") -> Engine:
    return engine(name) if name else default_engine(place.device.runtime, task)


def serving_settings(problem: ServingProblem) -> list[Setting]:
    """Every cluster × engine × weight format × cache format of the options, without repeats.

    Raises:
        InputError: for windows to judge where no engine waits to fill a batch.
    """
    options = problem.request.options
    out: dict[tuple[Any, ...], Setting] = {}
    for k, place in enumerate(problem.clusters):
        for name in options.engines or (None,):
            spec = requested_engine(name, place, problem.model.task)
            for weights in weight_dtypes(options):
                for cache in options.kv_dtypes:
                    shared = serving_setting(problem, spec, weights, cache, place)
                    out[k, spec.name, shared.weight_dtype, shared.kv_dtype] = shared
    engines = {shared.engine.title: shared.engine for shared in out.values()}
    refuse_field(
        options.batch_windows_ms and not any(spec.batcher for spec in engines.values()),
        f"no batches are formed by a window ({', '.join(engines)}).",
        "options.batch_windows_ms",
        "Leave it out, or name an engine that does (triton-onnxruntime).",
    )
    return list(out.values())
