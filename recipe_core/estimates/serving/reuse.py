"""Hits in the prefix cache of a split, by the room that its running requests leave.

The pool of a replica holds running requests and what past ones left. Blocks that a request found
are those of others; its own are what it computed and what it has written of its answer. With ``R``
running requests in a pool of ``P`` tokens, input ``i``, output ``o`` and the curve ``f``,

    C = P - R·((1 - h)·i + o/2)        h = f(C)

of which the largest solution counts: a prefix that all share stays as long as anybody runs. It is
found from above, by steps that never pass it, so more memory never finds less. The curve of a trace
counts the prompts in flight as cached too, so subtracting them is on the safe side.

``R`` replicas behind a balancer that does not look at prefixes each see a thinned stream. Where
prefixes are popular (the same system prompts and documents from everybody), thinning stretches time
and nothing else: a replica finds what a cache of its own size does. Where they are sessions, whose
next request must reach the same replica, that is what stickiness would give, and without it less,
down to one R-th. With affinity each replica sees its own share of the prefixes, and caches add up:
``h = f(R·C)``.

Left out: that requests which share blocks leave room for more requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache import reserved_tokens
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.pools import Pools
from recipe_core.estimates.serving.rates import Serving, active_replicas

# From above to the solution; each step at least holds what the one before found.
STEPS = 50


@dataclass(frozen=True, slots=True)
class DeviceCache(Columns):
    """Of each case: tokens that are free for reuse in a replica, and the share of prompts found.

    ``seen_tokens``: the size that counts, with those of other replicas where requests are routed by
    prefix.
    """

    free_tokens: Float
    seen_tokens: Float
    hit: Float


def device_cache(
    setting: Setting, cases: Cases, memory: Memory, served: Serving | None, pools: Pools | None
) -> DeviceCache:
    """Return the hits in the devices' cache: of the pool that computes prompts, if any.

    ``served`` and ``pools``: how it serves, where that is known already.
    """
    curve, tokens = setting.reuse, memory.kv_cache_tokens
    if curve is None:
        return DeviceCache(tokens, tokens, cases.prefix_hit)
    if pools is not None:
        tokens = np.where(cases.disaggregated, pools.memory.kv_cache_tokens, tokens)
        cases = cases.prefill_pool
    pool_tokens = np.maximum(tokens, 0.0)
    running = _running_requests(setting, cases, pool_tokens)
    if pools is not None:
        sequence_bytes = np.maximum(pools.memory.sequence_bytes, 1.0)
        running = np.minimum(running, pools.memory.kv_needed_bytes / sequence_bytes)
    elif served is not None and setting.mode == "open":
        running = np.fmin(running, served.resident)
    copies: Float = cases.replicas.astype(float) if curve.affinity else np.ones(len(cases))
    free, hit = pool_tokens, curve.hit_at(copies * pool_tokens)
    for _ in range(STEPS):
        new_tokens = (1 - hit) * cases.input_tokens + cases.output_tokens / 2
        free = np.maximum(pool_tokens - running * new_tokens, 0.0)
        next_hit = np.minimum(curve.hit_at(copies * free), hit)
        if np.array_equal(next_hit, hit):
            break
        hit = next_hit
    return DeviceCache(free, copies * free, hit)


def _running_requests(setting: Setting, cases: Cases, pool_tokens: Float) -> Float:
    """Requests of a replica that hold blocks, as the load and the pool bound them (one per case).

    Not rounded, so that a pool that is a little larger never leaves less room.
    """
    limit = np.minimum(pool_tokens / reserved_tokens(setting, cases), cases.max_num_seqs)
    if setting.mode == "open":
        return limit
    return np.minimum(limit, cases.load / active_replicas(cases))
