"""Pairs of pools that are worth estimating: the front of each pool by itself, their rates matched.

Pools on the front of their curves (``pool_curves``) are paired, and for every pair the curves say
at once, without estimating it, where both serve at one rate, with which times, and by that how good
it is. The best of all and of every number of devices are estimated; and those that would be the
best under tighter limits, as a confidence that is asked for tightens them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.rules import place_rules, serving_devices_rented
from recipe_core.estimates.serving.cost import idle_watts
from recipe_core.estimates.serving.kernels import total
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.pools import pool_request_s
from recipe_core.estimates.serving.speculative import tokens_per_step
from recipe_core.estimates.serving.starts import (
    cannot_start,
    is_serving_uncertain,
    serving_start_probability,
)
from recipe_core.plans.limits import LIMITS, limit_excess
from recipe_core.plans.pool_curves import (
    Curves,
    Pools,
    counts_energy,
    curves_of,
    decode_front,
    pools_of,
    prefill_front,
    stated_load,
)
from recipe_core.plans.problem import ServingProblem
from recipe_core.plans.rank import pareto_front
from recipe_core.request.metrics import goals_of

# Sequences of a replica at which a search of loads begins: it decodes one, a part of the time.
FEWEST = 0.02
# Pairs that are estimated of each share of the limits, beside the best of each number of devices.
BEST = 24
# Shares of the limits within which pairs are looked for.
SHARES = (1.0, 0.8, 0.6)
# Pairs that are matched together, so that memory stays flat however many there are.
AT_ONCE = 16_384
# Loads of a pair that are looked at in a round, each round between the neighbours of the best.
POINTS, ROUNDS = 6, 3
# Bisections of the sequences that a load fills.
STEPS = 12


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The misses and scores of pairs at the best of their loads, by ``SHARES`` and pair.

    By pair, ``after``: what ranks before the score; ``tpot_s`` and ``per_device`` (tokens per
    second): at the best load within the limits as stated.
    """

    missed: Float
    score: Float
    after: Int
    tpot_s: Float
    per_device: Float

    def better(self, rival: _Ranked) -> _Ranked:
        """The better of both, pair by pair."""
        fewer, alike = rival.missed < self.missed, rival.missed == self.missed
        swap = fewer | (alike & (rival.score < self.score))
        return _Ranked(
            np.where(swap, rival.missed, self.missed),
            np.where(swap, rival.score, self.score),
            self.after,
            np.where(swap[0], rival.tpot_s, self.tpot_s),
            np.where(swap[0], rival.per_device, self.per_device),
        )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A decode pool and a prefill pool each, as rows of both sides."""

    problem: ServingProblem
    shared: Setting
    curves: Curves
    decode: Pools
    prefill: Pools
    cases: Cases

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def stated(self) -> float | None:
        """The load; None where it is searched."""
        return stated_load(self.problem)

    def _at(self, decoding: Float) -> tuple[Float, Float, Float, Float]:
        """Requests per second, seconds to a first token, those of a step, requests inside."""
        shared, cases, curves = self.shared, self.cases, self.curves
        receivers, senders = self.decode.replicas[:, None], self.prefill.replicas[:, None]
        ahead = np.full(senders.shape, np.inf)
        if (load := self.stated) is not None and shared.mode != "open":
            receivers, senders = np.minimum(receivers, load), np.minimum(senders, load)
            ahead = load / senders
        step_s = curves.step_at(self.decode.units[:, None], decoding)
        yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
        steps = (1 + (cases.output_tokens - 1) / yields)[:, None]
        rate = receivers * decoding / (steps * step_s)
        prompts = curves.prompts_of(self.prefill.units[:, None])
        wait_s = prompts.wait_s(rate / senders * (1 - 1 / np.maximum(ahead, 1.0)))
        prompt_s = total(prompts.parts(prompts.together(rate / senders)))
        bunched = shared.engine.overhead(shared.cluster.device.runtime).bunched
        if shared.mode == "closed" and bunched and load is not None:
            at_once = load / self.prefill.replicas[:, None]
            bunch_s = np.maximum(prompts.bunch_s(at_once) - prompt_s, 0.0)
            wait_s = (1 - bunched) * wait_s + bunched * bunch_s
        wait_s = np.where(rate / senders * prompts.prompt_s < 1, wait_s, np.inf)
        sent_s = self._sent_s[:, None]
        link = rate / np.minimum(senders, receivers) * sent_s
        sent_s = np.where(link < 1, sent_s * (1 + link / (2 * np.maximum(1 - link, 1e-12))), np.inf)
        handoff = shared.engine.handoff_s
        before_s = pool_request_s(shared, cases)[:, None] + wait_s + prompt_s + sent_s
        before_s = before_s + step_s / 2 + (handoff.value if handoff else 0.0)
        return rate, before_s + step_s, step_s, rate * before_s + receivers * decoding

    @property
    def _sent_s(self) -> Float:
        """Seconds to send a cache: by the narrower of both pools."""
        cluster = self.shared.cluster
        reach = (cluster.fabric.domain or 1) if cluster.rack_scale else cluster.per_node
        inside, across = (
            np.maximum(seconds[self.decode.units], seconds[self.prefill.units])
            for seconds in self.curves.sent
        )
        return np.where(self.cases.devices > reach, across, inside)

    @property
    def _held(self) -> Float:
        return self.curves.cached_requests[self.decode.units] * self.decode.copies

    @property
    def _after(self) -> Int:
        """Return what ranks pairs before their score: those that queue, or may not start."""
        starts = np.minimum(
            self.curves.decodes[self.decode.units], self.curves.prefills[self.prefill.units]
        )
        queues = np.zeros(len(self), dtype=np.bool_)
        if self.stated is not None and self.shared.mode == "closed":
            queues = self._held < self.stated
        return np.where(is_serving_uncertain(starts), 2, queues.astype(np.int64))

    def ranked(self) -> _Ranked:
        """Every pair at its load, or at the best of several where the load is searched."""
        limit = self.curves.limit[self.decode.units][:, None]
        if self.stated is not None:
            return self._judged(self._filled(limit))[0]
        low, high, rounds = np.full(limit.shape, FEWEST), limit, []
        for _ in range(ROUNDS):
            decoding = low * (high / low) ** np.linspace(0, 1, POINTS)
            round_best, place = self._judged(decoding)
            rounds.append(round_best)
            low, high = (
                np.take_along_axis(decoding, np.clip(place + step, 0, POINTS - 1), axis=1)
                for step in (-1, 1)
            )
        return reduce(_Ranked.better, rounds)

    def _judged(self, decoding: Float) -> tuple[_Ranked, Int]:
        """Every pair at the best of some sequences a replica, and the place of that."""
        columns, missed = self._figures(decoding, *self._at(decoding))
        score = self._score(columns)
        best = [_best_pair_loads(missed / share, score) for share in SHARES]
        rows, place = np.arange(len(self)), best[0][2]
        per_device = columns["output_tokens_per_s"] / columns["gpus"]
        ranked = _Ranked(
            np.stack([load_best[0] for load_best in best]),
            np.stack([load_best[1] for load_best in best]),
            self._after,
            columns["tpot_s"][rows, place],
            per_device[rows, place],
        )
        return ranked, place[:, None]

    def _filled(self, limit: Float) -> Float:
        """The sequences of a replica that the stated load fills, up to a limit."""
        load, is_open = self.stated or 1.0, self.shared.mode == "open"
        if not is_open:
            limit = np.minimum(limit, load / np.minimum(self.decode.replicas[:, None], load))
        low, high = np.full(limit.shape, 1e-6), limit
        for _ in range(STEPS):
            middle = np.sqrt(low * high)
            rate, _, _, inside = self._at(middle)
            fits = ((rate if is_open else inside) <= load) & np.isfinite(inside)
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return low

    def _figures(
        self, decoding: Float, rate: Float, first_s: Float, step_s: Float, inside: Float
    ) -> tuple[dict[str, Float], Float]:
        """The columns of a plan, and how many times a limit or what it holds each pair exceeds."""
        cases, load, mode = self.cases, self.stated, self.shared.mode
        missed = np.where(np.isfinite(first_s), 1.0, np.inf)
        if load is None:
            missed = np.maximum(missed, inside / self._held[:, None])
        elif mode == "open":
            missed = np.maximum(missed, np.where(rate < 0.98 * load, load / rate, 1.0))
        else:
            drained = 0.5 if mode == "offline" else 1.0
            first_s = first_s + drained * np.maximum(load - inside, 0.0) / rate
        yields = tokens_per_step(cases.draft_tokens, cases.acceptance)[:, None]
        tokens, devices = cases.output_tokens[:, None], cases.devices[:, None].astype(float)
        rented = serving_devices_rented(self.shared, cases)[:, None] * np.ones(rate.shape)
        price = self.shared.cluster.usd_per_device_hour or 1.0
        columns = {
            "ttft_s": first_s,
            "tpot_s": step_s / yields,
            "request_latency_s": first_s + (tokens - 1) * step_s / yields,
            "output_tokens_per_s": rate * tokens,
            "gpus": devices * np.ones(rate.shape),
            "usd_per_hour": rented * price,
            "usd_per_million_output_tokens": rented * price / 3600 / (rate * tokens) * 1e6,
        }
        if counts_energy(self.problem):
            columns["watts"] = watts = self._watts(decoding, rate)
            columns["joules_per_token"] = watts / (rate * tokens)
        if mode == "offline" and load is not None:
            columns["wall_s"] = load / rate
            columns["usd"] = columns["usd_per_hour"] * columns["wall_s"] / 3600
        limits = self.problem.request.objective.limits
        worst_excess = np.zeros(rate.shape)
        for rule in LIMITS.values():
            if rule.bound(limits) is None or rule.column not in columns:
                continue
            if rule.priced and self.shared.cluster.usd_per_device_hour is None:
                continue
            # what is counted is no estimate, and no confidence tightens its limit
            excess = limit_excess(rule, columns[rule.column], limits)
            certain = rule.column in ("gpus", "usd_per_hour")
            worst_excess = np.maximum(
                worst_excess, np.where(excess > 1, np.inf, 0.0) if certain else excess
            )
        return columns, np.where(missed > 1, missed * np.maximum(worst_excess, 1), worst_excess)

    def _watts(self, decoding: Float, rate: Float) -> Float:
        """Power of both pools: as ``cost`` has it, from the seconds that each works."""
        cases, curves, device = self.cases, self.curves, self.shared.cluster.device
        yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
        steps = ((cases.output_tokens - 1) / yields)[:, None]
        receivers, senders = self.decode.replicas[:, None], self.prefill.replicas[:, None]
        work_s = curves.step_at(self.decode.units[:, None], decoding, work=True)
        decode = rate / receivers * steps / np.maximum(decoding, 1.0) * work_s
        prefill = rate / senders * curves.prompt_work_s[self.prefill.units][:, None]
        busy = self.decode.devices[:, None] * np.minimum(decode, 1.0)
        busy = busy + self.prefill.devices[:, None] * np.minimum(prefill, 1.0)
        idle = idle_watts(device)
        return cases.devices[:, None] * idle + busy * (device.tdp_watts.value - idle)

    def _score(self, columns: dict[str, Float]) -> Float:
        """Return what pairs rank by, less is better."""
        out = np.zeros(columns["gpus"].shape)
        for goal, weight in self.problem.request.objective.goals.items():
            column, sign = goals_of(self.shared.mode)[goal]
            if column in columns:
                out = out + weight * sign * np.log(np.maximum(columns[column], 1e-30))
        return out


def pool_pairs(problem: ServingProblem, shared: Setting, splits: Cases) -> Cases:
    """Deployments with a prefill pool beside the decoding one that are worth estimating.

    ``splits``: legal ones, of which copies make a pool.
    """
    ones = np.ones(len(splits))
    starting = ~cannot_start(
        serving_start_probability(shared, splits, serving_memory(shared, splits, ones))
    )
    splits = splits.take(np.flatnonzero(starting))
    if not len(splits):
        return splits
    curves, max_devices = curves_of(shared, splits), shared.cluster.devices
    units = np.arange(len(splits))
    single = Pools(units, np.ones_like(units), splits.dp.astype(float), splits.devices)
    decode = decode_front(problem, shared, curves, single)
    decode = decode_front(problem, shared, curves, pools_of(splits, decode.units, max_devices))
    prefill = prefill_front(problem, shared, curves, single)
    prefill = prefill_front(problem, shared, curves, pools_of(splits, prefill.units, max_devices))
    parts, rankings = [], []
    for pairs in _pair_pools(problem, shared, curves, decode, prefill):
        budget.spend()
        parts.append(pairs.cases)
        rankings.append(pairs.ranked())
    return _choose_pairs(parts, rankings) if parts else splits.take(np.zeros(0, dtype=np.int64))


def _pair_pools(
    problem: ServingProblem, shared: Setting, curves: Curves, decode: Pools, prefill: Pools
) -> Iterator[_Pairs]:
    """Every pair of pools that the devices hold, some at a time."""
    pool = {
        f"prefill_{name}": getattr(curves.cases, name)[prefill.units]
        for name in ("tp", "pp", "dp", "ep")
    }
    some = max(AT_ONCE // max(len(prefill.units), 1), 1)
    for start in range(0, len(decode.units), some):
        part = decode.take(np.arange(start, min(start + some, len(decode.units))))
        fits = part.devices[:, None] + prefill.devices <= shared.cluster.devices
        decode_rows, prefill_rows = np.nonzero(fits)
        cases = replace(
            curves.cases.take(part.units[decode_rows]),
            copies=part.copies[decode_rows],
            prefill_copies=prefill.copies[prefill_rows],
            **{name: column[prefill_rows] for name, column in pool.items()},
        )
        placed = np.ones(len(cases), dtype=np.bool_)
        for rule in place_rules(shared, cases):
            placed &= ~rule.broken
        rows = np.flatnonzero(placed)
        if len(rows):
            decode_rows, prefill_rows = decode_rows[rows], prefill_rows[rows]
            sides = part.take(decode_rows), prefill.take(prefill_rows)
            yield _Pairs(problem, shared, curves, *sides, cases.take(rows))


def _best_pair_loads(missed: Float, score: Float) -> tuple[Float, Float, Int]:
    """Of the loads of each pair the best: how much it misses (0: nothing), its score, its place."""
    holds = missed <= 1
    place = np.where(
        holds.any(axis=1), np.where(holds, score, np.inf).argmin(axis=1), missed.argmin(axis=1)
    )
    rows = np.arange(len(place))
    return np.where(holds[rows, place], 0.0, missed[rows, place]), score[rows, place], place


def _choose_pairs(parts: list[Cases], rankings: list[_Ranked]) -> Cases:
    """The pairs to estimate: the best of all, and of each number of devices."""
    cases = stack_columns(parts)
    missed, score = (
        np.concatenate([getattr(ranking, name) for ranking in rankings], axis=1)
        for name in ("missed", "score")
    )
    after = np.concatenate([ranking.after for ranking in rankings])
    front: Bool = pareto_front(
        np.concatenate([ranking.tpot_s for ranking in rankings]),
        -np.concatenate([ranking.per_device for ranking in rankings]),
        among=(missed[0] == 0) & (after == 0),
    )
    row_sets = [np.flatnonzero(front)]
    for k in range(len(SHARES)):
        order = np.lexsort((score[k], after, missed[k]))
        order = order[np.isfinite(missed[k][order])]
        _, firsts = np.unique(cases.devices[order], return_index=True)
        row_sets += [order[:BEST], order[firsts]]
    return cases.take(np.unique(np.concatenate(row_sets)))
