"""A sizing as plain values, whole or in parts: the rows that all doors and pages show.

A process keeps the parts of the latest request: with the next part, or with another question about
growth or purchases, nothing is sized twice.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np

from recipe_core.estimates.measured.support import is_timed
from recipe_core.hardware import offers
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import HOURS_PER_MONTH, price_month
from recipe_core.plans.limits import LIMITS, stated_limits
from recipe_core.plans.plan_json import queue_text
from recipe_core.request.size import SizeRequest
from recipe_core.request.split_key import split_name
from recipe_core.sizing.decision import decide_hardware
from recipe_core.sizing.device_sizing import SizedDevice
from recipe_core.sizing.evaluated import paused_collection
from recipe_core.sizing.growth import Choices, ladder_steps
from recipe_core.sizing.lifetime import availability_of, grow_choices, purchase_of
from recipe_core.sizing.market import Choice, iter_device_choices, left_out_devices
from recipe_core.sizing.sensitivity import winning_limits, winning_loads
from recipe_core.sizing.size import (
    LargestLoad,
    Sizing,
    largest_load,
    request_by_means,
    row_plan_request,
    simulate_best_devices,
    size_devices,
    span_machines,
)

SCHEMA_VERSION = 1
Json = dict[str, Any]


class Answer:
    """The answer of a sizing, each part worked out when it is asked for.

    Args:
        sizing: every device, sized.
        today: the day against which the age of prices is counted; by default the current one.
    """

    def __init__(self, sizing: Sizing, today: datetime.date | None = None) -> None:
        self.sizing, self.today = sizing, today
        self._offers: dict[int, Json | None] = {}

    @cached_property
    def _names(self) -> dict[int, str]:
        """By identity a name of each device that no other has: a device may also be owned."""
        out: dict[int, str] = {}
        for device in self.sizing.sized:
            owned = any(machine.owned for machine in device.choice.machines)
            name = plain = f"{device.profile.name} (owned)" if owned else device.profile.name
            number = 1
            while name in out.values():
                number += 1
                name = f"{plain} {number}"
            out[id(device)] = name
        return out

    def _key(self, device: SizedDevice) -> str:
        return self._names[id(device)]

    # rows

    def rows(self, device: SizedDevice, rows: Sequence[int]) -> list[Json]:
        """Numbers of devices: what is used, rented and idle, their cost, and how sure they are."""
        splits = device.plan.candidates(rows)
        return [self._row(device, row, split) for row, split in zip(rows, splits, strict=True)]

    def _row(self, device: SizedDevice, row: int, split: Json) -> Json:
        plan = device.plan
        place, machine = plan.setting(row).cluster, device.machine(row)
        used, rented = int(plan.columns["gpus"][row]), int(device.rented[row])
        spare = device.spares(row)
        chance = float(device.confidence[row])
        return {
            "device": device.profile.name,
            "title": device.profile.title,
            "vendor": device.profile.vendor,
            "count": used,
            "units": rented // place.unit,
            "unit_devices": place.unit,
            "devices_rented": rented,
            "spares": spare,
            "idle": rented - used - (spare * device.replicas_of(row)[1] if spare else 0),
            "per_node": machine.hardware.per_node,
            "owned": machine.owned,
            "spans": bool(int(device.server[row]) > place.machine_devices),
            "doubted": device.choice.doubted,
            "split": split,
            "label": split_name(split),
            "engine": split["engine"],
            **self._money(device, row),
            **self._power(device, row),
            "confidence": chance if device.bounded else None,
            "holds": bool(device.holds[row]),
            "queue": queue_text(plan, row) or None,
            "offer": self._offer(place.offer),
            "headroom": headroom(device, row),
        }

    def _offer(self, offer: Offer | None) -> Json | None:
        if id(offer) not in self._offers:
            self._offers[id(offer)] = offer_json(offer, self.today)
        offer_values = self._offers[id(offer)]
        return None if offer_values is None else dict(offer_values)

    def _money(self, device: SizedDevice, row: int) -> Json:
        """An hour, a month of 730 of them, and a million tokens, in US dollars."""
        columns, dearer = device.plan.columns, float(device.dearer[row])
        per_hour = _finite_or_none(columns["usd_per_hour"][row] * dearer)
        out: Json = {
            "usd_per_hour": per_hour,
            "usd_per_month": None if per_hour is None else price_month(per_hour),
        }
        for name in ("usd_per_million_output_tokens", "usd_per_million_tokens", "usd"):
            if name in columns:
                out[name] = _finite_or_none(columns[name][row] * dearer)
        if "wall_s" in columns:
            out["wall_s"] = _finite_or_none(columns["wall_s"][row])
        if "usd_per_million_output_tokens" not in out:
            out["usd_per_million_output_tokens"] = None
        return out

    def _power(self, device: SizedDevice, row: int) -> Json:
        columns = device.plan.columns
        watts = float(columns["watts"][row])
        names = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
        training = ("step_s", "tokens_per_s")
        figures = {
            name: _finite_or_none(columns[name][row])
            for name in names + training
            if name in columns
        }
        return {
            "watts": watts,
            "joules_per_token": _finite_or_none(columns["joules_per_token"][row]),
            "kwh_per_month": watts * HOURS_PER_MONTH / 1e3,
            "figures": figures,
        }

    def ladder(self, device: SizedDevice) -> list[Json]:
        """Every number of rented devices, rising: the row of each, and the highest confidence.

        ``dominated``: another one that costs no more, or takes no more devices where prices are
        unknown, is as sure.
        """
        rungs = self.rows(device, device.ladder)
        surest = -1.0
        prices = [rung["usd_per_hour"] or rung["devices_rented"] for rung in rungs]
        order = sorted(
            range(len(rungs)), key=lambda k: (prices[k], -device.confidence[device.ladder[k]])
        )
        for k in order:
            chance = float(device.confidence[device.ladder[k]])
            rungs[k]["dominated"] = chance <= surest
            surest = max(surest, chance)
        for rung, row in zip(rungs, device.ladder, strict=True):
            highest = device.highest_confidence(row) if stated_limits(device.plan) else None
            rung["highest_confidence"] = highest
        return rungs

    # devices

    @cached_property
    def loads(self) -> dict[str, LargestLoad]:
        return {
            self._key(device): largest_load(device.plan, device.best)
            for device in (*self.sizing.devices, *self.sizing.unpriced)
            if device.best is not None and device.plan.kind == "serving"
        }

    @cached_property
    def _winning_limits(self) -> dict[str, dict[str, float]]:
        devices = self.sizing.devices
        return dict(zip(map(self._key, devices), winning_limits(devices), strict=True))

    @cached_property
    def _winning_loads(self) -> dict[str, float | None]:
        ladders = {}
        for device in self.sizing.devices:
            load = self.loads.get(self._key(device))
            if load is None or load.value is None or device.best is None:
                continue
            steps = ladder_steps(device, device.best, load.value)
            ladders[self._key(device)] = (
                np.array([step.capacity for step in steps]),
                np.array([step.usd_per_hour for step in steps]),
            )
        workload = self.sizing.request.workload
        if workload.kind == "training" or not ladders:
            return {}
        field = next(iter(self.loads.values())).field
        tiers = {self._key(device): device.tier for device in self.sizing.devices}
        return winning_loads(ladders, float(getattr(workload, field)), tiers)

    def device(self, device: SizedDevice, *, ladder: bool = True) -> Json:
        """The best row of a device with its ladder, and what would make it win."""
        assert device.best is not None  # noqa: S101 - only devices on which something holds
        key = self._key(device)
        load = self.loads.get(key)
        return {
            **self._taken(device, device.best),
            "largest_load": {**asdict(load), "limited_by": list(load.limited_by)} if load else None,
            "beats_best": self.sizing.beats_best(device),
            "usd_per_device_hour_to_win": self.sizing.price_to_win(device),
            "wins_at": self._wins_at(device),
            **({"ladder": self.ladder(device)} if ladder else {}),
            **self._afterwards(device, device.best, load),
        }

    def _taken(self, device: SizedDevice, row: int) -> Json:
        """A row with the hardware that a plan takes for it, and whether its device was timed."""
        return {
            **self.rows(device, [row])[0],
            "request": row_plan_request(device, row).to_json()["hardware"],
            "timed": is_timed(device.profile),
        }

    @property
    def decision(self) -> Json:
        """The cheapest, the safest and the smallest hardware, each as its row; None where none."""
        decisions = decide_hardware(self.sizing.devices)
        return {name: at and self._taken(*at) for name, at in decisions.items()}

    def _wins_at(self, device: SizedDevice) -> Json:
        """Return what would make a device win, each moved alone; of the best its price only."""
        can_win = device is not self.sizing.best
        return {
            "usd_per_device_hour": self.sizing.price_to_win(device),
            "limits": self._winning_limits.get(self._key(device), {}) if can_win else {},
            "load": self._winning_loads.get(self._key(device)) if can_win else None,
        }

    def _afterwards(self, device: SizedDevice, row: int, load: LargestLoad | None) -> Json:
        """Growth, availability and purchase, as far as the request asks for them."""
        request = self.sizing.request
        growths = self.growth.growths if self.growth else {}
        grown = growths.get(self._key(device))
        parts = {
            "growth": asdict(grown) if grown else None,
            "availability": availability_of(request, device, row),
            "purchase": purchase_of(request, device, row, load),
        }
        return {name: part for name, part in parts.items() if part is not None}

    @cached_property
    def growth(self) -> Choices | None:
        """Every device through the months; None where the request states no growth."""
        devices = {self._key(device): device for device in self.sizing.devices}
        loads = {key: (devices[key], load) for key, load in self.loads.items() if key in devices}
        return grow_choices(self.sizing.request, loads)

    def refusal(self, device: SizedDevice) -> Json:
        """A device on which nothing holds, with the reason, and the row that is nearest."""
        nearest = device.nearest
        return {
            "device": device.profile.name,
            "title": device.profile.title,
            "reasons": [device.reason()],
            "nearest": None if nearest is None else self.rows(device, [nearest])[0],
        }

    @property
    def price_warning(self) -> str | None:
        """Say what to know of the price that decides; None where there is little to doubt."""
        best = self.sizing.best
        if best is None or best.best is None or len(self.sizing.devices) < 2:
            return None
        offer = best.plan.setting(best.best).cluster.offer
        return offer.warning(self.today) if offer else None

    def to_json(self) -> Json:
        """The whole answer, as the contract writes it."""
        sizing = self.sizing
        devices = [self.device(device) for device in sizing.devices]
        barred = [
            {
                "device": choice.profile.name,
                "title": choice.profile.title,
                "reasons": [choice.why],
                "nearest": None,
            }
            for choice in sizing.barred
        ]
        corrections = sizing.corrections
        own_runs = {} if corrections is None else {"own_runs": corrections.to_json()}
        return {
            "schema_version": SCHEMA_VERSION,
            "best": devices[0] if devices else None,
            "price_warning": self.price_warning,
            "devices": devices,
            "unpriced": [self.device(device) for device in sizing.unpriced],
            "refused": [*map(self.refusal, sizing.refused), *barred],
            "left_out": [
                {
                    "device": profile.name,
                    "title": profile.title,
                    "segment": profile.segment,
                    "switch": switch,
                }
                for profile, switch in left_out_devices(sizing.request)
            ],
            "decision": self.decision,
            **({"growth": self.growth.to_json()} if self.growth else {}),
            **own_runs,
        }


def headroom(device: SizedDevice, row: int) -> Json:
    """By stated limit: the limit, what is estimated and its 80 % band, and the share left."""
    limits, out = device.plan.request.objective.limits, {}
    for code, figures in device.bounded.items():
        rule = LIMITS[code]
        bound = rule.bound(limits)
        assert bound is not None  # noqa: S101 - only what is bounded has figures
        value = float(figures[row]) * (device.dearer[row] if rule.priced else 1.0)
        low, high = (value * factor for factor in device.band_factors(rule.column, row))
        share_left = value / bound - 1 if rule.at_least else 1 - value / bound
        out[rule.name] = {
            "limit": bound * rule.factor,
            "value": _finite_or_none(value * rule.factor),
            "low": _finite_or_none(low * rule.factor),
            "high": _finite_or_none(high * rule.factor),
            "share_left": _finite_or_none(share_left),
        }
    return out


def offer_json(offer: Offer | None, today: datetime.date | None = None) -> Json | None:
    """An offer as plain values, with its age and what to doubt."""
    if offer is None:
        return None
    return {
        **offer.model_dump(mode="json"),
        "age_days": offer.age_days(today),
        "marks": list(offer.marks(today)),
    }


def _finite_or_none(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


# Devices of a part: about half a second, of training a second.
PART, TRAINING_PART = 6, 2
# Fields of a request on which no device's size depends.
AFTERWARDS = ("growth", "purchase")


def answer_in_parts(
    values: Mapping[str, Any], parts: int, *, digest: str = "", folders: bool = True
) -> Json:
    """The answer over the first ``parts`` parts of the devices, with how many devices those are.

    Short of the last part devices have a row, but neither a ladder nor what would make them win.
    With it, the answer is that of ``size`` over all devices.

    Args:
        values: a SizeRequest as plain values.
        parts: how many; more than there are count as all.
        digest: of the model's files, where these may change.
        folders: whether the model may be named by a path on this machine.

    Raises:
        RecipeError: as ``size``.
    """
    with paused_collection():
        return _answer_parts(SizeRequest.parse(values), parts, digest, folders)


def _answer_parts(request: SizeRequest, parts: int, digest: str, folders: bool) -> Json:
    means = request_by_means(request).model_copy(update=dict.fromkeys(AFTERWARDS))
    text = json.dumps(means.model_dump(mode="json"), sort_keys=True)
    parts_sized = _latest_parts(text, digest, folders, offers.current_day())
    if parts_sized.choices is None:
        parts_sized.choices = list(iter_device_choices(request))
    part_size, count = TRAINING_PART if request.is_training else PART, len(parts_sized.choices)
    some = [parts_sized.choices[n : n + part_size] for n in range(0, count, part_size)] or [[]]
    for n, part in enumerate(some[:parts]):
        if n not in parts_sized.sized:
            parts_sized.sized[n] = size_devices(means, folders=folders, among=part)
    sizing = reduce(Sizing.merged, [parts_sized.sized[n] for n in range(len(some[:parts]))])
    shares = {"sized": sum(map(len, some[:parts])), "of": count}
    if parts < len(some):
        return {**_best_rows_json(replace(sizing, request=request)), **shares}
    if parts_sized.merged is None:
        parts_sized.merged = span_machines(replace(sizing, request=means), folders=folders)
    sizing = replace(parts_sized.merged, request=request)
    if request.objective.limits.percentile is not None:
        sizing = simulate_best_devices(sizing)
    return {**Answer(sizing).to_json(), **shares}


@dataclass(slots=True)
class _Parts:
    """The parts of a request that this process has sized, by number, and all of them together."""

    choices: list[Choice] | None = None
    sized: dict[int, Sizing] = field(default_factory=dict)
    merged: Sizing | None = None


@lru_cache(maxsize=1)
def _latest_parts(text: str, digest: str, folders: bool, day: datetime.date) -> _Parts:  # noqa: ARG001 - the key
    return _Parts()


def _best_rows_json(sizing: Sizing) -> Json:
    answer = Answer(sizing)

    def best(devices: Sequence[SizedDevice]) -> list[Json]:
        return [
            row
            for device in devices
            if device.best is not None
            for row in answer.rows(device, [device.best])
        ]

    devices = best(sizing.devices)
    return {
        "schema_version": SCHEMA_VERSION,
        "best": devices[0] if devices else None,
        "devices": devices,
        "unpriced": best(sizing.unpriced),
        "refused": [],
    }
