"""A PlanRequest as flat query parameters of a link.

``hardware.device=mi300x&workload.mode=open&v=1``: dotted names, only what differs from ``DEFAULT``.
A load (concurrency, request_rate, batch, requests) differs when it is not the default of its mode,
``START_LOADS``; a closed loop whose load can be searched has no default, and without one its load
is searched. A field of a training run differs when it is not ``TRAINING``'s. A candidate that
states nothing is written as no candidate. Configs, profiles and lists are JSON, or packed where
that is shorter (``packed.py``). ``pins`` (split keys) and ``kept`` (``shelf.py``) travel beside the
request. Engine options, environment variables, tiers of the cache and names of files may hold
private values: a link leaves them out, ``link_omissions`` says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from recipe_core.base.documented import models_in
from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import cluster
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import Goal, timed_limits
from recipe_core.request.objective import GAIN_FROM_LOAD, Limits, Objective
from recipe_core.request.over_time import OverTime
from recipe_core.request.packed import MAX_TEXT, is_packed, shorter, unpack_values
from recipe_core.request.scaling import Scaling
from recipe_core.request.schema import Options, PlanRequest
from recipe_core.request.serving_workload import LOADS, ServingWorkload
from recipe_core.request.training_workload import TrainingWorkload

VERSION = "1"
MAX_VALUE = MAX_TEXT
# The load that a mode starts with.
START_LOADS: dict[str, float] = {"closed": 64, "open": 4.0, "static": 16, "offline": 1000}

# The request that an empty link means.
DEFAULT = PlanRequest.parse(
    {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
        "workload": {
            "mode": "closed",
            "input_tokens": 1024,
            "output_tokens": 256,
            "concurrency": START_LOADS["closed"],
        },
    }
)

# The run that a link means which says ``workload.kind=training`` and nothing more about it.
TRAINING = TrainingWorkload(kind="training", sequence_length=4096, global_batch=256)

# Parameters that are no field of a request: version, pinned splits, the market to choose from,
# choices that are kept, the view of the plan.
_BESIDE = ("v", "pins", "any", "kept", "lens")
# Fields that no link carries: what people pass on to an engine may hold paths and addresses.
PRIVATE = ("options.engine_options", "options.environment", "options.kv_offload")
# Fields that are one value, although it may be a mapping: a config, a profile, engine options.
WHOLE = ("model", "hardware.device", "options.compression", *PRIVATE)
_PLAIN = re.compile(r"[\w.\-]+")

# Documents in a request of which a link has no fields.
_CLOSED = ("options.compression", "options.simulated", "options.kv_offload")


def _usual_values(
    part: str, schema: type[BaseModel], named_fields: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a part says that states nothing but ``named_fields``, by dotted names."""
    fields = schema.model_fields.items()
    return {
        f"{part}.{name}": field.default
        for name, field in fields
        if name not in named_fields and not field.is_required() and field.default is not None
    }


# What a link leaves out of parts that ``DEFAULT`` does not have, where it says something of them. A
# policy is always written: a part has to say something to be there.
_USUAL = {
    "workload.over_time.": _usual_values("workload.over_time", OverTime),
    "options.scaling.": _usual_values("options.scaling", Scaling, ["policy"]),
}


def _dotted(prefix: str, *schemas: type[BaseModel]) -> dict[str, str]:
    """Dotted names of the fields that are one value each, and their types as text."""
    out: dict[str, str] = {}
    for name, field in chain.from_iterable(schema.model_fields.items() for schema in schemas):
        path, kind = f"{prefix}.{name}", str(field.annotation).lower()
        part = next(models_in(field.annotation), None)
        if part is None or path in _CLOSED or "tuple" in kind:
            out.setdefault(path, kind)
        else:
            out |= _dotted(path, part)
    return out


_TYPES = {
    "model": "",
    **_dotted("hardware", HardwareRequest),
    **_dotted("workload", ServingWorkload, TrainingWorkload),
    "objective.optimize": "",
    **{f"objective.weights.{goal}": "" for goal in get_args(Goal)},
    "objective.orientation": "",
    "objective.accuracy_of": "",
    "objective.confidence": "",
    **_dotted("objective.limits", Limits),
    **_dotted("options", Options),
    **_dotted("candidate", CandidateRequest),
}
# Every query parameter, in the order of the schema.
FIELDS = tuple(name for name in _TYPES if name not in PRIVATE)
_LISTS = tuple(name for name, kind in _TYPES.items() if "tuple" in kind)


# --- request → query ---


def to_query(request: PlanRequest) -> dict[str, str]:
    """The request as query parameters; ``v`` comes first, so that a link is never empty."""
    values = flat_values(request)
    if (compression := request.options.compression) is not None:
        files = {"calibration": {"text"}, "verify": {"text"}}
        dump = compression.model_dump(exclude_defaults=True, exclude=files)
        values["options.compression"] = {name: part for name, part in dump.items() if part != {}}
    defaults = _defaults(values)
    query = {"v": VERSION}
    for name in FIELDS:
        if name in values and values[name] != defaults.get(name):
            query[name] = _encode_value(name, values[name])
    return query


def link_omissions(request: PlanRequest) -> str | None:
    """One sentence naming what the request states and its link omits; None when that is nothing."""
    options = request.options
    names = [*options.engine_options, *options.environment]
    if options.kv_offload is not None:
        names.append("kv_offload")
    if (compression := options.compression) is not None:
        texts = {"calibration": compression.calibration.text, "verify": compression.verify.text}
        names += [f"compression.{name}.text" for name, text in texts.items() if text]
    if not names:
        return None
    return (
        f"The link leaves out {', '.join(names)}: engine options, environment variables, places of "
        "caches and names of files may hold private values. Share the request as YAML or JSON to "
        "include them."
    )


def flat_values(request: PlanRequest) -> dict[str, Any]:
    """A request's values by dotted names, defaults included; fields of ``WHOLE`` are one value."""
    return {
        "model": request.model,
        **leaves(request.model_dump(exclude={"model"}, exclude_none=True)),
    }


def leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted names, but for those that are one value."""
    out: dict[str, Any] = {}
    for name, item in value.items():
        path = f"{prefix}{name}"
        if isinstance(item, Mapping) and path not in WHOLE:
            out |= leaves(item, f"{path}.")
        else:
            out[path] = item
    return out


def _nest_values(values: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        part = out
        for step in path:
            part = part.setdefault(step, {})
        part[last] = value
    return out


def searches_load(values: Mapping[str, Any]) -> bool:
    """Return whether a closed loop of these dotted values is searched where it states no load.

    Some limit bounds a time, and what counts gains from load; values may be wrong.
    """
    if values.get("options.loads") or not any(
        values.get(f"objective.limits.{name}") is not None for name in timed_limits()
    ):
        return False
    objective_values = {
        "optimize": values.get("objective.optimize", "throughput"),
        "orientation": values.get("objective.orientation"),
        "weights": {
            goal: 1.0
            for goal in get_args(Goal)
            if values.get(f"objective.weights.{goal}") is not None
        },
    }
    try:
        goals = Objective.model_validate(objective_values).goals
    except ValidationError:
        return False
    return bool(GAIN_FROM_LOAD & set(goals))


def _defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a link of these values leaves out, by its kind of workload, mode and limits."""
    kind, mode = values.get("workload.kind"), values.get("workload.mode")
    defaults = flat_values(DEFAULT)
    for part, usual in _USUAL.items():
        if any(name.startswith(part) for name in values):
            defaults |= usual
    if kind == "training":
        run = leaves({"workload": TRAINING.model_dump(exclude={"kind"}, exclude_none=True)})
        rest = {k: value for k, value in defaults.items() if not k.startswith("workload.")}
        return {**rest, **run}
    for load in LOADS.values():
        defaults.pop(f"workload.{load}", None)
    mode = mode if mode in LOADS else "closed"
    if mode == "closed" and searches_load(values):
        return defaults
    return {**defaults, f"workload.{LOADS[mode]}": START_LOADS[mode]}


def _encode_value(name: str, value: Any) -> str:
    if name in WHOLE:
        if isinstance(value, str) and not value.startswith(("{", '"')) and not is_packed(value):
            return value
        return shorter(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        words = [
            _encode_value(name, item) if isinstance(item, int | float) else item for item in value
        ]
        if all(isinstance(word, str) and _PLAIN.fullmatch(word) for word in words):
            return ",".join(words)
        return shorter(value)
    return str(value)


def _decode_value(name: str, text: str) -> Any:
    if (name in WHOLE or name in _LISTS) and is_packed(text):
        return unpack_values(text, f"the {name.rpartition('.')[2]}")
    if name in WHOLE and text.startswith(("{", '"')):
        return parse_json(text, f"the {name.rpartition('.')[2]}")
    if name not in _LISTS:
        return text
    if text.startswith("["):
        return parse_json(text, name)
    return [item for item in text.split(",") if item]


# --- query → request ---


def from_query(query: Mapping[str, str]) -> tuple[PlanRequest, list[str]]:
    """The request of a link, and one sentence for each parameter that was ignored; never raises.

    A bad parameter is left out, the rest counts. Unknown devices, offers and engines are bad; an
    unknown model is not, because it may be a folder of another machine: planning says so.
    """
    values, ignored = _readable(query)
    while True:
        defaults = _defaults(values)
        try:
            return request_of_values({**defaults, **values}), ignored
        except RecipeError as error:
            culprit = _culprit(error, values)
            if culprit is None:  # not while DEFAULT is valid; a link must open all the same
                return DEFAULT, [*ignored, f"The link was not understood: {error}"]
            ignored.append(f"{culprit}={query[culprit]:.60}: {_parameter_error(error, culprit)}")
            del values[culprit]


def _parameter_error(error: RecipeError, culprit: str) -> str:
    """Say what is wrong, naming the field when it is not the parameter but, say, a missing one."""
    if error.field and not error.field.startswith(culprit) and error.message.startswith("is "):
        return f"{error.field} {error.message}"
    return f"{error.message} {error.hint}" if error.hint else error.message


def _readable(query: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Known parameters with readable values; loads of another mode than the link's are left out."""
    values: dict[str, Any] = {}
    ignored: list[str] = []
    if query.get("v", VERSION) != VERSION:
        ignored.append(f"v={query['v']:.20}: this builder reads links of version {VERSION}.")
    for name, text in query.items():
        if name in _BESIDE:
            continue
        if name in PRIVATE:
            ignored.append(f"{name}: is not read from links, because it may hold private values.")
        elif name not in FIELDS:
            ignored.append(f"{name:.60}: is not a field of a request.")
        elif len(text) > MAX_VALUE:
            ignored.append(f"{name}: has {len(text):,} characters; the limit is {MAX_VALUE:,}.")
        else:
            try:
                values[name] = _decode_value(name, text)
            except RecipeError as error:
                ignored.append(f"{name}: {error.message}")
    mode = values.get("workload.mode", "closed")
    for other_mode, load in LOADS.items():
        name = f"workload.{load}"
        if mode in LOADS and other_mode != mode and values.pop(name, None) is not None:
            ignored.append(f"{name}={query[name]:.60}: mode {mode} takes {LOADS[mode]}.")
    return values, ignored


def request_of_values(values: Mapping[str, Any]) -> PlanRequest:
    """The request of dotted names, with devices, links, offers and engines looked up.

    Raises:
        RecipeError: naming the field.
    """
    request = PlanRequest.parse(_nest_values(values))
    cluster(request.hardware)
    known_engine = framework if request.is_training else engine
    for hardware in request.options.hardware:
        _look_up(cluster, hardware, "options.hardware")
    for name in request.options.engines:
        _look_up(known_engine, name, "options.engines")
    if request.candidate and request.candidate.engine:
        _look_up(known_engine, request.candidate.engine, "candidate.engine")
    return request


def _look_up(lookup: Callable[[Any], object], value: Any, field: str) -> None:
    """Raise the error of an unknown value under the name of the request's field."""
    try:
        lookup(value)
    except InputError as error:
        # Inside a profile the error names one of its fields, which the message must keep.
        part = (error.field or "").removeprefix("hardware.device.")
        inside = part if part != error.field else ""
        message = f"{inside} {error.message}".strip()
        raise InputError(message, field=field, hint=error.hint) from None


def _culprit(error: RecipeError, values: Mapping[str, Any]) -> str | None:
    """The parameter to leave out: what the error names, else one whose absence cures the error."""
    field = error.field or ""
    steps = field.split(".")
    for n in range(len(steps), 0, -1):
        if (name := ".".join(steps[:n])) in values:
            return name
    prefixes = (f"{field}.", f"{steps[0]}.")
    group = [
        name
        for name in reversed(FIELDS)
        if name in values and (not field or name.startswith(prefixes))
    ]
    for name in group:
        rest = {key: value for key, value in values.items() if key != name}
        try:
            request_of_values({**_defaults(rest), **rest})
        except RecipeError as other:
            if (other.field, other.message) == (error.field, error.message):
                continue
        return name
    return group[0] if group else next(iter(values), None)


def link_query(request: PlanRequest, pins: Sequence[str] = ()) -> dict[str, str]:
    """The query of a link: the request and, when there are any, the pinned splits."""
    query = to_query(request)
    return {**query, "pins": ",".join(pins)} if pins else query
