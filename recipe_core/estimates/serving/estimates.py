"""One call: cases in, every quantity out, with reasons, bands and basis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import gib, share_text, significant
from recipe_core.estimates.bands import Stretch, normal_probability
from recipe_core.estimates.columns.recall import Recall
from recipe_core.estimates.columns.scales import Scales
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.refusal import Judged, Refusal
from recipe_core.estimates.rules.rules import serving_refusals
from recipe_core.estimates.serving.corrections import (
    Corrected,
    correct_pools,
    correct_serving,
    request_time_shares,
    time_factor,
)
from recipe_core.estimates.serving.cost import Cost, serving_cost
from recipe_core.estimates.serving.kv_tiers import Cached, solved_with_cache
from recipe_core.estimates.serving.load_error import (
    keeping_up_scores,
    load_stretches,
    rate_stretch,
    surely_overloaded,
)
from recipe_core.estimates.serving.memory import Memory, serving_memory
from recipe_core.estimates.serving.pooling import (
    pooled_serving,
    simulated_windows,
    windowed_serving,
)
from recipe_core.estimates.serving.pools import Pools, solve_disaggregated
from recipe_core.estimates.serving.rates import (
    Serving,
    active_replicas,
    resident_limit,
    solve_serving,
)
from recipe_core.estimates.serving.simulate import (
    NO_LIMITS,
    PERCENTILES,
    TYPICAL,
    Simulation,
    Spread,
    simulate_serving,
)
from recipe_core.estimates.serving.starts import (
    cannot_start,
    claim_probability,
    claim_text,
    is_serving_uncertain,
    memory_probability,
    serving_doubt_text,
    serving_start_probability,
)

if TYPE_CHECKING:
    from recipe_core.estimates.serving.results import ServingEstimate


@dataclass(frozen=True, slots=True)
class Estimates(Judged["ServingEstimate"]):
    """All quantities of all cases; ``row`` gives one as an object.

    ``start_probability``: that each starts; ``corrected``: how runs of one's own changed them;
    ``cached``: what prompts find, where that is not stated.
    """

    setting: Setting
    cases: Cases
    memory: Memory
    serving: Serving
    cost: Cost
    refusals: tuple[Refusal, ...]
    start_probability: Float
    simulation: Simulation | None = None
    pools: Pools | None = None
    corrected: Corrected | None = None
    cached: Cached | None = None

    def simulated(
        self,
        rows: Int,
        spread: Spread = TYPICAL,
        percentiles: Sequence[float] = PERCENTILES,
        limits: Mapping[str, float] = NO_LIMITS,
    ) -> Estimates:
        """With percentiles of the chosen cases, which should be feasible.

        Those of pools and of drafts, and of embeddings, are not simulated.
        """
        if not self.setting.model.generates:
            return self._windows_simulated(rows, tuple(percentiles))
        rows = rows[~(self.cases.disaggregated | (self.cases.draft_tokens > 0))[rows]]
        if not len(rows):
            return self
        cases, time_scales = self.cases.take(rows), None
        if self.corrected is not None:
            time_scales = self.corrected.take(rows)
            if self.setting.mode == "open":  # as slow as solved: see ``corrections``
                cases = replace(cases, load=cases.load / time_scales.rate)
        ran = simulate_serving(
            self.setting,
            cases,
            self.memory.take(rows),
            spread=spread,
            percentiles=percentiles,
            limits=limits,
            scales=time_scales,
        )
        return replace(self, simulation=ran.scatter(rows, len(self.cases)))

    def _windows_simulated(self, rows: Int, percentiles: tuple[float, ...]) -> Estimates:
        """Percentiles of servers that wait to fill a batch, under random arrivals."""
        if self.setting.engine.batcher is None or self.setting.mode != "open" or not len(rows):
            return self
        cases, memory = self.cases.take(rows), self.memory.take(rows)
        ran = simulated_windows(
            self.setting, cases, memory, self.serving.request_latency_s[rows], percentiles
        )
        return replace(self, simulation=ran.scatter(rows, len(self.cases)))

    def stretches(self) -> dict[str, Stretch]:
        """By figure how the intervals of cases differ from those of their setting; may be empty.

        By own runs, and by the queue of an open loop.
        """
        out: dict[str, Stretch] = {}
        if self.setting.mode == "open":
            out["output_tokens_per_s"] = rate_stretch(self.serving)
            if self.setting.model.generates:
                out |= load_stretches(self.serving, self.cases)
        if self.corrected is not None:
            unstretched = np.ones(len(self.cases))
            for name, share in self.corrected.width_shares.items():
                out[name] = out.get(name, Stretch(unstretched, unstretched, unstretched)).narrowed(
                    share
                )
        return out

    @property
    def keeps_up(self) -> Float:
        """The probability that replicas serve what arrives; 1 where nothing arrives by itself."""
        return normal_probability(self.keeping_up_scores())

    def keeping_up_scores(self) -> Float:
        """Normal scores of ``keeps_up``."""
        by_runs = self.corrected
        share = None if by_runs is None else by_runs.width_shares["output_tokens_per_s"]
        return keeping_up_scores(self.setting, self.serving.load_factor, share)

    @property
    def uncertain(self) -> Bool:
        """Cases of which estimates do not tell whether they start."""
        return self.feasible & is_serving_uncertain(self.start_probability)

    def doubt(self, i: int) -> str:
        """The sentence of the pool that is less likely to start."""
        rows, chance = np.array([i]), float(self.start_probability[i])
        of = self.cases.take(rows), self.memory.take(rows)
        if self.pools is None:
            return serving_doubt_text(self.setting, *of, chance)
        prefill = self.pools.prefill.take(rows), self.pools.memory.take(rows)
        if float(serving_start_probability(self.setting, *of)[0]) <= chance:
            return serving_doubt_text(self.setting, *of, chance)
        return f"prefill pool: {serving_doubt_text(self.setting, *prefill, chance)}"

    def rows(
        self, rows: Int, limits: Sequence[Sequence[str]], *, explained: bool = False
    ) -> list[ServingEstimate]:
        """The estimates of the chosen cases; see ``Judged``."""
        # a plan that is printed as text makes no rows, whose classes take time to import
        from recipe_core.estimates.serving.rows import estimate_rows

        return estimate_rows(self.take(rows), limits, estimate_serving, explained=explained)


def _serve_startable(
    setting: Setting,
    cases: Cases,
    mem: Memory,
    formulas: Callable[[Setting, Cases, Memory], Serving] = solve_serving,
) -> Serving:
    """Serving of the cases that may start; NaN for the others, which saves most of their time."""
    rows = np.flatnonzero(_may_start(setting, mem))
    if len(rows) == len(cases):
        return formulas(setting, cases, mem)
    count = len(rows)
    # the names of the parts come from some case
    solved = rows if count else np.zeros(1, dtype=np.int64)
    some = formulas(setting, cases.take(solved), mem.take(solved))
    return some.take(slice(count)).scatter(rows, len(cases))


# Memory at a number of requests at once: another load leaves most of it.
_MEMORY: Recall[Memory] = Recall(65_536, without="load", priced=False)


def estimate_serving(setting: Setting, cases: Cases) -> Estimates:
    """Memory, latency, throughput and cost of every case, and why some cannot run.

    Memory of infeasible cases is computed too (a chart draws what does not fit); serving figures of
    what does not fit are NaN. Either all cases have a prefill pool or none has.
    """
    sequences = np.ones(len(cases))
    if setting.mode in ("closed", "static"):
        sequences = np.maximum(
            np.minimum(cases.load / active_replicas(cases), cases.max_num_seqs), 1.0
        )
    mem = _MEMORY.value(
        lambda: serving_memory(setting, cases, sequences), setting, cases, sequences
    )
    cached = correction = None
    if setting.reuse is None and setting.offload is None:
        served, pools = _solve_load(setting, cases, mem)
    else:
        cases, served, pools, cached = solved_with_cache(setting, cases, mem, _solve_load)
    scales = setting.correction.scales(cases) if setting.correction else None
    if scales is not None:
        served, pools, correction = _apply_corrections(setting, cases, mem, (served, pools), scales)
    if (
        setting.mode in ("open", "offline") or pools is not None
    ):  # the load itself does not say how many are held at once
        mem = serving_memory(setting, cases, np.fmax(served.resident, 1.0))
    price = serving_cost(setting, cases, served, pools)
    rules = [
        *serving_refusals(setting, cases),
        *_fit_rules(setting, cases, mem, served),
        *_link_rules(setting, cached),
        *(_pool_rules(setting, pools) if pools else ()),
    ]
    starts = serving_start_probability(setting, cases, mem)
    if pools is not None:  # both pools have to start, and err together
        starts = np.minimum(starts, serving_start_probability(setting, pools.prefill, pools.memory))
    return Estimates(
        setting,
        cases,
        mem,
        served,
        price,
        tuple(rules),
        starts,
        pools=pools,
        corrected=correction,
        cached=cached,
    )


def _solve_load(setting: Setting, cases: Cases, mem: Memory) -> tuple[Serving, Pools | None]:
    if not setting.model.generates:
        formulas = pooled_serving if setting.engine.batcher is None else windowed_serving
        return _serve_startable(setting, cases, mem, formulas), None
    if cases.disaggregated.any():
        return solve_disaggregated(setting, cases, mem)
    return _serve_startable(setting, cases, mem), None


def _apply_corrections(
    setting: Setting,
    cases: Cases,
    mem: Memory,
    solved: tuple[Serving, Pools | None],
    scales: Scales,
) -> tuple[Serving, Pools | None, Corrected]:
    """The same with times scaled as own runs teach. An open loop is solved at a scaled rate."""
    (served, pools), stretch = solved, None
    if setting.mode == "open":
        shares = request_time_shares(
            served.prefill, served.ttft_s, served.tpot_s, cases.output_tokens
        )
        longer = time_factor(shares, scales)
        stretch = np.where(np.isfinite(longer), longer, 1.0)
        served, pools = _solve_load(setting, replace(cases, load=cases.load * stretch), mem)
    scaled, correction = correct_serving(cases, served, scales, stretch)
    return scaled, None if pools is None else correct_pools(pools, correction), correction


def _link_rules(setting: Setting, cached: Cached | None) -> Iterator[Refusal]:
    """Arrivals whose cached blocks a link or a store cannot bring back in time."""
    if cached is None or setting.mode != "open" or not cached.tiers:
        return
    busiest = np.max([cached.busy, *(use.busy for use in cached.tiers.values())], axis=0)
    yield Refusal(
        "kv-link",
        busiest >= 1,
        lambda i: (
            f"cached blocks of the requests that arrive take {share_text(busiest[i])} of the time "
            "of the link or the store they come from; send fewer requests, or leave that tier out"
        ),
    )


# Rules that both pools keep or break together.
_OF_BOTH = (
    "engine-kernels",
    "devices",
    "runtime",
    "weight-dtype",
    "kv-dtype",
    "context",
    "no-pools",
    "no-drafts",
)


def _pool_rules(setting: Setting, pools: Pools) -> Iterator[Refusal]:
    """Yield what the prefill pool can break by itself."""
    prefill_rules = [
        rule for rule in serving_refusals(setting, pools.prefill) if rule.code not in _OF_BOTH
    ]
    for rule in (*prefill_rules, _memory_rule(setting, pools.prefill, pools.memory)):
        yield replace(rule, say=lambda i, say=rule.say: f"prefill pool: {say(i)}")  # type: ignore[misc]


def _may_start(setting: Setting, mem: Memory) -> Bool:
    return ~cannot_start(memory_probability(setting, mem))


def _memory_rule(setting: Setting, cases: Cases, mem: Memory) -> Refusal:
    share = cases.memory_fraction

    def too_big(i: int) -> str:
        if mem.captures_lack_memory[i]:
            return _no_capture(cases, mem, i)
        usable, capacity = gib(mem.usable_bytes[i]), gib(mem.capacity_bytes[i])
        request = f"one request of {cases.accepted_tokens[i]:,.0f} tokens"
        limit = mem.max_context[i]
        longest = f"; the longest request that fits has {limit:,.0f} tokens" if limit >= 1 else ""
        if cases.input_tokens[i] + cases.output_tokens[i] <= limit:
            longest += ": lower max_context"
        return (
            f"needs {gib(mem.start_bytes[i])} per GPU to start with {request}, "
            f"{usable} usable ({share_text(share[i])} of {capacity}): "
            f"{gib(mem.shortfall_bytes[i])} short, "
            f"weights alone are {gib(mem.weights_bytes[i])}{longest}"
        )

    return Refusal("memory", ~_may_start(setting, mem), too_big)


def rate_text(load: float, output_tokens_per_s: float, output_tokens: float) -> str:
    """Say that more requests arrive than are served."""
    return (
        f"{significant(float(load))} requests a second arrive; this layout serves "
        f"{significant(float(output_tokens_per_s / output_tokens))}"
    )


def _holds_no_request(setting: Setting, cases: Cases, mem: Memory) -> Bool:
    """Mark where a cache whose size an option states is too small for the longest request."""
    effects = setting.effects
    has_stated_size = any((effects.cache_bytes, effects.cache_blocks, effects.cache_tokens))
    if not has_stated_size or not setting.engine.memory.needs_longest:
        return np.zeros(len(cases), dtype=np.bool_)
    return np.asarray(mem.kv_cache_tokens + 0.5 < cases.accepted_tokens)


def _no_capture(cases: Cases, mem: Memory, i: int) -> str:
    """That graphs lack memory, although the cache of the longest request would fit."""
    short = gib(mem.capture_shortfall[i])
    return (
        f"CUDA graphs need a block of cache for each of up to {cases.max_num_seqs[i]:,.0f} "
        f"requests: {short} short on {gib(mem.capacity_bytes[i])} with {gib(mem.weights_bytes[i])} "
        "of weights; allow fewer requests, or run without graphs"
    )


def _fit_rules(setting: Setting, cases: Cases, mem: Memory, served: Serving) -> list[Refusal]:
    batch = served.resident
    may_start = _may_start(setting, mem)
    free = claim_probability(setting, cases.memory_fraction)
    return [
        _memory_rule(setting, cases, mem),
        Refusal(
            "claim",
            cannot_start(free),
            lambda i: claim_text(setting, float(cases.memory_fraction[i])),
        ),
        Refusal(
            "stated-cache",
            _holds_no_request(setting, cases, mem),
            lambda i: (
                f"a cache of {mem.kv_cache_tokens[i]:,.0f} tokens, as the options state it, does "
                f"not hold one request of {cases.accepted_tokens[i]:,.0f}; state a larger one, or "
                "lower max_context"
            ),
        ),
        Refusal(
            "batch",
            may_start
            & (setting.mode == "static")
            & (batch > np.maximum(resident_limit(setting, cases, mem), 1)),
            lambda i: (
                f"a batch of {batch[i]:,.0f} sequences per replica needs more than the "
                f"{gib(mem.kv_cache_bytes[i])} left for the cache"
            ),
        ),
        Refusal(
            "rate",
            may_start & surely_overloaded(setting, served.load_factor),
            lambda i: rate_text(
                cases.load[i], served.output_tokens_per_s[i], cases.output_tokens[i]
            ),
        ),
    ]
