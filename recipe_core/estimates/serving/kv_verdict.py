"""Verdicts on tiers below the devices' cache: what each changes, and whether it is worth it.

A tier is judged by the whole estimate with it against that without it, the tiers above in place. So
loads, queues on links, copies that steps wait for and hits all count, as the estimate has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.memory import Tier
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import build_parts
from recipe_core.estimates.serving.feature_results import KvTier, PrefixCache, Verdict
from recipe_core.estimates.serving.kv_tiers import Cached, TierUse
from recipe_core.estimates.serving.notes import note_where, place_notes
from recipe_core.estimates.serving.rates import Serving, active_replicas

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates

# A change that counts, as a share of what is changed: repeated runs differ by as much.
NOTICED = 0.02
# The least that a change counts beside one the other way, as a share of that.
WEIGHS = 0.2
# Shares that are said: of prompt tokens that a tier finds, of a link's time.
FOUND, BUSY = 0.0005, 0.7


def prefix_caches(e: Estimates) -> list[PrefixCache | None]:
    """Return what each case finds; None where the workload states a share."""
    if e.cached is None or e.setting.reuse is None:
        return [None] * len(e)
    device = e.cached.device
    return [*build_parts(PrefixCache, e.cached, device, device_hit=device.hit)]


def kv_tiers(
    e: Estimates, estimate: Callable[[Setting, Cases], Estimates]
) -> list[list[KvTier] | None]:
    """Every tier of each case, nearest first; None where none is asked for."""
    offload, cases = e.setting.offload, e.cases
    if offload is None or e.cached is None or not e.cached.tiers or not len(e):
        return [None] * len(e)
    if e.setting.reuse is None:  # tiers did not change the share that was asked for
        cases = replace(cases, prefix_hit=e.cached.device.hit)
    before, tiers = estimate(replace(e.setting, offload=None), cases).serving, []
    for count, tier in enumerate(offload.tiers):
        nearest = replace(offload, stores=offload.stores[:count])
        tiered = estimate(replace(e.setting, offload=nearest), cases)
        if tiered.cached is not None:
            tiers.append(_tier_rows(before, tiered, tiered.cached, tier))
        before = tiered.serving
    return [[*of_case] for of_case in zip(*tiers, strict=True)]


def _tier_rows(before: Serving, tiered: Estimates, cached: Cached, tier: Tier) -> list[KvTier]:
    """A tier of each case by estimates without and with it."""
    offload, then, use = tiered.setting.offload, tiered.serving, cached.tiers[tier]
    store, slowdown = offload.store(tier) if offload else None, _slowdown(tiered)
    ttft_s, tpot_s = then.ttft_s - before.ttft_s, then.tpot_s - before.tpot_s
    faster = then.output_tokens_per_s / before.output_tokens_per_s - 1
    gains = np.stack([-ttft_s / before.ttft_s, -tpot_s / before.tpot_s, faster], axis=1)
    return build_parts(
        KvTier,
        use,
        name=[tier] * len(tiered),
        storage=[store.storage.name if store else None] * len(tiered),
        hit=cached.hit,
        ttft_change_s=ttft_s,
        tpot_change_s=tpot_s,
        throughput_change=faster,
        step_slowdown=slowdown,
        verdict=map(_tier_verdict, gains.tolist()),
        because=_verdict_reasons(use, slowdown),
    )


def _slowdown(tiered: Estimates) -> Float:
    """Share of a replica's time that moving blocks takes: of its requests and of its steps."""
    served, cases, offload = tiered.serving, tiered.cases, tiered.setting.offload
    servers = cases.replicas if tiered.setting.mode == "open" else active_replicas(cases)
    per_s = served.output_tokens_per_s / cases.output_tokens / servers
    step_s = offload.connector.step_s if offload and offload.connector else 0.0
    return per_s * cases.kv_step_s + step_s / np.maximum(served.step_s, 1e-9)


def _tier_verdict(shares: Sequence[float]) -> Verdict:
    """By gains as shares of what they change, those that are large enough to count."""
    gain, loss = max(*shares, 0.0), max(*(-share for share in shares), 0.0)
    better, worse = gain > max(NOTICED, WEIGHS * loss), loss > max(NOTICED, WEIGHS * gain)
    if better and worse:
        return "mixed"
    if better:
        return "helps"
    return "hurts" if worse else "neutral"


def _verdict_reasons(use: TierUse, slowdown: Float) -> list[str]:
    """Say what decides: hits, a token loaded against computed, drives, steps."""
    load_s, compute_s, finds = use.load_s_per_token, use.recompute_s_per_token, use.hit_added
    token = {"load": 1e6 * load_s, "compute": 1e6 * compute_s}
    token["than"] = np.where(load_s < compute_s, "less than", "no less than")
    notes = (
        note_where("tier-nothing", finds < FOUND),
        note_where("tier-finds", ~(finds < FOUND), percent=100 * finds, **token),
        note_where("tier-writes", use.written_share < 1, share=use.written_share),
        note_where("tier-busy", use.busy > BUSY, share=use.busy),
        note_where("tier-moves", slowdown > NOTICED, share=slowdown),
    )
    out: list[list[str]] = [[] for _ in slowdown]
    place_notes(out, np.arange(len(out)), notes)
    return [" ".join(sentences) for sentences in out]
