"""Tiers below the devices' cache: what they hold, find and cost.

A token of the cache has ``b`` bytes on a device (`context_bytes` over the mean prompt) and ``B`` on
all devices of a server. A tier of ``S`` bytes holds ``S/B`` tokens. What is computed is written to
every tier at once (vLLM's connector, LMCache, HiCache's write_through), so that a tier also holds
what is above it: with sizes ``C₀`` (devices), ``C₁`` … the share found down to a tier is
``h = f(max(C₀ … C))``, and a tier that is smaller than those above adds nothing.

A token comes back in

    host            b / (link · share)
    disk, remote    max of that and B / (rate of the server's nodes), plus latency

against the time to compute it, which is what a step of the prompt alone takes less with it. A
request's blocks load for ``L`` seconds. Where loads are asynchronous the request waits ``L``, with
the queue on the link (M/D/1, at most the other requests in flight); where they block, steps take
``L`` longer for everybody; layer by layer only what the prompt's own computation does not cover.
Saving takes ``w = new tokens · b / (link · share)``, of which steps wait for ``exposed``, and
``block_s`` for each piece. A store whose drives cannot write as fast as blocks come has the share
that they can.

Source of the forms: LMCache (arXiv:2510.09665), vLLM's offloading connector, SGLang's HiCache; of
the constants: ``engines/serving``, ``hardware/host_links.yaml``, ``hw_profiles/storage``. Left out:
compression of blocks, and that a store is still empty after a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.engines.memory import KvWay, Tier
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.kv_offload import Offload
from recipe_core.estimates.serving.cache import context_bytes
from recipe_core.estimates.serving.cache_blocks import Counted
from recipe_core.estimates.serving.continuous_batching import prompt_chunks
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.pools import Pools
from recipe_core.estimates.serving.rates import Serving, active_replicas
from recipe_core.estimates.serving.reuse import DeviceCache, device_cache
from recipe_core.estimates.serving.speculative import engine_step
from recipe_core.estimates.serving.weights import draft_layer
from recipe_core.hardware.host import host_links, link_rates
from recipe_core.models.spec import LatentAttention

# Share of a link that is busy where a queue on it is still computed.
FULLEST = 0.98
# Times that rates and waits for blocks are balanced.
PASSES = 5

Solve = Callable[[Setting, Cases, Memory], tuple[Serving, Pools | None]]


@dataclass(frozen=True, slots=True)
class TierUse(Columns):
    """One tier of each case, one number per case.

    capacity_tokens: of a server, or of a store for all. hit_added: share of prompt tokens that it
    finds and those above do not. load_s_per_token: of a token that comes back, without latency;
    recompute_s_per_token: to compute it instead. load_s: of a mean request, with latency.
    read_bytes_per_s, write_bytes_per_s: of all servers together. busy: share of its time that the
    slowest link or drive of the tier is read. written_share: share of the blocks that it can write.
    """

    capacity_tokens: Float
    hit_added: Float
    load_s_per_token: Float
    recompute_s_per_token: Float
    load_s: Float
    read_bytes_per_s: Float
    write_bytes_per_s: Float
    busy: Float
    written_share: Float


@dataclass(frozen=True, slots=True)
class Cached(Columns):
    """The hits of every case's prompts: in the devices' cache, and in tiers below.

    ``hit``: the share of prompt tokens that are not computed. ``busy``: of the host link.
    """

    device: DeviceCache
    hit: Float
    busy: Float
    tiers: dict[Tier, TierUse]


@dataclass(frozen=True, slots=True)
class _Tier:
    """One tier as it is, one number per case.

    ``token_bytes``: of a server's token in it. Seconds per token: ``load_s`` of a server alone;
    ``read_s`` and ``write_s``: that the store is busy with it, whose nodes and rate others share; 0
    of the host, whose link is counted for all tiers.
    """

    name: Tier
    capacity_tokens: Float
    token_bytes: Float
    load_s: Float
    latency_s: float
    read_s: Float
    write_s: Float


def _tiers(setting: Setting, offload: Offload, cases: Cases, link_s: Float) -> Iterator[_Tier]:
    """Yield the tiers of a server, nearest first, over a link that takes ``link_s`` a token.

    Ranks that hold copies of a KV head save each its own; of a latent, which all ranks hold whole,
    stores get one where the way to offload sees to it.
    """
    devices, zero = (cases.tp * cases.pp).astype(float), np.zeros(len(cases))
    together = setting.reuse is not None and setting.reuse.affinity
    servers = cases.replicas if together else np.ones(len(cases))
    token_bytes = _rank_bytes(setting, cases) * cases.tp
    room = offload.server_bytes(cases) * servers
    capacity = room / np.maximum(token_bytes, 1e-9)
    yield _Tier("host", capacity, token_bytes, link_s, 0.0, zero, zero)
    mixers = [layer.attention for layer, _ in setting.model.kinds if layer.attention is not None]
    latent = all(isinstance(mixer, LatentAttention) for mixer in mixers)
    once = offload.connector is not None and offload.connector.once
    stored_bytes = token_bytes / (cases.tp if latent and once else 1)
    nodes, used = np.ceil(devices / cases.per_node), np.ceil(cases.devices / cases.per_node)
    beside = np.maximum(np.minimum(cases.devices, cases.per_node) / devices, 1.0)
    for store in offload.stores:
        read_s = stored_bytes / (store.storage.read_rate(used) / used * nodes)
        write_s = stored_bytes / (store.storage.write_rate(used) / used * nodes)
        shared = 1.0 if store.tier == "remote" else servers
        yield _Tier(
            store.tier,
            shared * store.capacity_bytes / np.maximum(stored_bytes, 1e-9),
            stored_bytes,
            np.maximum(link_s, read_s),
            store.storage.latency_s.value,
            read_s * beside,
            write_s * beside,
        )


def _rank_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes of cache per token of a mean prompt on the ranks of one stage after the other."""
    model = setting.model
    layers: Counted = (*model.kinds, (draft_layer(model), cases.draft_layers))
    return context_bytes(setting, layers, cases, cases.input_tokens) / cases.input_tokens


def prompt_alone_s(setting: Setting, cases: Cases) -> Float:
    """Seconds that the steps of one prompt take alone, with its share found (one per case)."""
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    zero = np.zeros(len(cases))
    step = Step(tokens / chunks, context, zero, zero, 1 / chunks)
    return chunks * total(engine_step(setting, cases, step))


def _request_rate(setting: Setting, cases: Cases, served: Serving | None) -> tuple[Float, Float]:
    """Requests per second of one server, and others that load beside each."""
    if served is None:
        return np.zeros(len(cases)), np.zeros(len(cases))
    other_loads = np.maximum(np.nan_to_num(served.resident) - 1, 0.0)
    if setting.mode == "open":
        return cases.load / cases.replicas, other_loads
    requests_per_s = np.nan_to_num(served.output_tokens_per_s) / cases.output_tokens
    return requests_per_s / active_replicas(cases), other_loads


def _wait_s(load_s: Float, busy: Float, other_loads: Float) -> Float:
    """Seconds that a load waits for those before it: M/D/1, at most all others in flight."""
    within = np.minimum(busy, FULLEST)
    queue = np.where(busy < FULLEST, load_s * within / (2 * (1 - within)), np.inf)
    return np.minimum(queue, other_loads * load_s)


def _written_share(all_new: Float, fewer: Float, token_s: Float) -> Float:
    """The share of blocks that a store can write, which takes ``token_s`` a token and second.

    Of ``n = (1 - h - k·added)·i + o`` new tokens a request ``k`` are written: ``k·n·s = 1`` where
    all would take longer than there is time. ``all_new``: without what it adds, ``fewer``.
    """
    room = 1 / np.maximum(token_s, 1e-300)
    root = np.sqrt(np.maximum(all_new**2 - 4 * fewer * room, 0.0))
    share = 2 * room / np.maximum(all_new + root, 1e-300)
    return np.where(all_new - fewer <= room, 1.0, np.minimum(share, 1.0))


class _Offloading:
    """The tiers of the cases of a setting that offloads; ``cached`` has them at a rate."""

    def __init__(self, setting: Setting, offload: Offload, way: KvWay, cases: Cases) -> None:
        self.setting, self.way, self.cases = setting, way, cases
        to_device, back = link_rates(setting.cluster.device)
        device_bytes = _rank_bytes(setting, cases) / cases.pp
        self.link_s = device_bytes / (to_device * way.link_share)
        self.save_s = device_bytes / (back * way.link_share)
        self.tiers = [*_tiers(setting, offload, cases, self.link_s)]

    def cached(self, device: DeviceCache, served: Serving | None) -> tuple[Cached, Cases]:
        """Return what is found at the rate that is served, and the cases with what that costs."""
        cases, way = self.cases, self.way
        per_s, other_loads = _request_rate(self.setting, cases, served)
        uses, hit = self._uses(device, per_s)
        new = self._saved_tokens(hit)
        saving_s = new * self.save_s
        # every tier's blocks cross the host link
        link_s = self.link_s * sum(use.hit_added * cases.input_tokens for use in uses.values())
        beside = 2 / host_links().duplex.value - 1  # what copies the other way take of the rate
        busy = per_s * (link_s + beside * saving_s)
        waits_s = _wait_s(link_s, busy, other_loads)
        for tier in self.tiers[1:]:
            use = uses[tier.name]
            read_s = use.hit_added * cases.input_tokens * tier.read_s
            waits_s = waits_s + _wait_s(read_s, use.busy, other_loads)
        for tier in self.tiers:
            use = uses[tier.name]
            written = per_s * cases.replicas * new * use.written_share * tier.token_bytes
            uses[tier.name] = replace(use, write_bytes_per_s=written)
        exposed_s = way.exposed * saving_s + new / way.block_tokens * way.block_s
        loads_s = add(use.load_s for use in uses.values())
        with_hits = replace(cases, prefix_hit=hit)
        if way.loads == "blocking":  # in steps there is no queue on the link
            wait_s, step_s = way.request_s + 0 * hit, loads_s + exposed_s
        else:
            if way.loads == "layerwise":
                alone_s = prompt_alone_s(self.setting, with_hits)
                loads_s = loads_s - np.minimum(uses["host"].load_s, alone_s)
            wait_s, step_s = way.request_s + loads_s + waits_s, exposed_s
        costs = replace(with_hits, kv_wait_s=wait_s, kv_step_s=step_s)
        return Cached(device, hit, busy, uses), costs

    def _uses(self, device: DeviceCache, per_s: Float) -> tuple[dict[Tier, TierUse], Float]:
        """Each tier at a rate but for what is written, and the share of tokens that are found."""
        cases, curve, out = self.cases, self.setting.reuse, dict[Tier, TierUse]()
        seen_tokens, above, hit = device.seen_tokens, device.hit, device.hit
        for tier in self.tiers:
            seen_tokens = np.maximum(seen_tokens, tier.capacity_tokens)
            within = above if curve is None else np.maximum(curve.hit_at(seen_tokens), above)
            added, above = within - above, within
            fewer, write_s = added * cases.input_tokens, per_s * tier.write_s
            written_share = _written_share(self._saved_tokens(hit), fewer, write_s)
            hit_added = added * written_share
            tokens = hit_added * cases.input_tokens
            pieces = tokens / self.way.block_tokens
            # the first bytes come after as many rounds as reads need
            rounds = np.maximum(pieces / self.way.reads_at_once, np.minimum(pieces, 1.0))
            out[tier.name] = TierUse(
                capacity_tokens=tier.capacity_tokens,
                hit_added=hit_added,
                load_s_per_token=tier.load_s,
                recompute_s_per_token=self._recompute_s(hit, hit_added),
                load_s=tokens * tier.load_s + tier.latency_s * rounds,
                read_bytes_per_s=per_s * cases.replicas * tokens * self.tiers[0].token_bytes,
                write_bytes_per_s=np.zeros(len(cases)),
                busy=per_s * tokens * (self.link_s if tier.name == "host" else tier.read_s),
                written_share=written_share,
            )
            hit = hit + hit_added
        return out, hit

    def _saved_tokens(self, hit: Float) -> Float:
        """Tokens of a request that are new, and saved."""
        answers = self.cases.output_tokens if self.way.saves == "all" else 0.0
        return (1 - hit) * self.cases.input_tokens + answers

    def _recompute_s(self, hit: Float, added: Float) -> Float:
        """Seconds that a token takes which is computed: those of a tier, else any of a prompt."""
        alone_s = prompt_alone_s(self.setting, replace(self.cases, prefix_hit=hit))
        less_s = prompt_alone_s(self.setting, replace(self.cases, prefix_hit=hit + added))
        tokens = added * self.cases.input_tokens
        computed = np.maximum(self.cases.input_tokens * (1 - hit), 1.0)
        return np.where(
            tokens > 0, (alone_s - less_s) / np.maximum(tokens, 1e-9), alone_s / computed
        )


def solved_with_cache(
    setting: Setting, cases: Cases, memory: Memory, solve: Solve
) -> tuple[Cases, Serving, Pools | None, Cached]:
    """Cases with the share of prompts that they find, what that costs, and how they serve.

    What is found depends on the requests that run, which depend on what is found: in an open loop,
    between pools and with tiers it is balanced in a few passes.
    """
    offload, tiers = setting.offload, None
    passes = int(
        setting.reuse is not None and (setting.mode == "open" or cases.disaggregated.any())
    )
    if offload is not None and offload.connector is not None:
        tiers, passes = _Offloading(setting, offload, offload.connector, cases), PASSES

    def find_hits(served: Serving | None, pools: Pools | None) -> tuple[Cached, Cases]:
        device = device_cache(setting, cases, memory, served, pools)
        if tiers is not None:
            return tiers.cached(device, served)
        zero = np.zeros(len(cases))
        alone = replace(cases, prefix_hit=device.hit, kv_wait_s=zero, kv_step_s=zero)
        return Cached(device, device.hit, zero, {}), alone

    cached, now = find_hits(None, None)
    served, pools = solve(setting, now, memory)
    before = served
    for _ in range(passes):
        cached, now = find_hits(_damp_serving(before, served), pools)
        before = served
        served, pools = solve(setting, now, memory)
    return now, served, pools, cached


def _damp_serving(before: Serving, after: Serving) -> Serving:
    """The same rate and requests held half way, so that passes do not swing to and fro."""
    rate = np.sqrt(before.output_tokens_per_s * after.output_tokens_per_s)
    resident = np.sqrt(before.resident * after.resident)
    return replace(after, output_tokens_per_s=rate, resident=resident)
