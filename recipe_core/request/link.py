"""A PlanRequest as flat query parameters of a link.

``hardware.device=mi300x&workload.mode=open&v=1``: dotted names, only what differs from ``DEFAULT``. A load (concurrency,
request_rate, batch, requests) differs when it is not the default of its mode, ``START_LOADS``; of a training run what is not
``TRAINING``'s. A candidate that states nothing is written as no candidate. ``pins`` (split keys) travel beside the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from recipe_core.base.documents import parse_json, to_json
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import cluster
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.schema import (
    LOADS,
    CandidateRequest,
    Goal,
    Limits,
    Options,
    PlanRequest,
    PoolRequest,
    ServingWorkload,
    Speculative,
    TrainingWorkload,
)

VERSION = "1"
MAX_VALUE = 64 << 10
START_LOADS: dict[str, float] = {"closed": 64, "open": 4.0, "static": 16, "offline": 1000}
"""The load that a mode starts with."""

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
"""The request that an empty link means."""

TRAINING = TrainingWorkload(kind="training", sequence_length=4096, global_batch=256)
"""The run that a link means which says ``workload.kind=training`` and nothing more about it."""

_BESIDE = ("v", "pins")
WHOLE = ("model", "hardware.device")
"""Fields that are a name or a whole document (a config, a profile), which is one value."""
_PLAIN = re.compile(r"[\w.\-]+")

_PARTS: dict[str, type[BaseModel]] = {
    "workload.speculative": Speculative,
    "candidate.speculative": Speculative,
    "candidate.prefill": PoolRequest,
}
"""Fields with fields of their own."""


def _dotted(prefix: str, *schemas: type[BaseModel]) -> list[str]:
    names = [f"{prefix}.{name}" for schema in schemas for name in schema.model_fields]
    return [
        leaf
        for name in names
        for leaf in (_dotted(name, _PARTS[name]) if name in _PARTS else [name])
    ]


FIELDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            "model",
            *_dotted("hardware", HardwareRequest),
            *_dotted("workload", ServingWorkload, TrainingWorkload),
            "objective.optimize",
            *(f"objective.weights.{goal}" for goal in get_args(Goal)),
            "objective.orientation",
            *_dotted("objective.limits", Limits),
            *_dotted("options", Options),
            *_dotted("candidate", CandidateRequest),
        ]
    )
)
"""Every query parameter, in the order of the schema."""
_LISTS = tuple(
    f"options.{name}"
    for name, field in Options.model_fields.items()
    if "tuple" in str(field.annotation)
)


# --- request → query -------------------------------------------------------------------------------------------------------


def to_query(request: PlanRequest) -> dict[str, str]:
    """The request as query parameters; ``v`` comes first, so that a link is never empty."""
    stated = flat(request)
    base = _defaults(stated["workload.kind"], stated.get("workload.mode"))
    return {"v": VERSION} | {
        name: _encode(name, stated[name])
        for name in FIELDS
        if name in stated and stated[name] != base.get(name)
    }


def flat(request: PlanRequest) -> dict[str, Any]:
    """Dotted names of everything a request states, defaults included; a model or a device that is a whole document is one value."""
    return {"model": request.model} | leaves(
        request.model_dump(exclude={"model"}, exclude_none=True)
    )


def leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted names, but for those that are one value."""
    out: dict[str, Any] = {}
    for name, item in value.items():
        nested = isinstance(item, Mapping) and f"{prefix}{name}" not in WHOLE
        out |= leaves(item, f"{prefix}{name}.") if nested else {f"{prefix}{name}": item}
    return out


def _nested(named: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split(".")
        place = out
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
    return out


def _defaults(kind: Any, mode: Any) -> dict[str, Any]:
    """What a link leaves out, for a kind of workload and a mode."""
    base = {
        name: value for name, value in flat(DEFAULT).items() if not name.startswith("workload.")
    }
    if kind == "training":
        return base | leaves({"workload": TRAINING.model_dump(exclude={"kind"}, exclude_none=True)})
    loads = {f"workload.{load}" for load in LOADS.values()}
    own = {
        name: value
        for name, value in flat(DEFAULT).items()
        if name.startswith("workload.") and name not in loads
    }
    mode = mode if mode in LOADS else "closed"
    return base | own | {f"workload.{LOADS[mode]}": START_LOADS[mode]}


def _encode(name: str, value: Any) -> str:
    if name in WHOLE:
        readable = isinstance(value, str) and not value.startswith(("{", '"'))
        return (
            value
            if readable
            else json.dumps(json.loads(to_json(value)), separators=(",", ":"), ensure_ascii=False)
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        words = [_encode(name, item) if isinstance(item, int | float) else item for item in value]
        return (
            ",".join(words)
            if all(isinstance(word, str) and _PLAIN.fullmatch(word) for word in words)
            else json.dumps(value, separators=(",", ":"))
        )
    return str(value)


def _decode(name: str, text: str) -> Any:
    if name in WHOLE and text.startswith(("{", '"')):
        return parse_json(text, f"the {name.rpartition('.')[2]}")
    if name in _LISTS:
        return (
            parse_json(text, name)
            if text.startswith("[")
            else [item for item in text.split(",") if item]
        )
    return text


# --- query → request -------------------------------------------------------------------------------------------------------


def from_query(query: Mapping[str, str]) -> tuple[PlanRequest, list[str]]:
    """The request of a link, and one sentence for each parameter that was ignored; never raises.

    A bad parameter is left out, everything else is kept. Unknown devices, offers and engines count as bad; an unknown model does
    not, because it may be a folder of another machine: planning says so.
    """
    given, ignored = _readable(query)
    while True:
        base = _defaults(given.get("workload.kind"), given.get("workload.mode"))
        try:
            return checked(base | given), ignored
        except RecipeError as error:
            culprit = _culprit(error, given)
            if (
                culprit is None
            ):  # cannot happen while DEFAULT is valid; a link must open all the same
                return DEFAULT, [*ignored, f"The link was not understood: {error}"]
            ignored.append(f"{culprit}={query[culprit]:.60}: {_why(error, culprit)}")
            del given[culprit]


def _why(error: RecipeError, culprit: str) -> str:
    """What is wrong, naming the field when it is not the parameter itself (something else is missing, say)."""
    if error.field and not error.field.startswith(culprit) and error.message.startswith("is "):
        return f"{error.field} {error.message}"
    return f"{error.message} {error.hint}" if error.hint else error.message


def _readable(query: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Known parameters with readable values; loads of another mode than the link's are left out."""
    given: dict[str, Any] = {}
    ignored = (
        []
        if query.get("v", VERSION) == VERSION
        else [f"v={query['v']:.20}: this builder reads links of version {VERSION}."]
    )
    for name, text in query.items():
        if name in _BESIDE:
            continue
        if name not in FIELDS:
            ignored.append(f"{name:.60}: is not a field of a request.")
        elif len(text) > MAX_VALUE:
            ignored.append(f"{name}: has {len(text):,} characters; at most {MAX_VALUE:,} are read.")
        else:
            try:
                given[name] = _decode(name, text)
            except RecipeError as error:
                ignored.append(f"{name}: {error.message}")
    mode = given.get("workload.mode", "closed")
    wrong = [f"workload.{load}" for name, load in LOADS.items() if mode in LOADS and name != mode]
    dropped = [name for name in wrong if given.pop(name, None) is not None]
    ignored += [f"{name}={query[name]:.60}: mode {mode} takes {LOADS[mode]}." for name in dropped]
    return given, ignored


def checked(named: Mapping[str, Any]) -> PlanRequest:
    """The request of dotted names, with devices, links, offers and engines looked up.

    Raises:
        RecipeError: naming the field.
    """
    request = PlanRequest.parse(_nested(named))
    cluster(request.hardware)
    look_up = framework if isinstance(request.workload, TrainingWorkload) else engine
    engines = {
        "options.engines": request.options.engines,
        "candidate.engine": (request.candidate.engine,) if request.candidate else (),
    }
    wanted: list[tuple[str, Callable[[Any], object], Any]] = [
        ("options.hardware", cluster, other) for other in request.options.hardware
    ]
    wanted += [(field, look_up, name) for field, names in engines.items() for name in names if name]
    for field, known, value in wanted:
        try:
            known(value)
        except InputError as error:
            inside = (error.field or "").removeprefix(
                "hardware.device."
            )  # of a profile: which of its fields
            said = (
                f"{inside} {error.message}" if inside and inside != error.field else error.message
            )
            raise InputError(said, field=field, hint=error.hint) from None
    return request


def _culprit(error: RecipeError, given: Mapping[str, Any]) -> str | None:
    """The given parameter to leave out: the one the error names, else one of the group it names that makes the error go away."""
    field = error.field or ""
    steps = field.split(".")
    for n in range(len(steps), 0, -1):
        if (name := ".".join(steps[:n])) in given:
            return name
    group = [
        name
        for name in reversed(FIELDS)
        if name in given
        and (not field or name.startswith(f"{field}.") or name.startswith(f"{steps[0]}."))
    ]
    for name in group:
        rest = {key: value for key, value in given.items() if key != name}
        try:
            checked({**_defaults(rest.get("workload.kind"), rest.get("workload.mode")), **rest})
        except RecipeError as other:
            if (other.field, other.message) == (error.field, error.message):
                continue
        return name
    return group[0] if group else next(iter(given), None)


def link_query(request: PlanRequest, pins: Sequence[str] = ()) -> dict[str, str]:
    """The query of a link: the request and, when there are any, the pinned splits."""
    return to_query(request) | ({"pins": ",".join(pins)} if pins else {})
