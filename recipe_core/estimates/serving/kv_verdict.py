"""Verdicts on tiers below the devices' cache: what each changes, and whether it is worth it.

A tier is judged by the whole estimate with it against that without it, the tiers above in place. So
loads, queues on links, copies that steps wait for and hits all count, as the estimate has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.units import significant
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.prediction import build_parts
from recipe_core.estimates.rules.kv_offload import Offload
from recipe_core.estimates.serving.feature_results import KvTier, PrefixCache, Verdict
from recipe_core.estimates.serving.kv_tiers import TierUse
from recipe_core.estimates.serving.rates import Serving, active_replicas

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates

# A change that counts, as a share of what is changed: repeated runs differ by as much.
NOTICED = 0.02
# The least that a change counts beside one the other way, as a share of that.
WEIGHS = 0.2


def prefix_caches(e: Estimates) -> list[PrefixCache | None]:
    """Return what each case finds; None where the workload states a share."""
    if e.cached is None or e.setting.reuse is None:
        return [None] * len(e)
    device = e.cached.device
    return [*build_parts(PrefixCache, e.cached, device, device_hit=device.hit)]


@dataclass(frozen=True, slots=True)
class _Change:
    """One tier of several cases: its use, and estimates without and with it."""

    use: TierUse
    before: Serving
    after: Serving
    slowdown: Float


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
    for count, tier in enumerate(offload.tiers, 1):
        tiered = estimate(replace(e.setting, offload=offload.first(count)), cases)
        if tiered.cached is None:  # not with tiers
            continue
        store, slowdown = offload.store(tier), _slowdown(tiered, offload)
        change = _Change(tiered.cached.tiers[tier], before, tiered.serving, slowdown)
        storage = None if store is None else store.storage.name
        names = {"name": [tier] * len(e), "storage": [storage] * len(e)}
        tiers.append(_tier_rows(change, hit=tiered.cached.hit, **names))
        before = tiered.serving
    return [[*of_case] for of_case in zip(*tiers, strict=True)]


def _slowdown(tiered: Estimates, offload: Offload) -> Float:
    """Share of a replica's time that moving blocks takes: of its requests and of its steps."""
    served, cases, connector = tiered.serving, tiered.cases, offload.connector
    servers = cases.replicas if tiered.setting.mode == "open" else active_replicas(cases)
    per_s = served.output_tokens_per_s / cases.output_tokens / servers
    steps = 0.0 if connector is None else connector.step_s / np.maximum(served.step_s, 1e-9)
    return per_s * cases.kv_step_s + steps


def _tier_rows(change: _Change, **columns: Any) -> list[KvTier]:
    first, then, use = change.before, change.after, change.use
    ttft_s, tpot_s = then.ttft_s - first.ttft_s, then.tpot_s - first.tpot_s
    faster = then.output_tokens_per_s / first.output_tokens_per_s - 1
    gains = np.stack([-ttft_s / first.ttft_s, -tpot_s / first.tpot_s, faster], axis=1)
    return build_parts(
        KvTier,
        use,
        ttft_change_s=ttft_s,
        tpot_change_s=tpot_s,
        throughput_change=faster,
        step_slowdown=change.slowdown,
        verdict=map(_tier_verdict, gains.tolist()),
        because=[" ".join(_verdict_reasons(change, i)) for i in range(len(faster))],
        **columns,
    )


def _tier_verdict(shares: Sequence[float]) -> Verdict:
    """By gains as shares of what they change, those that are large enough to count."""
    gain, loss = max(*shares, 0.0), max(*(-share for share in shares), 0.0)
    better, worse = gain > max(NOTICED, WEIGHS * loss), loss > max(NOTICED, WEIGHS * gain)
    if better and worse:
        return "mixed"
    if better:
        return "helps"
    return "hurts" if worse else "neutral"


def _verdict_reasons(change: _Change, i: int) -> Iterator[str]:
    """Yield what decides: hits, a token loaded against computed, drives, steps."""
    use, slowdown = change.use, float(change.slowdown[i])
    added, load_s = float(use.hit_added[i]), float(use.load_s_per_token[i])
    compute_s = float(use.recompute_s_per_token[i])
    if added < 0.0005:
        yield "It finds nothing that is not found above it."
    else:
        yield f"It finds {significant(100 * added)} % of the prompts' tokens."
        slower = "less than" if load_s < compute_s else "no less than"
        yield (
            f"A token loads in {_microseconds_text(load_s)}, {slower} the "
            f"{_microseconds_text(compute_s)} to compute it."
        )
    if float(use.written_share[i]) < 1:
        yield f"Its drives can only write {float(use.written_share[i]):.0%} of the blocks."
    if float(use.busy[i]) > 0.7:
        yield f"Its link is busy {float(use.busy[i]):.0%} of the time."
    if slowdown > NOTICED:
        yield f"Moving blocks takes {slowdown:.1%} of the devices' time."


def _microseconds_text(seconds: float) -> str:
    return f"{significant(seconds * 1e6)} µs"
