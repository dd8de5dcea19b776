"""A sizing as plain values: the rows that the command line, the API and pages show."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from recipe_core.hardware.offers import Offer
from recipe_core.hardware.ownership import HOURS_PER_MONTH
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.plan_json import queue_text
from recipe_core.request.split_key import split_name
from recipe_core.sizing.afterwards import availability_of, grow_choices, purchase_of
from recipe_core.sizing.capacity import LargestLoad, largest_load
from recipe_core.sizing.growth import Choices
from recipe_core.sizing.rungs import steps_of
from recipe_core.sizing.size import Sizing, hardware_of
from recipe_core.sizing.sized import SizedDevice
from recipe_core.sizing.wins import winning_limits, winning_loads

SCHEMA_VERSION = 1
Json = dict[str, Any]


class Answer:
    """What a sizing says, each part worked out when it is asked for.

    Args:
        sizing: every device, sized.
        today: the day against which the age of prices is counted; by default the current one.
    """

    def __init__(self, sizing: Sizing, today: datetime.date | None = None) -> None:
        self.sizing, self.today = sizing, today

    @cached_property
    def _names(self) -> dict[int, str]:
        """By identity a name of each device that no other has: a device may also be owned."""
        out: dict[int, str] = {}
        for one in self.sizing.sized:
            owned = any(machine.owned for machine in one.choice.machines)
            name = plain = f"{one.profile.name} (owned)" if owned else one.profile.name
            number = 1
            while name in out.values():
                number += 1
                name = f"{plain} {number}"
            out[id(one)] = name
        return out

    def _key(self, one: SizedDevice) -> str:
        return self._names[id(one)]

    # rows

    def rows(self, one: SizedDevice, rows: Sequence[int]) -> list[Json]:
        """Numbers of devices: what is used, rented and idle, their cost, and how sure they are."""
        return [self._row(one, row) for row in rows]

    def _row(self, one: SizedDevice, row: int) -> Json:
        plan = one.plan
        place, machine = plan.setting(row).cluster, one.machine(row)
        used, rented = int(plan.columns["gpus"][row]), int(one.rented[row])
        split = plan.candidate(row)
        spare = one.spares(row)
        chance = float(one.confidence[row])
        return {
            "device": one.profile.name,
            "title": one.profile.title,
            "vendor": one.profile.vendor,
            "count": used,
            "units": rented // place.unit,
            "unit_devices": place.unit,
            "devices_rented": rented,
            "spares": spare,
            "idle": rented - used - spare * one.replicas_of(row)[1],
            "per_node": machine.hardware.per_node,
            "owned": machine.owned,
            "split": split,
            "label": split_name(split),
            "engine": split["engine"],
            **self._money(one, row),
            **self._power(one, row),
            "confidence": chance if plan.stated_limits else None,
            "holds": bool(one.holds[row]),
            "queue": queue_text(plan, row) or None,
            "offer": offer_json(place.offer, self.today),
            "headroom": headroom(one, row),
        }

    def _money(self, one: SizedDevice, row: int) -> Json:
        """An hour, a month of 730 of them, and a million tokens, in US dollars."""
        columns, dearer = one.plan.columns, float(one.dearer[row])
        per_hour = _known(columns["usd_per_hour"][row] * dearer)
        out: Json = {
            "usd_per_hour": per_hour,
            "usd_per_month": None if per_hour is None else per_hour * HOURS_PER_MONTH,
        }
        for name in ("usd_per_million_output_tokens", "usd_per_million_tokens", "usd"):
            if name in columns:
                out[name] = _known(columns[name][row] * dearer)
        if "wall_s" in columns:
            out["wall_s"] = _known(columns["wall_s"][row])
        if "usd_per_million_output_tokens" not in out:
            out["usd_per_million_output_tokens"] = None
        return out

    def _power(self, one: SizedDevice, row: int) -> Json:
        columns = one.plan.columns
        watts = float(columns["watts"][row])
        names = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s")
        training = ("step_s", "tokens_per_s")
        figures = {name: _known(columns[name][row]) for name in names + training if name in columns}
        return {
            "watts": watts,
            "joules_per_token": _known(columns["joules_per_token"][row]),
            "kwh_per_month": watts * HOURS_PER_MONTH / 1e3,
            "figures": figures,
        }

    def ladder(self, one: SizedDevice) -> list[Json]:
        """Every number of rented devices, rising: the row of each, and the highest confidence.

        ``dominated``: another one that costs no more, or takes no more devices where prices are
        unknown, is as sure.
        """
        rungs = self.rows(one, one.ladder)
        surest = -1.0
        prices = [rung["usd_per_hour"] or rung["devices_rented"] for rung in rungs]
        order = sorted(range(len(rungs)), key=lambda k: (prices[k], -one.confidence[one.ladder[k]]))
        for k in order:
            chance = float(one.confidence[one.ladder[k]])
            rungs[k]["dominated"] = chance <= surest
            surest = max(surest, chance)
        for rung, row in zip(rungs, one.ladder, strict=True):
            highest = one.highest_confidence(row) if one.plan.stated_limits else None
            rung["highest_confidence"] = highest
        return rungs

    # devices

    @cached_property
    def loads(self) -> dict[str, LargestLoad]:
        return {
            self._key(one): largest_load(one.plan, one.best)
            for one in (*self.sizing.devices, *self.sizing.unpriced)
            if one.best is not None and one.plan.kind == "serving"
        }

    @cached_property
    def _winning_limits(self) -> dict[str, dict[str, float]]:
        devices = self.sizing.devices
        return dict(zip(map(self._key, devices), winning_limits(devices), strict=True))

    @cached_property
    def _winning_loads(self) -> dict[str, float | None]:
        ladders = {}
        for one in self.sizing.devices:
            load = self.loads.get(self._key(one))
            if load is None or load.value is None or one.best is None:
                continue
            steps = steps_of(one, one.best, load.value)
            ladders[self._key(one)] = (
                np.array([step.capacity for step in steps]),
                np.array([step.usd_per_hour for step in steps]),
            )
        workload = self.sizing.request.workload
        if workload.kind == "training" or not ladders:
            return {}
        field = next(iter(self.loads.values())).field
        return winning_loads(ladders, float(getattr(workload, field)))

    def device(self, one: SizedDevice, *, ladder: bool = True) -> Json:
        """The best row of a device with its ladder, and what would make it win."""
        assert one.best is not None  # noqa: S101 - only devices on which something holds
        key = self._key(one)
        load = self.loads.get(key)
        return {
            **self.rows(one, [one.best])[0],
            "request": hardware_of(one, one.best).to_json()["hardware"],
            "largest_load": load.to_json() if load else None,
            "beats_best": self.sizing.beats_best(one),
            "usd_per_device_hour_to_win": self.sizing.price_to_win(one),
            "wins_at": self._wins_at(one),
            **({"ladder": self.ladder(one)} if ladder else {}),
            **self._afterwards(one, one.best, load),
        }

    def _wins_at(self, one: SizedDevice) -> Json:
        """What would make a device win, each moved alone; of the best its price only."""
        other = one is not self.sizing.best
        return {
            "usd_per_device_hour": self.sizing.price_to_win(one),
            "limits": self._winning_limits.get(self._key(one), {}) if other else {},
            "load": self._winning_loads.get(self._key(one)) if other else None,
        }

    def _afterwards(self, one: SizedDevice, row: int, load: LargestLoad | None) -> Json:
        """Growth, availability and purchase, as far as the request asks for them."""
        request = self.sizing.request
        growths = self.growth.growths if self.growth else {}
        grown = growths.get(self._key(one))
        parts = {
            "growth": grown.to_json() if grown else None,
            "availability": availability_of(request, one, row),
            "purchase": purchase_of(request, one, row, load),
        }
        return {name: part for name, part in parts.items() if part is not None}

    @cached_property
    def growth(self) -> Choices | None:
        """Every device through the months; None where the request states no growth."""
        found = {self._key(one): one for one in self.sizing.devices}
        loads = {key: (found[key], load) for key, load in self.loads.items() if key in found}
        return grow_choices(self.sizing.request, loads)

    def refusal(self, one: SizedDevice) -> Json:
        """A device on which nothing holds, with the reason, and the row that is nearest."""
        near = one.nearest
        return {
            "device": one.profile.name,
            "title": one.profile.title,
            "reasons": [one.reason()],
            "nearest": None if near is None else self.rows(one, [near])[0],
        }

    @property
    def price_warning(self) -> str | None:
        """What to know of the price that decides; None where there is little to doubt."""
        best = self.sizing.best
        if best is None or best.best is None or len(self.sizing.devices) < 2:
            return None
        offer = best.plan.setting(best.best).cluster.offer
        return offer.warning(self.today) if offer else None

    def to_json(self) -> Json:
        """The whole answer, as the contract writes it."""
        sizing = self.sizing
        devices = [self.device(one) for one in sizing.devices]
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
        own = {} if corrections is None else {"own_runs": corrections.to_json()}
        return {
            "schema_version": SCHEMA_VERSION,
            "best": devices[0] if devices else None,
            "price_warning": self.price_warning,
            "devices": devices,
            "unpriced": [self.device(one) for one in sizing.unpriced],
            "refused": [*map(self.refusal, sizing.refused), *barred],
            **({"growth": self.growth.to_json()} if self.growth else {}),
            **own,
        }


def headroom(one: SizedDevice, row: int) -> Json:
    """By stated limit: the limit, what is estimated and its 80 % band, and the share left."""
    limits, out = one.plan.request.objective.limits, {}
    for code, rule in LIMITS.items():
        bound = rule.bound(limits)
        if bound is None:
            continue
        value = float(one.bounded[code][row]) * (one.dearer[row] if rule.priced else 1.0)
        low, high = (value * factor for factor in one.band_factors(rule.column, row))
        left = value / bound - 1 if rule.at_least else 1 - value / bound
        out[rule.name] = {
            "limit": bound * rule.factor,
            "value": _known(value * rule.factor),
            "low": _known(low * rule.factor),
            "high": _known(high * rule.factor),
            "share_left": _known(left),
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


def _known(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
