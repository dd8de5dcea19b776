"""Which hardware, how many of it, at what cost, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base import budget, progress
from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.plans.rank import beats_elsewhere
from recipe_core.request.schema import PlanRequest, asks_for_any
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.market import Choice, choices
from recipe_core.sizing.sized import SizedDevice, most_per_hour, size_device

# Devices that are simulated where limits are on a percentile: the best by their means.
SIMULATED_DEVICES = 8


@dataclass(frozen=True)
class Sizing:
    """Every device of a request, sized.

    ``sized``: those with machines to choose from; ``barred``: the others, each with its reason.
    """

    request: SizeRequest
    sized: tuple[SizedDevice, ...]
    barred: tuple[Choice, ...]

    @property
    def corrections(self) -> Corrections | None:
        """What runs of one's own taught its estimates; None without any."""
        return self.sized[0].plan.problem.corrections if self.sized else None

    @cached_property
    def devices(self) -> list[SizedDevice]:
        """Priced devices on which something holds, best first."""
        found = [one for one in self.sized if one.priced and one.best is not None]
        return sorted(found, key=lambda one: (one.score, one.rented[one.best], one.profile.name))

    @cached_property
    def unpriced(self) -> list[SizedDevice]:
        """Devices without a price on which something holds, the most likely to win first."""
        found = [one for one in self.sized if not one.priced and one.best is not None]
        return sorted(found, key=lambda one: -(self.price_to_win(one) or 0.0))

    @property
    def refused(self) -> list[SizedDevice]:
        """Devices on which nothing holds, the likeliest first."""
        found = [one for one in self.sized if one.best is None]

        def chance(one: SizedDevice) -> float:
            near = one.nearest
            return -1.0 if near is None else float(np.nan_to_num(one.confidence[near]))

        return sorted(found, key=lambda one: (-chance(one), one.profile.name))

    @property
    def best(self) -> SizedDevice | None:
        """The best priced device; None where nothing holds on any."""
        return self.devices[0] if self.devices else None

    def merged(self, more: Sizing) -> Sizing:
        return Sizing(self.request, (*self.sized, *more.sized), (*self.barred, *more.barred))

    # what would make a device win

    def price_to_win(self, one: SizedDevice) -> float | None:
        """The price of a device-hour below which a device is the best, in US dollars.

        Of the best itself: up to which it stays so. At most what limits on money allow. None where
        neither these nor, with cost as the only goal, another device say one.
        """
        rows, goals = one.order, self.request.objective.goals
        others = [other for other in self.devices if other is not one]
        limits, most = self.request.objective.limits, most_per_hour(self.request)
        rate = one.plan.spec.unpriced[one.plan.spec.goals["cost"][0]]
        per_s = one.plan.columns[rate][rows] * one.plan.columns["gpus"][rows] / one.rented[rows]
        prices = []  # of a million tokens, as of a device-hour
        if set(goals) == {"cost"} and others:
            prices.append(others[0].score / 1e6 * per_s * 3600.0)
        if limits.usd_per_million_output_tokens is not None:
            prices.append(limits.usd_per_million_output_tokens / 1e6 * per_s * 3600.0)
        if most is not None:
            prices.append(most / one.rented[rows])
        if not prices or not len(rows):
            return None
        return float(np.max(np.min(prices, axis=0)))

    def beats_best(self, one: SizedDevice) -> float | None:
        """The probability that a device is better than the best, if both were measured.

        None for the best itself, and without a price.
        """
        best = self.best
        if best is None or one is best or best.best is None or one.best is None:
            return None
        dearer = self._weighed(one.dearer[one.best] / best.dearer[best.best])
        return beats_elsewhere(one.plan, one.best, best.plan, best.best, dearer=dearer)

    def _weighed(self, dearer: float) -> float:
        """What a price so many times higher makes of the score that devices rank by."""
        goals = self.request.objective.goals
        return float(dearer ** sum(goals.get(goal, 0.0) for goal in ("cost", "gpus")))

    @property
    def choice(self) -> PlanRequest:
        """The plan's request for the best device, its split the candidate.

        Raises:
            NoAnswer: where nothing holds.
        """
        if self.best is None and self.unpriced:
            names = ", ".join(one.profile.title for one in self.unpriced[:3])
            raise NoAnswer(
                f"no hardware with a known price keeps the limits; without one: {names}.",
                field="hardware",
                hint="Name one of these as the device, with its usd_per_device_hour.",
            )
        if self.best is None or self.best.best is None:
            reasons = [f"{one.profile.title}: {one.reason()}" for one in self.refused[:3]]
            raise NoAnswer(
                "no hardware keeps the limits. " + " ".join(f"{reason}." for reason in reasons),
                field="hardware",
                hint="Loosen a limit, allow more devices, or name other ones.",
            )
        return hardware_of(self.best, self.best.best)


def hardware_of(one: SizedDevice, row: int) -> PlanRequest:
    """The plan's request for a row: as many nodes as it takes, its split the candidate."""
    asked = one.plan.request_of(row)
    hardware, devices = asked.hardware, int(one.plan.columns["gpus"][row])
    per_node = hardware.per_node
    if devices <= per_node and one.machine(row).elastic:
        hardware = hardware.model_copy(update={"per_node": devices, "nodes": 1})
    else:
        nodes = max(-(-int(one.working[row]) // per_node), -(-devices // per_node))
        hardware = hardware.model_copy(update={"nodes": nodes})
    return asked.model_copy(update={"hardware": hardware})


def settled(
    value: Any, *, folders: bool = True, corrections: Corrections | None = None
) -> PlanRequest:
    """The plan's request in plain values, its hardware chosen by sizing where it is open.

    Raises:
        InputError: naming the first wrong field.
        NoAnswer: where no hardware keeps the limits.
    """
    if not asks_for_any(value):
        return PlanRequest.parse(value)
    return size(SizeRequest.parse(value), folders=folders, corrections=corrections).choice


def size(
    request: SizeRequest,
    *,
    folders: bool = True,
    corrections: Corrections | None = None,
    among: Sequence[Choice] | None = None,
) -> Sizing:
    """Every device of a request, sized: every engine, format, count and split.

    Args:
        request: what is asked.
        folders: whether the model may be named by a path on this machine.
        corrections: what runs of one's own teach.
        among: some of its ``choices`` only, for an answer in parts.

    Raises:
        InputError: for names that are not known.
    """
    wanted = list(choices(request) if among is None else among)
    means = by_means(request)
    sized = []
    with progress.task(len(wanted)):
        for choice in (choice for choice in wanted if choice.machines):
            budget.spend()
            sized.append(size_device(means, choice, folders=folders, corrections=corrections))
            progress.step()
    barred = tuple(choice for choice in wanted if not choice.machines)
    found = Sizing(request, tuple(sized), barred)
    return found if means is request else simulated(found)


def by_means(request: SizeRequest) -> SizeRequest:
    """The request with its limits on means, above which percentiles lie but for some medians."""
    objective = request.objective
    if objective.limits.percentile is None:
        return request
    limits = objective.limits.model_copy(update={"percentile": None})
    return request.model_copy(update={"objective": objective.model_copy(update={"limits": limits})})


def simulated(found: Sizing) -> Sizing:
    """With the rungs that are nearest to the limits simulated, of the best devices by their means.

    The others keep no row that holds: what their percentiles are is not known.
    """
    ranked = [*found.devices, *found.unpriced]
    chosen = ranked[:SIMULATED_DEVICES]
    simulated = {}
    with progress.task(len(chosen)):
        for one in chosen:
            simulated[id(one)] = one.simulated(found.request)
            progress.step()
    percentile = found.request.objective.limits.percentile or 0.0
    rest = {id(one): one.unsimulated(percentile) for one in ranked[SIMULATED_DEVICES:]}
    by = simulated | rest
    return replace(found, sized=tuple(by.get(id(one), one) for one in found.sized))
