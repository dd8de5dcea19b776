"""The names of splits in links and charts: short texts from which the candidate can be read back.

Serving: ``vllm.bf16.auto.tp4.pp1.dp2.ep1``; ``.cp2`` where ranks share a cache;
``.x2.pre3.tp1.pp1.dp1.ep1``: two copies of it decode, three of TP 1 compute the prompts; ``.on1``
on the first of the clusters that the options put beside the request's; ``.load128`` under one of
several loads. Training:
``torchtitan.bf16.tp2.pp4.v1.cp1.ep1.dp4.z1.mb2.full``; ``.s8`` where states are divided over eight
ranks only; ``.offload-parameters`` where they wait in host memory; ``.on1`` as in serving.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recipe_core.base.units import significant
from recipe_core.request.metrics import Metric, metrics
from recipe_core.request.serving_workload import LOADS

# What a serving split is, where ranks share no cache.
SPLIT_FIELDS = ("engine", "weight_dtype", "kv_dtype", "tp", "pp", "dp", "ep")
TRAINING_FIELDS = (
    "engine",
    "precision",
    "tp",
    "pp",
    "virtual_stages",
    "cp",
    "ep",
    "dp",
    "zero_stage",
    "micro_batch",
    "recompute",
)

_POOL = ("replicas", "tp", "pp", "dp", "ep")

_SERVING = re.compile(
    r"(?P<engine>[\w\-]+)\.(?P<weight_dtype>[\w\-]+)\.(?P<kv_dtype>[\w\-]+)"
    r"\.tp(?P<tp>\d{1,5})\.pp(?P<pp>\d{1,5})\.dp(?P<dp>\d{1,5})\.ep(?P<ep>\d{1,5})(\.cp(?P<cp>\d{1,5}))?"
    r"(\.x(?P<replicas>\d{1,5})\.pre(?P<pool_replicas>\d{1,5})"
    r"\.tp(?P<pool_tp>\d{1,5})\.pp(?P<pool_pp>\d{1,5})\.dp(?P<pool_dp>\d{1,5})\.ep(?P<pool_ep>\d{1,5}))?"
    r"(\.on(?P<on>\d{1,2}))?(\.load(?P<load>\d{1,10}(\.\d{1,10})?))?"
)
_TRAINING = re.compile(
    r"(?P<engine>[\w\-]+)\.(?P<precision>\w+)\.tp(?P<tp>\d{1,5})\.pp(?P<pp>\d{1,5})"
    r"\.v(?P<virtual_stages>\d{1,5})\.cp(?P<cp>\d{1,5})\.ep(?P<ep>\d{1,5})\.dp(?P<dp>\d{1,5})"
    r"\.z(?P<zero_stage>\d)\.mb(?P<micro_batch>\d{1,6})\.(?P<recompute>[a-z]+)(\.s(?P<shard>\d{1,5}))?"
    r"(\.offload-(?P<offload>parameters))?(\.on(?P<on>\d{1,2}))?"
)


def split_key(candidate: Mapping[str, Any], cluster: int = 0, load: float | None = None) -> str:
    """The key of a serving or training candidate.

    Args:
        candidate: the split in full.
        cluster: which of the plan's it is on.
        load: of a serving plan with several, the one that it is under.
    """
    c, where = candidate, f".on{cluster}" if cluster else ""
    if load is not None:
        where += f".load{f'{load:.10f}'.rstrip('0').rstrip('.')}"
    if c.get("micro_batch") is not None:
        replicas = c["dp"] * c["cp"]
        shard = f".s{c['shard']}" if (c.get("shard") or replicas) != replicas else ""
        hosted = ".offload-parameters" if c.get("offload") == "parameters" else ""
        return (
            f"{c['engine']}.{c['precision']}.tp{c['tp']}.pp{c['pp']}.v{c['virtual_stages']}"
            f".cp{c['cp']}.ep{c['ep']}.dp{c['dp']}.z{c['zero_stage']}.mb{c['micro_batch']}"
            f".{c['recompute']}{shard}{hosted}{where}"
        )
    shared = f".cp{c['cp']}" if (c.get("cp") or 1) > 1 else ""
    formats = f"{c['engine']}.{c['weight_dtype']}.{c['kv_dtype']}"
    return f"{formats}.{_key_degrees(c)}{shared}{_key_pools(c)}{where}"


def _key_degrees(split: Mapping[str, Any]) -> str:
    return ".".join(f"{name}{split.get(name) or 1}" for name in ("tp", "pp", "dp", "ep"))


def _key_pools(split: Mapping[str, Any]) -> str:
    """Return how many copies decode, and the pool before them; nothing where one pool does both."""
    pool = split.get("prefill")
    if not pool:
        return ""
    return f".x{split.get('replicas') or 1}.pre{pool.get('replicas') or 1}.{_key_degrees(pool)}"


def _match_key(key: str) -> re.Match[str] | None:
    return _SERVING.fullmatch(key) or _TRAINING.fullmatch(key)


def key_split(key: str) -> dict[str, Any] | None:
    """The candidate that a key names, None when it is not a key."""
    match = _match_key(key)
    if match is None:
        return None
    split: dict[str, Any] = {
        name: int(text) if text.isdecimal() else text
        for name, text in match.groupdict().items()
        if text is not None and name not in ("on", "load")
    }
    pool = {name: split.pop(f"pool_{name}") for name in _POOL if f"pool_{name}" in split}
    return {**split, "prefill": pool} if pool else split


def key_cluster(key: str) -> int:
    """Return which of the plan's clusters a key's split is on: 0 is the request's."""
    match = _match_key(key)
    return int(match["on"] or 0) if match else 0


def key_load(key: str) -> float | None:
    """The load that a key names; None where it leaves that to the request."""
    match = _SERVING.fullmatch(key)
    return float(match["load"]) if match and match["load"] else None


def read_pins(text: str, at_most: int) -> tuple[list[str], list[str]]:
    """Pinned split keys of a link, and a sentence for each that is not one or is too many."""
    keys = list(dict.fromkeys(item for item in text.split(",") if item))
    pins = [key for key in keys if key_split(key)]
    ignored = [f"pins: {key!r:.60} does not name a layout." for key in keys if not key_split(key)]
    if len(pins) > at_most:
        ignored.append(f"pins: {len(pins)} layouts are pinned; the first {at_most} are kept.")
    return pins[:at_most], ignored


def candidate_key(candidate: Mapping[str, Any]) -> str | None:
    """The key of a request's candidate, None while it leaves open what makes a split."""
    fields = TRAINING_FIELDS if candidate.get("micro_batch") is not None else SPLIT_FIELDS
    complete = all(candidate.get(name) is not None for name in fields)
    return split_key({**candidate, "cp": candidate.get("cp") or 1}) if complete else None


# names for people


def split_degrees_text(candidate: Mapping[str, Any]) -> str:
    """``TP 4 × DP 2 · EP 8``: TP always, the others when above 1.

    Degrees that multiply to the devices are factors: CP in training, where ranks of TP share a
    cache in serving.
    """
    training = candidate.get("micro_batch") is not None
    factors = ("tp", "pp", "cp", "dp") if training else ("tp", "pp", "dp")
    above = [name for name in factors if name == "tp" or (candidate.get(name) or 1) > 1]
    shared = [name for name in ("ep", "cp") if (candidate.get(name) or 1) > 1]
    beside = [name for name in shared if name not in factors]
    product = " × ".join(_degree_text(candidate, name) for name in above)
    return " · ".join([product, *(_degree_text(candidate, name) for name in beside)])


def _degree_text(candidate: Mapping[str, Any], name: str) -> str:
    return f"{name.upper()} {candidate[name]}"


def _copies_text(copies: int, degrees: str) -> str:
    if copies == 1:
        return degrees
    return f"{copies} × {f'({degrees})' if ' × ' in degrees or ' · ' in degrees else degrees}"


def serving_split(candidate: Mapping[str, Any]) -> str:
    """Degrees, copies, draft and the prefill pool: ``2 × TP 4, prefill on 3 × TP 2``.

    A draft is its method, tokens and acceptance: ``TP 8, eagle 5 at 0.7``.
    """
    split = _copies_text(candidate.get("replicas") or 1, split_degrees_text(candidate))
    if draft := candidate.get("speculative"):
        split += f", {draft.get('method') or 'draft'} {draft['tokens']} at {draft['acceptance']:g}"
    if not (pool := candidate.get("prefill")):
        return split
    return (
        f"{split}, prefill on {_copies_text(pool.get('replicas') or 1, split_degrees_text(pool))}"
    )


def training_split(candidate: Mapping[str, Any]) -> str:
    """``DP 8 × PP 4 · 2 chunks a stage · ZeRO 1 · micro-batch 2``: what is not 1 or none."""
    c = candidate
    factors = [_degree_text(c, name) for name in ("dp", "tp", "pp", "cp") if c[name] > 1]
    parts = [" × ".join(factors) or "one device", *([_degree_text(c, "ep")] if c["ep"] > 1 else [])]
    if c["virtual_stages"] > 1:
        parts.append(f"{c['virtual_stages']} chunks a stage")
    replicas = c["dp"] * c["cp"]
    if c["zero_stage"]:
        hybrid = f" over {c['shard']}" if (c.get("shard") or replicas) != replicas else ""
        parts.append(f"ZeRO {c['zero_stage']}{hybrid}")
    parts.append(f"micro-batch {c['micro_batch']}")
    if c["recompute"] != "none":
        parts.append(f"{c['recompute']} recompute")
    if c.get("offload") == "parameters":
        parts.append("parameters on the host")
    return " · ".join(parts)


def split_name(candidate: Mapping[str, Any]) -> str:
    """A candidate of serving or of training in a few characters."""
    training = candidate.get("micro_batch") is not None
    return training_split(candidate) if training else serving_split(candidate)


def split_short_name(candidate: Mapping[str, Any]) -> str:
    """A split in a tile: of two pools ``TP 4 + 2 × TP 2``, of training ``DP 8 · ZeRO 3 · mb 8``.

    ``mb`` is the micro-batch. Everything that tells splits apart stays.
    """
    if candidate.get("prefill"):
        return serving_split(candidate).replace(", prefill on ", " + ")
    return split_name(candidate).replace("micro-batch", "mb")


def load_metric(field: str) -> Metric:
    """The metric of a load by the workload's field: users, requests in a batch, or queued."""
    mode = next(mode for mode, name in LOADS.items() if name == field)
    return next(metric for metric in metrics() if metric.name == "load" and mode in metric.kinds)


def load_field_text(field: str, load: float) -> str:
    """A load with what it counts, by the workload's field: ``64 users at once``, ``8 queued``."""
    number = f"{load:,.0f}" if float(load).is_integer() else significant(load)
    return f"{number} {load_metric(field).per}".replace("users", "user" if load == 1 else "users")
