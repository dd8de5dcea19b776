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

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.memory import KvWay, Tier
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.kv_offload import Offload
from recipe_core.estimates.serving.cache import Counted, context_bytes
from recipe_core.estimates.serving.continuous_batching import prompt_chunks
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.memory import Memory
from recipe_core.estimates.serving.pools import Pools
from recipe_core.estimates.serving.rates import Serving, active_replicas
from recipe_core.estimates.serving.reuse import DeviceCache, device_cache, pool_of, running_requests
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
class _Blocks:
    """Bytes of a token: on a device, and of a server in stores."""

    device_bytes: Float
    server_bytes: Float
    stored_bytes: Float


def token_bytes(setting: Setting, cases: Cases) -> _Blocks:
    """Bytes of cache per token of a mean prompt (one per case).

    Ranks that hold copies of a KV head save each its own; of a latent, which all ranks hold whole,
    stores get one where the way to offload sees to it.
    """
    model = setting.model
    layers: Counted = (*model.kinds, (draft_layer(model), cases.draft_layers))
    rank_bytes = context_bytes(setting, layers, cases, cases.input_tokens) / cases.input_tokens
    latent = all(
        isinstance(layer.attention, LatentAttention)
        for layer, _ in model.kinds
        if layer.attention is not None
    )
    connector = setting.offload.connector if setting.offload else None
    copies = np.where(latent and connector is not None and connector.once, cases.tp, 1)
    return _Blocks(rank_bytes / cases.pp, rank_bytes * cases.tp, rank_bytes * cases.tp / copies)


def prompt_alone_s(setting: Setting, cases: Cases) -> Float:
    """Seconds that the steps of one prompt take alone, with its share found (one per case)."""
    tokens, chunks, context = prompt_chunks(cases, setting.engine.chunked_prefill)
    zero = np.zeros(len(cases))
    step = Step(tokens / chunks, context, zero, zero, 1 / chunks)
    return chunks * total(engine_step(setting, cases, step))


@dataclass(frozen=True, slots=True)
class _Path:
    """The path of blocks from a tier to a device: seconds per token of a server alone.

    ``drive_s``: of that what the store takes; ``busy_per_token_s``: what a token of one server
    takes of the store, whose nodes and rate others share; likewise to save one.
    """

    load_s: Float
    latency_s: float
    store_load_s: Float
    store_save_s: Float


def _tier_paths(
    offload: Offload, cases: Cases, blocks: _Blocks, link_s: Float
) -> dict[Tier, _Path]:
    """Ways from every tier, over a link that takes ``link_s`` a token, with rates of stores."""
    zero = np.zeros(len(cases))
    out: dict[Tier, _Path] = {"host": _Path(link_s, 0.0, zero, zero)}
    devices = (cases.tp * cases.pp).astype(float)
    nodes = np.ceil(devices / cases.per_node)
    beside = np.maximum(np.minimum(cases.devices, cases.per_node) / devices, 1.0)
    used = np.ceil(cases.devices / cases.per_node)
    for tier in offload.tiers[1:]:
        store = offload.store(tier)
        if store is None:
            continue
        storage = store.storage
        read = storage.read_rate(used) / used * nodes
        write = storage.write_rate(used) / used * nodes
        alone_s = np.maximum(link_s, blocks.stored_bytes / read)
        out[tier] = _Path(
            alone_s,
            storage.latency_s.value,
            blocks.stored_bytes / read * beside,
            blocks.stored_bytes / write * beside,
        )
    return out


def _tier_capacities(
    setting: Setting, offload: Offload, cases: Cases, blocks: _Blocks
) -> dict[Tier, Float]:
    """Tokens that each tier holds, as a server or as all servers see it (one per case)."""
    together = setting.reuse is not None and setting.reuse.affinity
    copies = cases.replicas if together else np.ones(len(cases))
    out: dict[Tier, Float] = {}
    for tier in offload.tiers:
        store = offload.store(tier)
        room = offload.server_bytes(cases) if store is None else store.capacity_bytes
        bytes_per_token = blocks.server_bytes if store is None else blocks.stored_bytes
        shared = 1.0 if tier == "remote" else copies
        out[tier] = shared * room / np.maximum(bytes_per_token, 1e-9)
    return out


@dataclass(frozen=True, slots=True)
class _Rate:
    """Requests per second of one server, and others that load beside each."""

    per_s: Float
    concurrent_loads: Float


def _request_rate(setting: Setting, cases: Cases, served: Serving | None) -> _Rate:
    if served is None:
        return _Rate(np.zeros(len(cases)), np.zeros(len(cases)))
    concurrent_loads = np.maximum(np.nan_to_num(served.resident) - 1, 0.0)
    if setting.mode == "open":
        return _Rate(cases.load / cases.replicas, concurrent_loads)
    requests_per_s = np.nan_to_num(served.output_tokens_per_s) / cases.output_tokens
    return _Rate(requests_per_s / active_replicas(cases), concurrent_loads)


def _wait_s(load_s: Float, busy: Float, concurrent_loads: Float) -> Float:
    """Seconds that a load waits for those before it: M/D/1, at most all others in flight."""
    within = np.minimum(busy, FULLEST)
    queue = load_s * within / (2 * (1 - within))
    return np.where(
        busy < FULLEST, np.minimum(queue, concurrent_loads * load_s), concurrent_loads * load_s
    )


class Tiers:
    """Tiers of the cases of a setting that offloads; ``cached`` has them at a rate."""

    def __init__(self, setting: Setting, offload: Offload, connector: KvWay, cases: Cases) -> None:
        self.setting, self.offload, self.connector, self.cases = setting, offload, connector, cases
        self.blocks = token_bytes(setting, cases)
        to_device, back = link_rates(setting.cluster.device)
        link_s = self.blocks.device_bytes / (to_device * connector.link_share)
        self.paths = _tier_paths(offload, cases, self.blocks, link_s)
        self.capacities = _tier_capacities(setting, offload, cases, self.blocks)
        self.save_s = self.blocks.device_bytes / (back * connector.link_share)

    def added(self, device: DeviceCache) -> dict[Tier, Float]:
        """Share of prompt tokens that each tier finds beyond those above it."""
        curve, zero = self.setting.reuse, np.zeros(len(self.cases))
        out, seen_tokens, above = {}, device.seen_tokens, device.hit
        for tier in self.offload.tiers:
            if curve is None:
                out[tier] = zero
                continue
            seen_tokens = np.maximum(seen_tokens, self.capacities[tier])
            hit = np.maximum(curve.hit_at(seen_tokens), above)
            out[tier], above = hit - above, hit
        return out

    def saved_tokens(self, hit: Float) -> Float:
        """Tokens of a request that are new, and saved."""
        answers = self.cases.output_tokens if self.connector.saves == "all" else 0.0
        return (1 - hit) * self.cases.input_tokens + answers

    def latency_s(self, tier: Tier, tokens: Float) -> Float:
        """Return seconds until the first bytes of blocks: as many rounds as reads need."""
        pieces = tokens / self.connector.block_tokens
        rounds = np.maximum(pieces / self.connector.reads_at_once, np.minimum(pieces, 1.0))
        return self.paths[tier].latency_s * rounds

    def use(self, device: DeviceCache, rate: _Rate) -> tuple[dict[Tier, TierUse], Float]:
        """Each tier at a rate, and the share of all prompt tokens that are found."""
        hit, out = device.hit, {}
        for tier, added in self.added(device).items():
            path = self.paths[tier]
            written_share = self._kept(hit, added, rate.per_s * path.store_save_s)
            hit_added = added * written_share
            tokens = hit_added * self.cases.input_tokens
            with_it = replace(self.cases, prefix_hit=hit + hit_added)
            without = replace(self.cases, prefix_hit=hit)
            hit = hit + hit_added
            recompute_s = self._recompute(with_it, without, tokens)
            use = self._one(tier, hit_added, written_share, rate)
            out[tier] = replace(use, recompute_s_per_token=recompute_s)
        return out, hit

    def _kept(self, hit: Float, added: Float, token_s: Float) -> Float:
        """The share of blocks that a store can write, which takes ``token_s`` a token and second.

        Of ``n = (1 - h - k·added)·i + o`` new tokens a request ``k`` are written: ``k·n·s = 1``
        where all would take longer than there is time.
        """
        all_new, fewer = self.saved_tokens(hit), added * self.cases.input_tokens
        room = 1 / np.maximum(token_s, 1e-300)
        root = np.sqrt(np.maximum(all_new**2 - 4 * fewer * room, 0.0))
        written_share = 2 * room / np.maximum(all_new + root, 1e-300)
        return np.where(all_new - fewer <= room, 1.0, np.minimum(written_share, 1.0))

    def _one(self, tier: Tier, hit_added: Float, written_share: Float, rate: _Rate) -> TierUse:
        path, tokens = self.paths[tier], hit_added * self.cases.input_tokens
        server_bytes = self.blocks.device_bytes * self.cases.tp * self.cases.pp
        servers = self.cases.replicas
        zero = np.zeros(len(self.cases))
        return TierUse(
            capacity_tokens=self.capacities[tier],
            hit_added=hit_added,
            load_s_per_token=path.load_s,
            recompute_s_per_token=zero,
            load_s=tokens * path.load_s + self.latency_s(tier, tokens),
            read_bytes_per_s=rate.per_s * servers * tokens * server_bytes,
            write_bytes_per_s=zero,
            busy=rate.per_s * tokens * (path.store_load_s if tier != "host" else path.load_s),
            written_share=written_share,
        )

    def _recompute(self, with_it: Cases, without: Cases, tokens: Float) -> Float:
        """Seconds that a token takes which is computed: those of a tier, else any of a prompt."""
        alone_s = prompt_alone_s(self.setting, without)
        saved_s = alone_s - prompt_alone_s(self.setting, with_it)
        computed = np.maximum(without.input_tokens * (1 - without.prefix_hit), 1.0)
        return np.where(tokens > 0, saved_s / np.maximum(tokens, 1e-9), alone_s / computed)

    def cached(self, device: DeviceCache, served: Serving | None) -> tuple[Cached, Cases]:
        """Return what is found at the rate that is served, and the cases with what that costs."""
        rate = _request_rate(self.setting, self.cases, served)
        uses, hit = self.use(device, rate)
        found_tokens = {tier: use.hit_added * self.cases.input_tokens for tier, use in uses.items()}
        # every tier's blocks cross the host link
        link_s = self.paths["host"].load_s * sum(found_tokens.values())
        new = self.saved_tokens(hit)
        saving_s = new * self.save_s
        beside = 2 / host_links().duplex.value - 1  # what copies the other way take of the rate
        busy = rate.per_s * (link_s + beside * saving_s)
        waits_s = _wait_s(link_s, busy, rate.concurrent_loads)
        for tier, use in uses.items():
            if tier != "host":
                store_s = found_tokens[tier] * self.paths[tier].store_load_s
                waits_s = waits_s + _wait_s(store_s, use.busy, rate.concurrent_loads)
        written = rate.per_s * self.cases.replicas * new
        tiers = {tier: self._written(tier, use, written) for tier, use in uses.items()}
        prefix_cache = Cached(device, hit, busy, tiers)
        saved_s = (
            self.connector.exposed * saving_s
            + new / self.connector.block_tokens * self.connector.block_s
        )
        return prefix_cache, self._costs(uses, hit, waits_s, saved_s)

    def _written(self, tier: Tier, use: TierUse, tokens_per_s: Float) -> TierUse:
        bytes_per_token = self.blocks.server_bytes if tier == "host" else self.blocks.stored_bytes
        return replace(use, write_bytes_per_s=tokens_per_s * use.written_share * bytes_per_token)

    def _costs(
        self, uses: dict[Tier, TierUse], hit: Float, waits_s: Float, exposed_s: Float
    ) -> Cases:
        connector = self.connector
        cases = replace(self.cases, prefix_hit=hit)
        loads_s = np.asarray(sum(use.load_s for use in uses.values()))
        if connector.loads == "blocking":  # in steps there is no queue on the link
            return replace(
                cases, kv_wait_s=connector.request_s + 0 * hit, kv_step_s=loads_s + exposed_s
            )
        if connector.loads == "layerwise":
            covered_s = np.minimum(uses["host"].load_s, prompt_alone_s(self.setting, cases))
            loads_s = loads_s - covered_s
        wait_s = connector.request_s + loads_s + waits_s
        return replace(cases, kv_wait_s=wait_s, kv_step_s=exposed_s)


def _without_tiers(cases: Cases, device: DeviceCache) -> tuple[Cached, Cases]:
    """Cases without tiers below the devices."""
    zero = np.zeros(len(cases))
    device_cases = replace(cases, prefix_hit=device.hit, kv_wait_s=zero, kv_step_s=zero)
    return Cached(device, device.hit, zero, {}), device_cases


def _found_on_devices(
    setting: Setting,
    cases: Cases,
    memory: Memory,
    served: Serving | None,
    pools: Pools | None,
) -> DeviceCache:
    """Return the hits in the devices' cache: of the pool that computes prompts, if any."""
    if setting.reuse is None:
        return DeviceCache(memory.kv_cache_tokens, memory.kv_cache_tokens, cases.prefix_hit)
    pool_cases = cases.prefill_pool if pools is not None else cases
    pool_memory = None if pools is None else pools.memory
    tokens = np.maximum(pool_of(cases, memory, pool_memory), 0.0)
    requests = running_requests(setting, pool_cases, tokens)
    if pool_memory is not None:
        requests = np.minimum(
            requests, pool_memory.kv_needed_bytes / np.maximum(pool_memory.sequence_bytes, 1.0)
        )
    elif served is not None and setting.mode == "open":
        resident = np.where(np.isfinite(served.resident), served.resident, np.inf)
        requests = np.minimum(requests, resident)
    return device_cache(setting.reuse, pool_cases, tokens, requests)


def solved_with_cache(
    setting: Setting, cases: Cases, memory: Memory, solve: Solve
) -> tuple[Cases, Serving, Pools | None, Cached]:
    """Cases with the share of prompts that they find, what that costs, and how they serve.

    What is found depends on the requests that run, which depend on what is found: in an open loop,
    between pools and with tiers it is balanced in a few passes.
    """
    tiers = _setting_tiers(setting, cases)

    def found(served: Serving | None, pools: Pools | None) -> tuple[Cached, Cases]:
        device = _found_on_devices(setting, cases, memory, served, pools)
        return _without_tiers(cases, device) if tiers is None else tiers.cached(device, served)

    cached, now = found(None, None)
    served, pools = solve(setting, now, memory)
    before = served
    for _ in range(_passes(setting, cases, tiers)):
        cached, now = found(_damp_serving(before, served), pools)
        before = served
        served, pools = solve(setting, now, memory)
    return now, served, pools, cached


def _setting_tiers(setting: Setting, cases: Cases) -> Tiers | None:
    offload = setting.offload
    if offload is None or offload.connector is None:
        return None
    return Tiers(setting, offload, offload.connector, cases)


def _passes(setting: Setting, cases: Cases, tiers: Tiers | None) -> int:
    """Times that what is found is computed again from how it serves."""
    if tiers is not None:
        return PASSES
    depends = setting.mode == "open" or bool(cases.disaggregated.any())
    return int(setting.reuse is not None and depends)


def _damp_serving(before: Serving, after: Serving) -> Serving:
    """The same rate and requests held half way, so that passes do not swing to and fro."""
    rate = np.sqrt(before.output_tokens_per_s * after.output_tokens_per_s)
    resident = np.sqrt(before.resident * after.resident)
    return replace(after, output_tokens_per_s=rate, resident=resident)
