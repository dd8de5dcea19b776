"""A PlanRequest as flat query parameters of a link, and edits of a request by field name.

``hardware.device=mi300x&workload.mode=open&v=1``: dotted names, only what differs from ``DEFAULT``. A load (concurrency,
request_rate, batch, requests) differs when it is not the default of its mode, ``LOADS``. A candidate that states nothing is
written as no candidate. ``pins`` (split keys) travel beside the request and are not part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pydantic import BaseModel

from recipe_core.documents import parse_json, to_json
from recipe_core.engines.spec import engine
from recipe_core.errors import InputError, RecipeError
from recipe_core.hardware.catalog import cluster, device
from recipe_core.request import (
    CandidateRequest,
    Goal,
    HardwareRequest,
    Limits,
    Options,
    PlanRequest,
    PoolRequest,
    ServingWorkload,
    Speculative,
    TrainingWorkload,
)

if TYPE_CHECKING:
    from recipe_core.plan import PlanTable

VERSION = "1"
MAX_VALUE = 64 << 10
LOAD = {"closed": "concurrency", "open": "request_rate", "static": "batch", "offline": "requests"}
LOADS: dict[str, float] = {"closed": 64, "open": 4.0, "static": 16, "offline": 1000}
"""The load field of each mode, and the load a mode starts with."""

DEFAULT = PlanRequest.parse(
    {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 1},
        "workload": {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": LOADS["closed"]},
    }
)
"""The request that an empty link means."""

SPLIT_FIELDS = ("engine", "weight_dtype", "kv_dtype", "tp", "pp", "dp", "ep")
_BESIDE = ("v", "pins")
_PLAIN = re.compile(r"[\w.\-]+")
_KEY = re.compile(r"([\w\-]+)\.([\w\-]+)\.([\w\-]+)\.tp(\d{1,5})\.pp(\d{1,5})\.dp(\d{1,5})\.ep(\d{1,5})")


_PARTS: dict[str, type[BaseModel]] = {
    "workload.speculative": Speculative,
    "candidate.speculative": Speculative,
    "candidate.prefill": PoolRequest,
}
"""Fields with fields of their own."""


def _dotted(prefix: str, *schemas: type[BaseModel]) -> list[str]:
    names = [f"{prefix}.{name}" for schema in schemas for name in schema.model_fields]
    return [leaf for name in names for leaf in (_dotted(name, _PARTS[name]) if name in _PARTS else [name])]


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
_LISTS = tuple(f"options.{name}" for name, field in Options.model_fields.items() if "tuple" in str(field.annotation))


# --- request → query -------------------------------------------------------------------------------------------------------


def to_query(request: PlanRequest) -> dict[str, str]:
    """The request as query parameters; ``v`` comes first, so that a link is never empty."""
    flat = _flat(request)
    base = _defaults(flat["workload.kind"], flat.get("workload.mode"))
    return {"v": VERSION} | {name: _encode(name, flat[name]) for name in FIELDS if name in flat and flat[name] != base.get(name)}


def _flat(request: PlanRequest) -> dict[str, Any]:
    """Dotted names of everything a request states, defaults included; the model (perhaps a whole config) is one value."""
    return {"model": request.model} | _leaves(request.model_dump(exclude={"model"}, exclude_none=True))


def _leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, item in value.items():
        out |= _leaves(item, f"{prefix}{name}.") if isinstance(item, Mapping) else {f"{prefix}{name}": item}
    return out


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = out
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
    return out


def _defaults(kind: Any, mode: Any) -> dict[str, Any]:
    """What a link leaves out, for a kind of workload and a mode."""
    base = {name: value for name, value in _flat(DEFAULT).items() if not name.startswith("workload.")}
    if kind == "training":
        return base | {"workload.method": "pretrain"}
    own = {
        name: value for name, value in _flat(DEFAULT).items() if name.startswith("workload.") and name.split(".")[1] not in LOAD.values()
    }
    mode = mode if mode in LOAD else "closed"
    return base | own | {f"workload.{LOAD[mode]}": LOADS[mode]}


def _encode(name: str, value: Any) -> str:
    if name == "model":
        readable = isinstance(value, str) and not value.startswith(("{", '"'))
        return value if readable else json.dumps(json.loads(to_json(value)), separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        words = [_encode(name, item) if isinstance(item, int | float) else item for item in value]
        return ",".join(words) if all(isinstance(word, str) and _PLAIN.fullmatch(word) for word in words) else json.dumps(value)
    return str(value)


def _decode(name: str, text: str) -> Any:
    if name == "model" and text.startswith(("{", '"')):
        return parse_json(text, "the model")
    if name in _LISTS:
        return parse_json(text, name) if text.startswith("[") else [item for item in text.split(",") if item]
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
            return _checked(base | given), ignored
        except RecipeError as error:
            culprit = _culprit(error, given)
            if culprit is None:  # cannot happen while DEFAULT is valid; a link must open all the same
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
    ignored = [] if query.get("v", VERSION) == VERSION else [f"v={query['v']:.20}: this builder reads links of version {VERSION}."]
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
    wrong = [f"workload.{load}" for name, load in LOAD.items() if mode in LOAD and name != mode]
    dropped = [name for name in wrong if given.pop(name, None) is not None]
    ignored += [f"{name}={query[name]:.60}: mode {mode} takes {LOAD[mode]}." for name in dropped]
    return given, ignored


def _checked(flat: Mapping[str, Any]) -> PlanRequest:
    """The request of dotted names, with device, links, offer and engines looked up.

    Raises:
        RecipeError: naming the field.
    """
    request = PlanRequest.parse(_nested(flat))
    cluster(request.hardware)
    named = {"options.engines": request.options.engines, "candidate.engine": (request.candidate.engine,) if request.candidate else ()}
    for field, engines in named.items():
        for name in engines:
            try:
                engine(name) if name else None
            except InputError as error:
                raise InputError(error.message, field=field, hint=error.hint) from None
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
        if name in given and (not field or name.startswith(f"{field}.") or name.startswith(f"{steps[0]}."))
    ]
    for name in group:
        rest = {key: value for key, value in given.items() if key != name}
        try:
            _checked({**_defaults(rest.get("workload.kind"), rest.get("workload.mode")), **rest})
        except RecipeError as other:
            if (other.field, other.message) == (error.field, error.message):
                continue
        return name
    return group[0] if group else next(iter(given), None)


# --- edits ------------------------------------------------------------------------------------------------------------------


def value_of(request: PlanRequest, field: str) -> Any:
    """The value of a dotted field; None where it is not stated."""
    return _flat(request).get(field)


def change(request: PlanRequest, changes: Mapping[str, Any]) -> PlanRequest:
    """The request with dotted fields changed (None takes one out) and what depends on them kept consistent.

    A new mode brings its default load; a new device drops the links and the price of the old one and keeps a full node full;
    an offer and a stated price replace each other; a longer prompt or answer stretches the longest context.

    Raises:
        RecipeError: when the changed request is not valid; the message names the field.
    """
    flat = _flat(request)
    flat |= changes
    if "workload.mode" in changes:
        _swap_load(flat, changes)
    if "hardware.device" in changes and changes["hardware.device"] != request.hardware.device:
        _swap_device(flat, request.hardware, changes)
    if changes.get("hardware.offer") is not None:
        flat["hardware.usd_per_device_hour"] = None
    if changes.get("hardware.usd_per_device_hour") is not None:
        flat["hardware.offer"] = None
    longest, prompt, answer = (flat.get(f"workload.{name}") for name in ("max_context", "input_tokens", "output_tokens"))
    if longest and prompt and answer and "workload.max_context" not in changes:
        flat["workload.max_context"] = max(longest, prompt + answer)
    if "candidate" in changes:  # the whole candidate at once
        flat = {name: value for name, value in flat.items() if not name.startswith("candidate")} | _leaves(
            {"candidate": changes["candidate"] or {}}
        )
    return _checked({name: value for name, value in flat.items() if value is not None})


def _swap_load(flat: dict[str, Any], changes: Mapping[str, Any]) -> None:
    mode = flat["workload.mode"]
    for name, load in LOAD.items():
        field = f"workload.{load}"
        if name != mode:
            flat[field] = None
        elif flat.get(field) is None and field not in changes:
            flat[field] = LOADS[mode]


def _swap_device(flat: dict[str, Any], old: HardwareRequest, changes: Mapping[str, Any]) -> None:
    for name in ("fabric", "network", "offer", "usd_per_device_hour"):
        flat[f"hardware.{name}"] = changes.get(f"hardware.{name}")
    if "hardware.per_node" not in changes:
        full, new_full = device(old.device).node.devices, device(flat["hardware.device"]).node.devices
        flat["hardware.per_node"] = new_full if old.per_node >= full else min(old.per_node, new_full)


# --- names of splits ----------------------------------------------------------------------------------------------------------


def split_key(candidate: Mapping[str, Any]) -> str:
    """The name of a split in links and charts: ``vllm.bf16.auto.tp4.pp1.dp2.ep1``."""
    c = candidate
    return f"{c['engine']}.{c['weight_dtype']}.{c['kv_dtype']}.tp{c['tp']}.pp{c['pp']}.dp{c['dp']}.ep{c['ep']}"


def split_of(key: str) -> dict[str, Any] | None:
    """The candidate a key names, None when it is not a key."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    engine_name, weights, cache, *degrees = found.groups()
    return dict(zip(SPLIT_FIELDS, (engine_name, weights, cache, *map(int, degrees)), strict=True))


def row_of(table: PlanTable, key: str) -> int | None:
    """The row of a plan that a key names, None when the plan has no such split."""
    wanted = split_of(key)
    if wanted is None:
        return None
    same = [table.columns[name] == wanted[name] for name in ("tp", "pp", "dp", "ep")]
    rows = np.flatnonzero(np.all(same, axis=0))
    return next((int(row) for row in rows if split_key(table.candidate(int(row))) == key), None)


def read_pins(text: str, at_most: int) -> tuple[list[str], list[str]]:
    """Pinned split keys of a link, and a sentence for each that is not one or is too many."""
    keys = list(dict.fromkeys(item for item in text.split(",") if item))
    pins = [key for key in keys if split_of(key)]
    ignored = [f"pins: {key!r:.60} does not name a split." for key in keys if not split_of(key)]
    if len(pins) > at_most:
        ignored.append(f"pins: {len(pins)} splits are pinned; the first {at_most} are kept.")
    return pins[:at_most], ignored


def link_query(request: PlanRequest, pins: Sequence[str] = ()) -> dict[str, str]:
    """The query of a link: the request and, when there are any, the pinned splits."""
    return to_query(request) | ({"pins": ",".join(pins)} if pins else {})


def sentences(lines: Iterable[str]) -> str:
    """Lines as a Markdown list, or the one line."""
    found = list(lines)
    return found[0] if len(found) == 1 else "\n".join(f"- {line}" for line in found)
