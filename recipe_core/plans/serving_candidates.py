"""The serving splits a plan evaluates.

Every engine, number format, split, draft, step limit and load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

import numpy as np

from recipe_core.accuracy.choice import weight_dtypes
from recipe_core.accuracy.schemes import Making
from recipe_core.base import budget
from recipe_core.base.arrays import Bool, Int
from recipe_core.base.errors import InputError
from recipe_core.base.types import Task
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.options import COLUMNS, OPTIONS, STATED, USUAL, CandidateOption
from recipe_core.engines.release import BatchLimits
from recipe_core.engines.spec import Engine, Interval, default_engine, engine
from recipe_core.estimates.columns.serving import WIDE, Cases, ReuseCurve, Setting, cases
from recipe_core.estimates.columns.splits import enumerate_splits
from recipe_core.estimates.rules.own_options import effects_of
from recipe_core.estimates.rules.rules import serving_refusals, serving_search_rules, start_rules
from recipe_core.estimates.serving.simulate import TYPICAL, Spread
from recipe_core.estimates.serving.starts import fullest_share, start_errors
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.profile import Device
from recipe_core.models.spec import ModelSpec
from recipe_core.models.towers import Media
from recipe_core.plans.kv_offload import offload_of
from recipe_core.plans.pool_pairs import pool_pairs
from recipe_core.plans.problem import ServingProblem, check_candidate
from recipe_core.plans.size import HALVES, check_size, check_splits, model_on_device
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.serving_workload import LOADS, ServingWorkload, Speculative

CONTEXT_STEP = 1024
DEGREES = ("tp", "pp", "dp", "ep", "cp")
POOL_DEGREES = ("tp", "pp", "dp", "ep")
# Columns of the intervals of a candidate.
INTERVALS: dict[str, str] = {name: COLUMNS[name] for name in get_args(Interval)}


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


def served_context(workload: ServingWorkload, model: ModelSpec) -> int:
    """The longest request, in tokens, that the engine is told to accept.

    As requested, else input + output rounded up to a multiple of 1,024 within the model's context.
    """
    if workload.max_context is not None:
        return workload.max_context
    longest = workload.longest_tokens
    rounded = math.ceil(longest / CONTEXT_STEP) * CONTEXT_STEP
    return max(longest, min(rounded, model.max_context))


def workload_spread(workload: ServingWorkload) -> Spread:
    """How lengths vary around their means: as requested, else as is typical."""
    prompt, answer = workload.input_spread, workload.output_spread
    return Spread(
        TYPICAL.input if prompt is None else prompt, TYPICAL.output if answer is None else answer
    )


def mode_load(workload: ServingWorkload) -> float:
    """The number that the mode is about: concurrency, requests per second, batch or requests.

    1 where the load is searched.
    """
    return float(getattr(workload, LOADS[workload.mode]) or 1)


# Settings: what all cases of an estimate share


def serving_setting(
    problem: ServingProblem, spec: Engine, weights: str, cache: str, place: Cluster | None = None
) -> Setting:
    """What all splits of one engine and one pair of formats share on a cluster.

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
        spec,
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
    )
    if corrections is None or (corrections.compressed and not corrections.count):
        return shared
    return replace(shared, correction=corrections.of(shared))


def _checkpoint_making(problem: ServingProblem) -> Making | None:
    """How the bundle makes the checkpoint, as far as it is stated; None where it makes none."""
    compression = problem.request.options.compression
    if compression is None:
        return None
    method = "" if compression.method == "auto" else compression.method
    return Making(method, technique=compression.technique or "")


def _media(workload: ServingWorkload, model: ModelSpec) -> tuple[Media, ...]:
    """What prompts hold besides text, with the towers that encode it."""
    tower_parts = ((model.tower("image"), workload.images), (model.tower("audio"), workload.audio))
    return tuple(
        Media(tower, part.per_request, part.tokens)
        for tower, part in tower_parts
        if tower is not None and part is not None
    )


def reuse_of(workload: ServingWorkload) -> ReuseCurve | None:
    """What prefix caches find by their size; None where the workload states one share."""
    points = [(point.cache_tokens, point.hit) for point in workload.prefix_reuse]
    return ReuseCurve.of(points, workload.prefix_affinity) if points else None


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
    if options.batch_windows_ms and not any(spec.batcher for spec in engines.values()):
        raise InputError(
            f"no batches are formed by a window ({', '.join(engines)}).",
            field="options.batch_windows_ms",
            hint="Leave it out, or name an engine that does (triton-onnxruntime).",
        )
    return list(out.values())


# Columns


def _setting_columns(
    problem: ServingProblem, spec: Engine, candidate: CandidateRequest, place: Cluster
) -> dict[str, Any]:
    """Columns that do not depend on the split."""
    device, workload = place.device, problem.workload
    batching = _usual_limits(spec, device)
    longest, tokens = served_context(workload, problem.model), batching.max_batched_tokens
    if workload.pooled and (problem.model.is_encoder or not spec.chunked_prefill):
        tokens = max(tokens, longest)  # a prompt runs whole, so engines make room for the longest
    return {
        "per_node": place.per_node,
        "nodes": place.nodes,
        "input_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "max_context": longest,
        "load": mode_load(workload),
        "prefix_hit": workload.prefix_hit,
        **_option_columns(
            candidate,
            {
                "max_batched_tokens": tokens,
                "max_num_seqs": batching.max_num_seqs,
                "memory_fraction": _usual_share(problem, spec, place),
                "block_size": _usual_block(problem, spec),
            },
        ),
        "length_spread": workload.input_spread or 0.0,
        **_batcher_columns(spec, candidate),
        **_optional_columns(spec, candidate),
        **_interval_columns(problem, spec, candidate, place, mode_load(workload)),
        **_draft_columns(candidate.speculative or workload.speculative, problem.model),
        **_pool_columns(candidate),
    }


def _usual_limits(spec: Engine, device: Device) -> BatchLimits:
    """The engine's default limits of a step.

    Of memory that a processor shares, those of its newest release where these are lower: older ones
    take it for a large card's, and run out of it when they capture graphs.
    """
    usual = spec.batch_limits(device.usable_memory_bytes, device.architecture)
    newest = spec.history.newest if spec.history is not None else None
    if not device.unified or newest is None or spec.as_of is not None:
        return usual
    then = spec.at(newest, 1).batch_limits(device.usable_memory_bytes, device.architecture)
    return min(usual, then, key=lambda limits: limits.max_num_seqs)


def _usual_block(problem: ServingProblem, spec: Engine) -> int:
    """Tokens of a block: the engine's default, or what moving blocks off the devices needs."""
    offload = offload_of(problem.request.options.kv_offload, spec)
    pages = (
        offload.connector.page_tokens
        if offload is not None and offload.connector is not None
        else None
    )
    return pages or spec.memory.block_tokens


def _usual_share(problem: ServingProblem, spec: Engine, place: Cluster) -> float:
    """The engine's default share of a device, less what it leaves for encoding.

    Of memory that a processor shares, no more than is surely free.
    """
    share, encoder = spec.memory.fraction.value, spec.memory.encoder
    if place.device.unified:
        plain = Setting(problem.model, place, spec, "closed", problem.model.dtype, "bf16")
        share = min(share, fullest_share(plain, start_errors().sure))
    if encoder is None or not problem.model.towers:
        return share
    return share - encoder.reserved_bytes / place.device.usable_memory_bytes


def _batcher_columns(spec: Engine, candidate: CandidateRequest) -> dict[str, float]:
    """How long a server waits to fill a batch, and its instances on a device.

    Raises:
        InputError: for an engine that does not wait, or more than it takes.
    """
    values = {"batch_window_ms": candidate.batch_window_ms, "instances": candidate.instances}
    batcher = spec.batcher
    if batcher is None:
        for name, value in values.items():
            if value not in (None, 0 if name == "batch_window_ms" else 1):
                raise InputError(
                    f"{spec.title} {spec.version} forms no batches by a window.",
                    field=f"candidate.{name}",
                    hint="Leave it out, or choose an engine that does (triton-onnxruntime).",
                )
        return {}
    for name, limit in (
        ("batch_window_ms", batcher.most_window_ms),
        ("instances", batcher.most_instances),
    ):
        if (value := values[name]) is not None and value > limit:
            raise InputError(
                f"{spec.title} takes {limit:g} at most, not {value:g}.",
                field=f"candidate.{name}",
                hint=f"Set {limit:g} or less.",
            )
    window_ms = values["batch_window_ms"]
    return {
        "window_s": (batcher.window_ms if window_ms is None else window_ms) / 1000,
        "instances": values["instances"] or batcher.instances,
    }


def _option_columns(candidate: CandidateRequest, usual: Mapping[str, float]) -> dict[str, float]:
    """Options that every launch states: as the candidate does, else the engine's ``usual``."""
    return {
        option.column: getattr(candidate, option.name) or usual[option.name] for option in STATED
    }


def _optional_columns(spec: Engine, candidate: CandidateRequest) -> dict[str, float]:
    """Options that a launch leaves out where they are as usual.

    Raises:
        InputError: for one that the engine does not have.
    """
    out: dict[str, float] = {}
    # An engine may parse an interval's option and pass it on to none of its engines.
    offered = {*option_meanings(spec).values()} - {*INTERVALS}
    offered |= {*(spec.intervals.options if spec.intervals else ())}
    for name, usual in USUAL.items():
        value = getattr(candidate, name)
        if value not in (None, usual) and name not in offered:
            missing = "such interval" if name in INTERVALS else f"option for {name}"
            raise InputError(
                f"{spec.title} {spec.version} has no {missing}.",
                field=f"candidate.{name}",
                hint=f"Leave it out, or set {usual:g}.",
            )
        out[COLUMNS[name]] = usual if value is None else value
    return out


# Goals for which nothing waits; limits on the first token or the whole answer are like them.
_WAITED_FOR = ("latency", "ttft", "tpot")


def _interval_columns(
    problem: ServingProblem, spec: Engine, candidate: CandidateRequest, place: Cluster, load: float
) -> dict[str, int]:
    """Steps between what the engine does not do in every step: as stated, else by the objective.

    Published launches' where nothing counts that they lengthen; else 1.
    """
    objective, workload, intervals = problem.request.objective, problem.workload, spec.intervals
    limits = objective.limits.ttft_ms, objective.limits.request_latency_ms
    waited_for = any(goal in objective.goals for goal in _WAITED_FOR) or limits != (None, None)
    usual = None
    if intervals and workload.mode in ("closed", "open") and not waited_for:
        # a rate does not say how many are in flight
        requests = load if workload.mode == "closed" else 0.0
        usual = intervals.usual(place.device.architecture, workload.output_tokens, requests)
    return {
        column: getattr(candidate, name) or (getattr(usual, name) if usual else 1)
        for name, column in INTERVALS.items()
    }


def with_intervals(
    problem: ServingProblem, shared: Setting, candidate: CandidateRequest, columns: Cases
) -> Cases:
    """The cases with the intervals that go with the load of each."""
    spec, place = shared.engine, shared.cluster
    if spec.intervals is None:
        return columns
    floors = np.array(sorted({usual.requests_at_least for usual in spec.intervals.throughput}))
    numbers = np.searchsorted(floors, columns.load, side="right")
    out = {name: np.array(getattr(columns, name)) for name in INTERVALS.values()}
    for number in np.unique(numbers).tolist():
        load = float(floors[number - 1]) if number else 0.0
        steps = _interval_columns(problem, spec, candidate, place, load)
        for name, value in steps.items():
            out[name][numbers == number] = value
    return replace(columns, **out)


def _draft_columns(draft: Speculative | None, model: ModelSpec) -> dict[str, Any]:
    """How many tokens are drafted a step, and by how many layers."""
    if draft is None:
        return {}
    layers = {"mtp": model.draft_layers, "eagle": 1, "ngram": 0}
    method = draft.method or ("mtp" if model.draft_layers else "eagle")
    return {
        "draft_tokens": draft.tokens,
        "acceptance": draft.acceptance,
        "draft_layers": layers[method],
    }


def _pool_columns(candidate: CandidateRequest) -> dict[str, Any]:
    """The prefill pool, and how many copies of the decoding split there are beside it."""
    pool = candidate.prefill
    if pool is None:
        return {}
    degrees = {f"prefill_{name}": getattr(pool, name) for name in POOL_DEGREES}
    return {**degrees, "prefill_copies": pool.replicas, "copies": candidate.replicas or 1}


# Cases


def _sharing_kv_heads(problem: ServingProblem, candidate: CandidateRequest) -> int | None:
    """KV heads whose copies may share a cache (cp); None where no split may."""
    if not problem.request.options.context_parallel and candidate.cp is None:
        return None
    mixers = [layer.attention for layer, _ in problem.model.kinds if layer.attention]
    return max((mixer.kv_heads for mixer in mixers), default=1)


def every_split(
    problem: ServingProblem, shared: Setting, candidate: CandidateRequest | None = None
) -> Cases:
    """All splits over the cluster for one setting that agree with what ``candidate`` states.

    Raises:
        LimitError: for more than the budget of the request allows, before they are made.
    """
    candidate = candidate or CandidateRequest()
    options, place, model = problem.request.options, shared.cluster, problem.model
    copies = candidate.replicas or 1
    pool = candidate.prefill.devices if candidate.prefill else 0
    devices = max(place.devices - pool, 0) // copies
    sharing = shared.engine.split.experts if model.is_moe else "none"
    kv_heads = _sharing_kv_heads(problem, candidate)
    check_splits(place, sharing, kv_heads, devices)
    splits = enumerate_splits(devices, shares_experts=sharing, kv_heads=kv_heads)
    keep = np.ones(len(splits["tp"]), dtype=np.bool_)
    if options.nodes == "all":
        keep &= splits["tp"] * splits["pp"] * splits["dp"] * copies + pool == place.devices
    for name in DEGREES:
        if (degree := getattr(candidate, name)) is not None:
            keep &= splits[name] == degree
    columns = {name: column[keep] for name, column in splits.items()}
    rest = _setting_columns(problem, shared.engine, candidate, place)
    return cases(int(keep.sum()), **columns, **rest)


@dataclass(frozen=True, slots=True)
class _Planned:
    """Splits of a setting that are to be evaluated; ``legal`` ones under every variant."""

    setting: Setting
    splits: Cases
    legal: Bool
    variants: list[dict[str, Any]]


def every_serving_case(
    problem: ServingProblem, candidate: CandidateRequest | None = None
) -> list[tuple[Setting, Cases]]:
    """All splits of every setting; the legal ones also with each draft, step limit and load.

    Without a ``candidate`` also the pairs of pools where the options ask for them.

    Raises:
        LimitError: for more than the budget of the request allows, before they are made.
    """
    options = problem.request.options
    paired = options.disaggregated and candidate is None
    candidate = candidate or CandidateRequest()
    planned, total = [], 0
    for shared in serving_settings(problem):
        budget.spend()
        variants = _option_variants(problem, shared.engine, candidate)
        splits = every_split(problem, shared, candidate)
        several = paired or variants != [{}]
        # alone each split is judged once, when it is evaluated
        legal = _statically_legal(shared, splits) if several else np.ones(len(splits), np.bool_)
        total += len(splits) + int(legal.sum()) * (len(variants) - 1)
        check_size(total, options)
        planned.append(_Planned(shared, splits, legal, variants))
    out = [(entry.setting, _expand_variants(problem, candidate, entry)) for entry in planned]
    if paired:
        pairs = [(entry.setting, _pool_pair_cases(problem, entry)) for entry in planned]
        check_size(total + sum(len(columns) for _, columns in pairs), options)
        out += pairs
    return [(shared, columns) for shared, columns in out if len(columns)]


def _pool_pair_cases(problem: ServingProblem, planned: _Planned) -> Cases:
    """The pairs of a prefill and a decode pool that are worth estimating."""
    splits = planned.splits
    poolable = planned.legal & ((splits.dp == 1) | splits.shares_experts)
    return pool_pairs(problem, planned.setting, splits.take(np.flatnonzero(poolable)))


def _option_variants(
    problem: ServingProblem, spec: Engine, candidate: CandidateRequest
) -> list[dict[str, Any]]:
    """Columns of each draft × step limit × window × load of the options.

    One empty where there are none.
    """
    options = problem.request.options
    drafts: list[dict[str, Any]] = [{}]
    if not candidate.speculative:
        drafts += [_draft_columns(draft, problem.model) for draft in options.speculative]
    steps: list[dict[str, Any]] = [{}]
    if options.max_batched_tokens and not candidate.max_batched_tokens:
        steps = [{"max_batched_tokens": tokens} for tokens in options.max_batched_tokens]
    windows: list[dict[str, Any]] = [{}]
    if spec.batcher and options.batch_windows_ms and candidate.batch_window_ms is None:
        windows = [{"window_s": ms / 1000} for ms in dict.fromkeys(options.batch_windows_ms)]
    loads: list[dict[str, Any]] = [{}]
    if options.loads:
        first = mode_load(problem.workload)
        loads = [{"load": load} for load in dict.fromkeys((first, *map(float, options.loads)))]
    return [
        {**draft, **step, **window, **load}
        for draft, step, window, load in product(drafts, steps, windows, loads)
    ]


def _expand_variants(
    problem: ServingProblem,
    candidate: CandidateRequest,
    planned: _Planned,
) -> Cases:
    """The illegal splits once, the legal ones under every variant."""
    variants = planned.variants
    if variants == [{}]:
        return planned.splits
    rows, refused = np.flatnonzero(planned.legal), np.flatnonzero(~planned.legal)
    # a copy, so that its columns may be written to
    out = planned.splits.take(np.concatenate([refused, np.tile(rows, len(variants))]))
    spec, place = planned.setting.engine, planned.setting.cluster
    for k, columns in enumerate(variants):
        start = len(refused) + k * len(rows)
        if "load" in columns:
            intervals = _interval_columns(problem, spec, candidate, place, columns["load"])
            columns = columns | intervals
        for name, value in columns.items():
            getattr(out, name)[start : start + len(rows)] = value
    return out


def _statically_legal(shared: Setting, splits: Cases) -> Bool:
    """Splits that no rule refuses, whatever the load."""
    legal = np.ones(len(splits), dtype=np.bool_)
    for rules in (serving_refusals, serving_search_rules, start_rules):
        for rule in rules(shared, splits):
            legal &= ~rule.broken
    return legal


def stated_serving_case(
    problem: ServingProblem, candidate: CandidateRequest, release: str | None = None
) -> tuple[Setting, Cases] | None:
    """The one case of a candidate whose split is stated in full (ep left out means 1), else None.

    ``release``: whose memory rules count, where the candidate states none.

    Raises:
        InputError: for a candidate that this version does not model.
    """
    check_candidate(problem, candidate)
    if candidate.tp is None or candidate.pp is None or candidate.dp is None:
        return None
    spec = requested_engine(candidate.engine, problem.cluster, problem.model.task)
    if (release := candidate.engine_version or release) is not None:
        spec = spec.at(release, served_context(problem.workload, problem.model))
    weights, cache = candidate.weight_dtype or "auto", candidate.kv_dtype or "auto"
    degrees = {name: getattr(candidate, name) or 1 for name in DEGREES}
    columns = _setting_columns(problem, spec, candidate, problem.cluster)
    return serving_setting(problem, spec, weights, cache), cases(1, **degrees, **columns)


# The candidate of a case


def describe_serving_cases(shared: Setting, columns: Cases, rows: Int) -> list[dict[str, Any]]:
    """Some cases as candidates of the contract: what a recipe pins and a launch repeats."""
    n = len(rows)
    values: dict[str, list[Any]] = {"engine": [shared.engine.name] * n}
    values |= {name: getattr(columns, name)[rows].tolist() for name in DEGREES}
    values |= {
        "weight_dtype": [shared.weight_dtype] * n,
        "kv_dtype": [shared.kv_dtype] * n,
        **{option.name: _option_numbers(option, columns, rows) for option in STATED},
    }
    if shared.engine.as_of is not None:
        values["engine_version"] = [shared.engine.as_of] * n
    out = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    intervals, architecture = shared.engine.intervals, shared.cluster.device.architecture
    always = intervals.options if intervals and intervals.chosen_on(architecture) else ()
    for option in OPTIONS:
        if option.usual is None:
            continue
        for place, value in enumerate(_option_numbers(option, columns, rows)):
            if option.name in always or value != option.usual:
                out[place][option.name] = value
    if shared.engine.batcher is not None:
        for place, i in enumerate(rows.tolist()):
            out[place]["batch_window_ms"] = round(float(columns.window_s[i]) * 1000, 6)
            out[place]["instances"] = int(columns.instances[i])
    for place in np.flatnonzero(columns.draft_tokens[rows]).tolist():
        i = rows[place]
        out[place]["speculative"] = {
            "tokens": int(columns.draft_tokens[i]),
            "acceptance": float(columns.acceptance[i]),
            "method": _draft_method(shared.model, int(columns.draft_layers[i])),
        }
    for place in np.flatnonzero(columns.prefill_tp[rows]).tolist():
        i = rows[place]
        pool = {name: int(getattr(columns, f"prefill_{name}")[i]) for name in POOL_DEGREES}
        out[place]["replicas"] = int(columns.copies[i])
        out[place]["prefill"] = {**pool, "replicas": int(columns.prefill_copies[i])}
    return out


def _option_numbers(option: CandidateOption, columns: Cases, rows: Int) -> list[Any]:
    numbers = getattr(columns, option.column)[rows].tolist()
    return [int(number) for number in numbers] if option.integral else numbers


def _draft_method(model: ModelSpec, layers: int) -> str:
    if not layers:
        return "ngram"
    return "mtp" if layers == model.draft_layers else "eagle"
