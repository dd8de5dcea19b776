"""Which hardware, how many of it, at what cost, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.base import budget
from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.plans.rank import beats_elsewhere
from recipe_core.plans.splits import row_request
from recipe_core.request.schema import PlanRequest, asks_for_any
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.device_sizing import SizedDevice, hourly_price_limit, size_device
from recipe_core.sizing.market import Choice, iter_device_choices

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
        devices = [device for device in self.sized if device.priced and device.best is not None]
        return sorted(
            devices,
            key=lambda device: (device.score, device.rented[device.best], device.profile.name),
        )

    @cached_property
    def unpriced(self) -> list[SizedDevice]:
        """Devices without a price on which something holds, the most likely to win first."""
        devices = [device for device in self.sized if not device.priced and device.best is not None]
        return sorted(devices, key=lambda device: -(self.price_to_win(device) or 0.0))

    @property
    def refused(self) -> list[SizedDevice]:
        """Devices on which nothing holds, the likeliest first."""
        devices = [device for device in self.sized if device.best is None]

        def chance(device: SizedDevice) -> float:
            nearest = device.nearest
            return -1.0 if nearest is None else float(np.nan_to_num(device.confidence[nearest]))

        return sorted(devices, key=lambda device: (-chance(device), device.profile.name))

    @property
    def best(self) -> SizedDevice | None:
        """The best priced device; None where nothing holds on any."""
        return self.devices[0] if self.devices else None

    def merged(self, more: Sizing) -> Sizing:
        return Sizing(self.request, (*self.sized, *more.sized), (*self.barred, *more.barred))

    # what would make a device win

    def price_to_win(self, device: SizedDevice) -> float | None:
        """The price of a device-hour below which a device is the best, in US dollars.

        Of the best itself: up to which it stays so. At most what limits on money allow. None where
        neither these nor, with cost as the only goal, another device say one.
        """
        rows, goals = device.order, self.request.objective.goals
        rivals = [rival for rival in self.devices if rival is not device]
        limits, hourly_limit = self.request.objective.limits, hourly_price_limit(self.request)
        rate = device.plan.spec.unpriced[device.plan.spec.goals["cost"][0]]
        per_s = (
            device.plan.columns[rate][rows]
            * device.plan.columns["gpus"][rows]
            / device.rented[rows]
        )
        prices = []  # of a million tokens, as of a device-hour
        if set(goals) == {"cost"} and rivals:
            prices.append(rivals[0].score / 1e6 * per_s * 3600.0)
        if limits.usd_per_million_output_tokens is not None:
            prices.append(limits.usd_per_million_output_tokens / 1e6 * per_s * 3600.0)
        if hourly_limit is not None:
            prices.append(hourly_limit / device.rented[rows])
        if not prices or not len(rows):
            return None
        return float(np.max(np.min(prices, axis=0)))

    def beats_best(self, device: SizedDevice) -> float | None:
        """The probability that a device is better than the best, if both were measured.

        None for the best itself, and without a price.
        """
        best = self.best
        if best is None or device is best or best.best is None or device.best is None:
            return None
        dearer = self._weighed(device.dearer[device.best] / best.dearer[best.best])
        return beats_elsewhere(device.plan, device.best, best.plan, best.best, dearer=dearer)

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
            names = ", ".join(device.profile.title for device in self.unpriced[:3])
            raise NoAnswer(
                f"no hardware with a known price keeps the limits; without one: {names}.",
                field="hardware",
                hint="Name one of these as the device, with its usd_per_device_hour.",
            )
        if self.best is None or self.best.best is None:
            reasons = [f"{device.profile.title}: {device.reason()}" for device in self.refused[:3]]
            raise NoAnswer(
                "no hardware keeps the limits. " + " ".join(f"{reason}." for reason in reasons),
                field="hardware",
                hint="Loosen a limit, allow more devices, or name other ones.",
            )
        return row_plan_request(self.best, self.best.best)


def row_plan_request(device: SizedDevice, row: int) -> PlanRequest:
    """The plan's request for a row: as many nodes as it takes, its split the candidate."""
    split_request = row_request(device.plan, row)
    hardware, devices = split_request.hardware, int(device.plan.columns["gpus"][row])
    per_node = hardware.per_node
    if devices <= per_node and device.machine(row).elastic:
        hardware = hardware.model_copy(update={"per_node": devices, "nodes": 1})
    else:
        nodes = max(-(-int(device.working[row]) // per_node), -(-devices // per_node))
        hardware = hardware.model_copy(update={"nodes": nodes})
    return split_request.model_copy(update={"hardware": hardware})


def settle_hardware(
    value: Any, *, folders: bool = True, corrections: Corrections | None = None
) -> PlanRequest:
    """The plan's request in plain values, its hardware chosen by sizing where it is open.

    Raises:
        InputError: naming the first wrong field.
        NoAnswer: where no hardware keeps the limits.
    """
    if not asks_for_any(value):
        return PlanRequest.parse(value)
    return size_devices(SizeRequest.parse(value), folders=folders, corrections=corrections).choice


def size_devices(
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
    device_choices = list(iter_device_choices(request) if among is None else among)
    means = request_by_means(request)
    sized = []
    with budget.track_task(len(device_choices)):
        for choice in (choice for choice in device_choices if choice.machines):
            budget.spend()
            sized.append(size_device(means, choice, folders=folders, corrections=corrections))
            budget.count_step()
    barred = tuple(choice for choice in device_choices if not choice.machines)
    sizing = Sizing(request, tuple(sized), barred)
    return sizing if means is request else simulate_best_devices(sizing)


def request_by_means(request: SizeRequest) -> SizeRequest:
    """The request with its limits on means, above which percentiles lie but for some medians."""
    objective = request.objective
    if objective.limits.percentile is None:
        return request
    limits = objective.limits.model_copy(update={"percentile": None})
    return request.model_copy(update={"objective": objective.model_copy(update={"limits": limits})})


def simulate_best_devices(sizing: Sizing) -> Sizing:
    """With the rungs that are nearest to the limits simulated, of the best devices by their means.

    The others keep no row that holds: what their percentiles are is not known.
    """
    ranked = [*sizing.devices, *sizing.unpriced]
    devices = ranked[:SIMULATED_DEVICES]
    simulated = {}
    with budget.track_task(len(devices)):
        for device in devices:
            simulated[id(device)] = device.simulated(sizing.request)
            budget.count_step()
    percentile = sizing.request.objective.limits.percentile or 0.0
    rest = {id(device): device.unsimulated(percentile) for device in ranked[SIMULATED_DEVICES:]}
    by = simulated | rest
    return replace(sizing, sized=tuple(by.get(id(device), device) for device in sizing.sized))
