"""The names of splits in links and charts: short texts from which the candidate can be read back.

Serving: ``vllm.bf16.auto.tp4.pp1.dp2.ep1``; ``.cp2`` where ranks share a cache; ``.x2.pre3.tp1.pp1.dp1.ep1``: two copies of it decode, and
three of tp 1 compute the prompts; ``.on1`` on the first of the clusters that the options put beside the request's. Training:
``torchtitan.bf16.tp2.pp4.v1.cp1.ep1.dp4.z1.mb2.full``; ``.s8`` where states are divided over eight ranks only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SPLIT_FIELDS = ("engine", "weight_dtype", "kv_dtype", "tp", "pp", "dp", "ep")
"""What a serving split is, where ranks share no cache."""
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
    r"(\.on(?P<on>\d{1,2}))?"
)
_TRAINING = re.compile(
    r"(?P<engine>[\w\-]+)\.(?P<precision>\w+)\.tp(?P<tp>\d{1,5})\.pp(?P<pp>\d{1,5})\.v(?P<virtual_stages>\d{1,5})\.cp(?P<cp>\d{1,5})"
    r"\.ep(?P<ep>\d{1,5})\.dp(?P<dp>\d{1,5})\.z(?P<zero_stage>\d)\.mb(?P<micro_batch>\d{1,6})\.(?P<recompute>[a-z]+)(\.s(?P<shard>\d{1,5}))?"
)


def split_key(candidate: Mapping[str, Any], cluster: int = 0) -> str:
    """The name of a candidate, serving's or training's; ``cluster``: which of the plan's clusters it is on."""
    c = candidate
    if c.get("micro_batch") is not None:
        degrees = (
            f"tp{c['tp']}.pp{c['pp']}.v{c['virtual_stages']}.cp{c['cp']}.ep{c['ep']}.dp{c['dp']}"
        )
        shard = (
            f".s{c['shard']}" if (c.get("shard") or c["dp"] * c["cp"]) != c["dp"] * c["cp"] else ""
        )
        return f"{c['engine']}.{c['precision']}.{degrees}.z{c['zero_stage']}.mb{c['micro_batch']}.{c['recompute']}{shard}"
    shared = f".cp{c['cp']}" if (c.get("cp") or 1) > 1 else ""
    where = f".on{cluster}" if cluster else ""
    return (
        f"{c['engine']}.{c['weight_dtype']}.{c['kv_dtype']}.{_degrees(c)}{shared}{_pools(c)}{where}"
    )


def _degrees(split: Mapping[str, Any]) -> str:
    return ".".join(f"{name}{split.get(name) or 1}" for name in ("tp", "pp", "dp", "ep"))


def _pools(split: Mapping[str, Any]) -> str:
    """How many copies decode, and the pool before them; nothing where one pool does both."""
    pool = split.get("prefill")
    return (
        f".x{split.get('replicas') or 1}.pre{pool.get('replicas') or 1}.{_degrees(pool)}"
        if pool
        else ""
    )


def split_of(key: str) -> dict[str, Any] | None:
    """The candidate that a key names, None when it is not a key."""
    found = _SERVING.fullmatch(key) or _TRAINING.fullmatch(key)
    if found is None:
        return None
    named = {
        name: int(text) if text.isdecimal() else text
        for name, text in found.groupdict().items()
        if text is not None and name != "on"
    }
    pool = {name: named.pop(f"pool_{name}") for name in _POOL if f"pool_{name}" in named}
    return named | ({"prefill": pool} if pool else {})


def cluster_of(key: str) -> int:
    """Which of the plan's clusters a key's split is on: 0 is the request's."""
    found = _SERVING.fullmatch(key)
    return int(found["on"] or 0) if found else 0


def read_pins(text: str, at_most: int) -> tuple[list[str], list[str]]:
    """Pinned split keys of a link, and a sentence for each that is not one or is too many."""
    keys = list(dict.fromkeys(item for item in text.split(",") if item))
    pins = [key for key in keys if split_of(key)]
    ignored = [f"pins: {key!r:.60} does not name a split." for key in keys if not split_of(key)]
    if len(pins) > at_most:
        ignored.append(f"pins: {len(pins)} splits are pinned; the first {at_most} are kept.")
    return pins[:at_most], ignored


def key_of(stated: Mapping[str, Any]) -> str | None:
    """The key of a candidate as a request states it, None while it leaves open what makes a split."""
    fields = TRAINING_FIELDS if stated.get("micro_batch") is not None else SPLIT_FIELDS
    complete = all(stated.get(name) is not None for name in fields)
    return split_key({**stated, "cp": stated.get("cp") or 1}) if complete else None
