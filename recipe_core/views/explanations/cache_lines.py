"""The arithmetic of prompts that are found in caches: sizes, shares, and a token loaded or made."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.base.units import GIB, significant
from recipe_core.estimates.prediction import known
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.plans.serving_plan import ServingPlan
from recipe_core.views.explanations.line import Line

TITLE = "Prompts found in caches"
TIERS = {"host": "Host memory", "disk": "Drives", "remote": "Remote store"}


def cache_lines(board: ServingPlan, row: int, estimate: ServingEstimate) -> dict[str, list[Line]]:
    """Lines of a split that runs, under their title; none where the workload states a share."""
    if estimate.prefix_cache is None:
        return {}
    lines = [*_device_lines(estimate), *_tier_lines(board, row, estimate)]
    return {TITLE: lines}


def _device_lines(estimate: ServingEstimate) -> Iterator[Line]:
    cache = known(estimate.prefix_cache)
    pool = estimate.memory.prefill or estimate.memory
    used = pool.kv_cache_tokens - cache.free_tokens
    yield Line(
        "Cache free for reuse",
        "tokens of a replica's cache - those of running requests alone",
        f"{pool.kv_cache_tokens:,} - {used:,.0f}",
        f"{cache.free_tokens:,.0f} tokens",
    )
    yield Line(
        "Found by the devices",
        "workload.prefix_reuse at that size (of all replicas where requests are routed by prefix)",
        f"reuse({cache.seen_tokens:,.0f} tokens)",
        f"{significant(100 * cache.device_hit)} %",
    )


def _tier_lines(board: ServingPlan, row: int, estimate: ServingEstimate) -> Iterator[Line]:
    offload, above = board.setting(row).offload, known(estimate.prefix_cache).device_hit
    block, i = board.at(row)
    for tier in estimate.kv_tiers or []:
        title, store = TIERS[tier.name], offload.store(tier.name) if offload else None
        if offload is not None and store is None:
            room = float(offload.server_bytes(block.cases.take([i]))[0])
        else:
            room = store.capacity_bytes if store else 0.0
        token_bytes = room / max(tier.capacity_tokens, 1e-9)
        yield Line(
            f"{title}, capacity",
            "bytes ÷ bytes of a token on all ranks of a server",
            f"{significant(room / GIB)} GiB ÷ {significant(token_bytes / 1024)} KiB",
            f"{tier.capacity_tokens:,.0f} tokens",
        )
        yield Line(
            f"{title}, found",
            "reuse at the largest size so far - what is found above",
            f"{significant(100 * tier.hit)} % - {significant(100 * above)} %",
            f"{significant(100 * tier.hit_added)} %",
        )
        yield Line(
            f"{title}, a token",
            "time to load against time to compute",
            f"{significant(tier.load_s_per_token * 1e6)} µs ÷ "
            f"{significant(tier.recompute_s_per_token * 1e6)} µs",
            significant(tier.load_s_per_token / max(tier.recompute_s_per_token, 1e-12)),
        )
        above = tier.hit
