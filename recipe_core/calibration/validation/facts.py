"""Facts that a measurement states and a request did not, each with an effect to estimate.

A fact changes the request (another load, another release of the engine), or figures of the estimate
that follow from a measured one (a cache of other bytes holds other tokens). Facts that a file does
not state, such as the format of its weights, are guesses, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.base.units import gib, share_text
from recipe_core.calibration.importers.measurement import Imported
from recipe_core.engines.spec import Engine, engine, engine_names
from recipe_core.estimates.columns.corrections import assumed_version, version_in_text
from recipe_core.estimates.serving.cache import logged_requests, logged_tokens, logs_less
from recipe_core.models.catalog import in_catalog
from recipe_core.plans.plan import Plan
from recipe_core.request.serving_workload import LOADS

Values = dict[str, Any]
Change = Callable[[Values], Values]
Adjust = Callable[[dict[str, float]], dict[str, float]]

TIMES = frozenset({"ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"})
CACHE = frozenset({"kv_cache_bytes", "kv_cache_tokens", "max_concurrency"})
ALL = TIMES | CACHE | {"weights_bytes"}
STEP = frozenset({"step_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes"})
# Tokens that the cache holds, where engines log another number.
HELD = "held_tokens"
GUESSED_FORMATS = ("bf16", "fp16", "fp32", "fp8", "int8", "int4")
CACHE_FORMATS = {
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
}
# A load in words.
WORDS = {
    "input_tokens": "{} tokens a prompt",
    "output_tokens": "{} tokens an answer",
    "concurrency": "{} users at once",
    "request_rate": "{} requests a second",
    "batch": "a batch of {}",
    "requests": "a queue of {} requests",
}
LIMITS = {
    "memory_fraction": "the engine took {} of the memory",
    "max_num_seqs": "the engine ran at most {} requests at once",
    "max_batched_tokens": "a step computed at most {} tokens (chunked prefill)",
    "block_size": "a block of the cache held {} tokens",
}
_TRAINED = ("micro_batch", "recompute", "precision", "zero_stage", "sequence_parallel", "shard")
TRAINED = {name: f"{name.replace('_', ' ')} was {{}}" for name in _TRAINED}


@dataclass(frozen=True)
class Fact:
    """One difference between what was planned and what was measured.

    ``about``: figures that it can move. ``guess``: whether no file states it.
    """

    name: str
    title: str
    about: frozenset[str]
    change: Change | None = None
    adjust: Adjust | None = None
    guess: bool = False


@dataclass(frozen=True)
class Planned:
    """A request with a settled split, and what its estimate assumes beside it.

    ``values``: the request's plain values, with a candidate that states its split. ``assumed``: the
    whole candidate of the estimate, limits that are the engine's defaults too. ``context``: the
    longest request that the engine accepts, in tokens; None in training.
    """

    values: Values
    assumed: Values
    context: int | None = None


def measured_facts(run: Imported, plan: Planned) -> list[Fact]:
    candidate = plan.assumed
    if run.kind == "training":
        return [
            *_training_load_facts(run, plan.values["workload"]),
            *_degree_facts(run, candidate, ("tp", "pp", "cp", "dp"), STEP),
            *_value_facts(run.split, candidate, TRAINED, STEP),
            *_engine_fact(run, candidate, STEP),
        ]
    is_engine = not run.engine or run.engine in engine_names()
    other_engine = list(_engine_fact(run, candidate, ALL)) if is_engine else []
    return [
        *(other_engine or _version_facts(run, plan)),
        *_load_facts(run, plan.values["workload"], plan.context),
        *_degree_facts(run, candidate, ("tp", "pp", "dp", "ep"), ALL),
        *_value_facts({**run.split, **run.settings}, candidate, LIMITS, ALL),
        *_request_facts(run, plan),
        *_format_facts(run, candidate),
        *_cache_facts(run),
    ]


def _change_fact(
    part: str, name: str, title: str, about: frozenset[str], *, guess: bool = False, **fields: Any
) -> Fact:
    """A fact that states other ``fields`` of a part of the request."""

    def change(values: Values) -> Values:
        return {**values, part: {**(values.get(part) or {}), **fields}}

    return Fact(name, title, about, change, guess=guess)


_split_fact = partial(_change_fact, "candidate")
_load_fact = partial(_change_fact, "workload")


def _engine_fact(run: Imported, candidate: Values, about: frozenset[str]) -> Iterator[Fact]:
    if run.engine and run.engine != candidate.get("engine"):
        title = f"{run.engine} ran, not {candidate.get('engine')}"
        yield _split_fact("engine", title, about, engine=run.engine)


def _degree_facts(
    run: Imported, candidate: Values, names: Sequence[str], about: frozenset[str]
) -> Iterator[Fact]:
    degrees = {key: run.split[key] for key in names if key in run.split}
    changed = {key: value for key, value in degrees.items() if (candidate.get(key) or 1) != value}
    if changed:
        ran = ", ".join(f"{key.upper()} {value}" for key, value in changed.items())
        fields = changed if run.kind == "training" else degrees
        yield _split_fact("split", f"the layout was {ran}", about, **fields)


def _value_facts(
    values: Mapping[str, Any], candidate: Values, titles: Mapping[str, str], about: frozenset[str]
) -> Iterator[Fact]:
    for name, title in titles.items():
        value = values.get(name)
        if value is not None and value != candidate.get(name):
            text = title.format(f"{value:g}" if isinstance(value, float) else value)
            yield _split_fact(name, text, about, **{name: value})


def _training_load_facts(run: Imported, work: Values) -> Iterator[Fact]:
    load = {key: value for key, value in run.load.items() if work.get(key) != value}
    if load:
        ran = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in load.items())
        yield _load_fact("load", f"the run had {ran}", STEP, **load)


def _version_facts(run: Imported, plan: Planned) -> Iterator[Fact]:
    name = plan.assumed.get("engine")
    if not name or not run.version:
        return
    assumed = plan.assumed.get("engine_version") or assumed_version(engine(name))
    ran = version_in_text(run.version).partition("+")[0]
    if ran != assumed and ran[:1].isdigit():
        title = f"{name} {ran} ran, not {assumed}"
        limits = _default_limits(engine(name), plan.values["candidate"])
        yield _split_fact("engine_version", title, ALL, engine_version=ran, **limits)


def _default_limits(spec: Engine, candidate: Values) -> Values:
    """The limits of a candidate, taken back where they are the pinned release's own defaults.

    A bundle states defaults too; another release had others, unless its log says otherwise.
    """
    names = ("max_batched_tokens", "max_num_seqs")
    candidate_limits = tuple(candidate.get(name) for name in names)
    defaults = {tuple(getattr(limits, name) for name in names) for limits in spec.batching}
    return dict.fromkeys(names) if candidate_limits in defaults else {}


def _load_facts(run: Imported, before: Values, context: int | None) -> Iterator[Fact]:
    load = run.load
    fields: Values = {key: load[key] for key in ("input_tokens", "output_tokens") if key in load}
    mode = load.get("mode", "")
    amount = LOADS.get(mode, "")
    if amount in load:
        fields |= {"mode": mode, amount: load[amount]}
        fields |= dict.fromkeys(set(LOADS.values()) - {amount})
    changed = {key: value for key, value in fields.items() if before.get(key) != value}
    if not any(value is not None for value in changed.values()):
        return
    lengths = sum(
        int(fields.get(key) or before.get(key) or 0) for key in ("input_tokens", "output_tokens")
    )
    if context is not None and "max_context" not in changed:
        # the engine was started for the planned requests, whatever came
        fields["max_context"] = max(context, lengths)
    parts = [
        WORDS[key].format(f"{value:,g}")
        for key, value in changed.items()
        if key in WORDS and value is not None
    ]
    title = f"the load was {', '.join(parts) or mode}"
    yield _load_fact("load", title, TIMES, **fields)


def _request_facts(run: Imported, plan: Planned) -> Iterator[Fact]:
    """The longest request that was accepted, and the prompts that were cached."""
    work, longest = plan.values["workload"], run.settings.get("max_context")
    if longest is not None and longest != plan.context:
        title = f"the engine accepted requests of {longest:,} tokens"
        yield _load_fact("max_context", title, CACHE | TIMES, max_context=longest)
    hit = run.settings.get("prefix_hit")
    if hit is not None and 0.005 < hit < 1 and abs(hit - work.get("prefix_hit", 0.0)) > 0.005:
        title = f"{share_text(hit)} of prompts' tokens were in the prefix cache"
        yield _load_fact("prefix_hit", title, TIMES, prefix_hit=round(hit, 4))


def _format_facts(run: Imported, candidate: Values) -> Iterator[Fact]:
    weights = run.split.get("weight_dtype") or run.settings.get("weight_dtype")
    if weights and weights != candidate.get("weight_dtype", "auto"):
        yield _split_fact("weight_dtype", f"weights were in {weights}", ALL, weight_dtype=weights)
    cache = CACHE_FORMATS.get(str(run.settings.get("kv_cache_dtype", "")))
    cache = cache or run.split.get("kv_dtype")
    if cache and cache != candidate.get("kv_dtype", "auto"):
        yield _split_fact("kv_dtype", f"the cache was in {cache}", CACHE | TIMES, kv_dtype=cache)
    for guess in GUESSED_FORMATS if not weights else ():
        if guess != candidate.get("weight_dtype"):
            name, title = (
                f"weight_dtype={guess}",
                f"weights in {guess} (no file says so; the figure fits)",
            )
            yield _split_fact(name, title, ALL, guess=True, weight_dtype=guess)


def _cache_facts(run: Imported) -> Iterator[Fact]:
    """Yield facts of measured memory: graphs beside the cache, tokens of a cache of its size."""
    graphs = _graphs_beyond(run)
    if graphs is not None:
        title = f"captured graphs took {gib(graphs)} of the cache's memory"
        if graphs < 0:
            title = f"captured graphs left {gib(-graphs)} more to the cache than set aside for them"
        yield Fact("graph_bytes", title, CACHE, adjust=partial(_resized_cache, less=graphs))
    size = run.figures.get("kv_cache_bytes")
    if size and run.settings.get("cache_set"):
        title = f"the cache was set to {gib(size)} by hand, whatever memory is left"
        yield Fact("cache_set", title, CACHE, adjust=partial(_resized_cache, size=size))
    elif size:

        def of_size(figures: dict[str, float]) -> dict[str, float]:
            resized = _resized_cache(figures, size=size)
            return resized | {"kv_cache_bytes": figures.get("kv_cache_bytes", size)}

        title = f"the cache had {gib(size)}"
        yield Fact("kv_cache_bytes", title, CACHE - {"kv_cache_bytes"}, adjust=of_size)


def _graphs_beyond(run: Imported) -> float | None:
    """Bytes of measured graphs that the estimate has not set aside for them.

    None where nothing tells of graphs, where there is no difference, or where the release that ran
    captured them outside its share.
    """
    eager = run.settings.get("eager") is True
    graphs = run.figures.get("graph_bytes", 0.0 if eager else None)
    if graphs is None:
        return None
    spec = engine(run.engine) if run.engine in engine_names() else None
    now = spec.memory.graphs if spec else None
    if spec is None or now is None:
        return graphs or None
    release = version_in_text(run.version or "").partition("+")[0]
    try:
        then = spec.at(release, 0).memory.graphs if release[:1].isdigit() else now
    except InputError:
        then = now
    return (graphs - now.bytes or None) if then else None


def _resized_cache(
    figures: dict[str, float], *, size: float | None = None, less: float = 0.0
) -> dict[str, float]:
    """The figures of a cache of another size, or of one less: tokens and requests by its bytes."""
    before = figures.get("kv_cache_bytes", 0.0)
    after = before - less if size is None else size
    if before <= 0 or after <= 0:
        return dict(figures)
    names = ("kv_cache_tokens", "max_concurrency", HELD)
    scaled = {name: figures[name] * after / before for name in names if name in figures}
    return {**figures, **scaled, "kv_cache_bytes": after}


def other_model(run: Imported, planned: Values) -> str | None:
    """The model that a file names where it is another of the catalog than planned."""
    planned_model = planned.get("model")
    if (
        not isinstance(planned_model, str)
        or not run.model
        or run.model.casefold() == planned_model.casefold()
    ):
        return None
    return run.model if in_catalog(run.model) and in_catalog(planned_model) else None


# Parts of memory that logs state and that have no band.
PARTS = {"activations_bytes": "activations", "runtime_bytes": "memory outside torch"}

Figures = Mapping[str, float]


def as_logged(plan: Plan, row: int, figures: Figures) -> dict[str, float]:
    """Tokens and requests of a cache as the engine logs them, where that is not what it holds."""
    block, place = plan.at(row)
    cases = block.cases.take(np.array([place]))
    if not logs_less(block.setting, cases):
        return {}
    pool = figures["kv_cache_bytes"]
    requests = float(logged_requests(block.setting, cases, pool)[0])
    out = {"max_concurrency": requests, HELD: figures["kv_cache_tokens"]}
    if (tokens := logged_tokens(block.setting, cases, pool)) is not None:
        out["kv_cache_tokens"] = float(tokens[0])
    return out


def logged_parts(run: Imported, estimate: tuple[Figures, object] | None) -> list[str]:
    """Say what a log says beside the compared figures, with the estimate of what ran."""
    figures = estimate[0] if estimate else {}
    names = [name for name in PARTS if name in run.figures and name in figures]
    notes = [
        f"{PARTS[name]}: {gib(run.figures[name])} measured, {gib(figures[name])} estimated"
        for name in names
    ]
    if HELD in figures and {"kv_cache_tokens", "max_concurrency"} & run.figures.keys():
        notes.append(
            f"the cache holds {figures[HELD]:,.0f} tokens: the log charges every request for the "
            "tokens under way"
        )
    return notes
