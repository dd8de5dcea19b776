"""What an estimate says of what its caches hold, and of the prompts that they find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipe_core.estimates.columns.serving import Cases, Setting

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates


def held_notes(setting: Setting, cases: Cases) -> Iterator[list[str]]:
    """How often each token's cache is held, where tp is more than there are KV heads."""
    cached = [
        a
        for layer, _ in setting.model.kinds
        if (a := layer.attention) is not None and a.kv_values_per_head
    ]
    heads = max((a.kv_heads for a in cached), default=0)
    heads_text = "1 KV head" if heads == 1 else f"{heads} KV heads"
    for tp in cases.tp.tolist():
        yield (
            [f"Each cached token is held {tp // heads} times: {heads_text} over tp {tp}."]
            if heads and tp // heads > 1
            else []
        )


def cache_notes(e: Estimates) -> Iterator[list[str]]:
    """Sentences on the share that each case finds, and where; none without reuse."""
    cached, offload = e.cached, e.setting.offload
    if cached is None:
        yield from ([] for _ in range(len(e)))
        return
    shared = _about_host(e)
    if e.setting.reuse is None:
        shared.append(
            "Without workload.prefix_reuse, tiers below the devices find nothing: only what they "
            "cost is counted."
        )
        yield from (list(shared) for _ in range(len(e)))
        return
    device = cached.device
    columns = (device.seen_tokens, device.hit, cached.hit)
    for free_tokens, device_hit, total_hit in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        whose = "all replicas" if e.setting.reuse.affinity else "a replica"
        out = [
            f"The cache of {whose} has {free_tokens:,.0f} tokens free for reuse: "
            f"{device_hit:.0%} found."
        ]
        if offload is not None and cached.tiers:
            names = " and ".join(cached.tiers)
            out.append(f"With {names}, {total_hit:.0%} of the prompts' tokens are found.")
        yield [*out, *shared]


def _about_host(e: Estimates) -> list[str]:
    """That the host's memory is unknown, where blocks go there."""
    node = e.setting.cluster.device.node
    if e.setting.offload is None or node.host_memory_bytes is not None:
        return []
    return ["The profile does not state the host's memory: check that it holds the blocks."]
