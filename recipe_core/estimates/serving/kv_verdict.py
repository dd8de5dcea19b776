"""What every tier below the devices' cache changes, tier by tier, and whether it is worth it.

A tier is judged by the whole estimate with it against that without it, the tiers above in place. So
loads, queues on links, copies that steps wait for and hits all count, as the estimate has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import significant
from recipe_core.engines.memory import Tier
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.kv_offload import Offload
from recipe_core.estimates.serving.feature_results import KvTier, PrefixCache, Verdict
from recipe_core.estimates.serving.kv_tiers import Cached, TierUse
from recipe_core.estimates.serving.rates import Serving, active_replicas

# A change that counts, as a share of what is changed: repeated runs differ by as much.
NOTICED = 0.02
# The least that a change counts beside one the other way, as a share of that.
WEIGHS = 0.2


class Estimated(Protocol):
    """What is read of estimates."""

    @property
    def setting(self) -> Setting:
        """What all cases share."""

    @property
    def cases(self) -> Cases:
        """The cases."""

    @property
    def serving(self) -> Serving:
        """How they serve."""

    @property
    def cached(self) -> Cached | None:
        """What their prompts find."""


def prefix_caches(e: Estimated, rows: Int) -> list[PrefixCache | None]:
    """What each of the chosen cases finds; None where the workload states a share."""
    cached = e.cached
    if cached is None or e.setting.reuse is None:
        return [None] * len(rows)
    device = cached.device
    columns = (cached.hit, device.hit, device.free_tokens, device.seen_tokens)
    values = (np.asarray(column)[rows].tolist() for column in columns)
    return [PrefixCache(*row) for row in zip(*values, strict=True)]


@dataclass(frozen=True, slots=True)
class _Change:
    """One tier of several cases: what it is, and estimates without and with it."""

    tier: Tier
    use: TierUse
    hit: Float
    before: Serving
    after: Serving
    slowdown: Float


def kv_tiers(
    e: Estimated, rows: Int, estimate: Callable[[Setting, Cases], Estimated]
) -> list[list[KvTier] | None]:
    """Every tier of the chosen cases, nearest first; None where none is asked for."""
    offload = e.setting.offload
    if offload is None or e.cached is None or not e.cached.tiers or not len(rows):
        return [None] * len(rows)
    cases, changes = e.cases.take(rows), []
    if e.setting.reuse is None:  # tiers did not change the share that was asked for
        cases = replace(cases, prefix_hit=e.cached.device.hit[rows])
    before = estimate(replace(e.setting, offload=None), cases).serving
    for count, tier in enumerate(offload.tiers, 1):
        tiered = estimate(replace(e.setting, offload=offload.first(count)), cases)
        cached = tiered.cached
        if cached is None:  # not with tiers
            continue
        changes.append(
            _Change(
                tier,
                cached.tiers[tier],
                cached.hit,
                before,
                tiered.serving,
                _slowdown(tiered, offload),
            )
        )
        before = tiered.serving
    storage = {tier: store.storage.name for tier in offload.tiers if (store := offload.store(tier))}
    return [
        [_tier_row(change, i, storage.get(change.tier)) for change in changes]
        for i in range(len(rows))
    ]


def _slowdown(tiered: Estimated, offload: Offload) -> Float:
    """Share of a replica's time that moving blocks takes: of its requests and of its steps."""
    served, cases, connector = tiered.serving, tiered.cases, offload.connector
    servers = cases.replicas if tiered.setting.mode == "open" else active_replicas(cases)
    per_s = served.output_tokens_per_s / cases.output_tokens / servers
    steps = 0.0 if connector is None else connector.step_s / np.maximum(served.step_s, 1e-9)
    return per_s * cases.kv_step_s + steps


def _tier_row(change: _Change, i: int, storage: str | None) -> KvTier:
    use = change.use.take(np.array([i]))
    first, then = change.before, change.after
    ttft_s = float(then.ttft_s[i] - first.ttft_s[i])
    tpot_s = float(then.tpot_s[i] - first.tpot_s[i])
    faster = float(then.output_tokens_per_s[i] / first.output_tokens_per_s[i] - 1)
    shares = (-ttft_s / float(first.ttft_s[i]), -tpot_s / float(first.tpot_s[i]), faster)
    verdict = _tier_verdict(shares)
    return KvTier(
        name=change.tier,
        capacity_tokens=float(use.capacity_tokens[0]),
        hit=float(change.hit[i]),
        hit_added=float(use.hit_added[0]),
        load_s_per_token=float(use.load_s_per_token[0]),
        recompute_s_per_token=float(use.recompute_s_per_token[0]),
        load_s=float(use.load_s[0]),
        ttft_change_s=ttft_s,
        tpot_change_s=tpot_s,
        throughput_change=faster,
        step_slowdown=float(change.slowdown[i]),
        read_bytes_per_s=float(use.read_bytes_per_s[0]),
        write_bytes_per_s=float(use.write_bytes_per_s[0]),
        busy=float(use.busy[0]),
        verdict=verdict,
        because=" ".join(_verdict_reasons(use, float(change.slowdown[i]))),
        storage=storage,
    )


def _tier_verdict(shares: tuple[float, ...]) -> Verdict:
    """By gains as shares of what they change, those that are large enough to count."""
    gain, loss = max(*shares, 0.0), max(*(-share for share in shares), 0.0)
    better, worse = gain > max(NOTICED, WEIGHS * loss), loss > max(NOTICED, WEIGHS * gain)
    if better and worse:
        return "mixed"
    if better:
        return "helps"
    return "hurts" if worse else "neutral"


def _verdict_reasons(use: TierUse, slowdown: float) -> Iterator[str]:
    """What decides: hits, a token loaded against computed, drives, steps."""
    added, load_s = float(use.hit_added[0]), float(use.load_s_per_token[0])
    compute_s = float(use.recompute_s_per_token[0])
    if added < 0.0005:
        yield "It finds nothing that is not found above it."
    else:
        yield f"It finds {significant(100 * added)} % of the prompts' tokens."
        slower = "less than" if load_s < compute_s else "no less than"
        yield (
            f"A token loads in {_microseconds_text(load_s)}, {slower} the "
            f"{_microseconds_text(compute_s)} to compute it."
        )
    if float(use.written_share[0]) < 1:
        yield f"Its drives can only write {float(use.written_share[0]):.0%} of the blocks."
    if float(use.busy[0]) > 0.7:
        yield f"Its link is busy {float(use.busy[0]):.0%} of the time."
    if slowdown > NOTICED:
        yield f"Moving blocks takes {slowdown:.1%} of the devices' time."


def _microseconds_text(seconds: float) -> str:
    return f"{significant(seconds * 1e6)} µs"
