"""Money and energy of a deployment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.estimate.cases import Cases, Float, Setting

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """``usd_*`` are NaN when no price is known. ``watts`` sums the devices' power limits: an upper bound without hosts and cooling."""

    usd_per_hour: Float
    usd_per_million_output_tokens: Float
    watts: Float
    joules_per_token: Float


def cost(setting: Setting, cases: Cases, output_tokens_per_s: Float) -> Cost:
    """Cost of the devices a case uses, for an hour and for the tokens it makes at the estimated rate."""
    price = setting.cluster.usd_per_device_hour
    devices = cases.devices.astype(np.float64)
    usd_per_hour = devices * (np.nan if price is None else price)
    watts = devices * setting.cluster.device.tdp_watts.value
    rate = np.maximum(output_tokens_per_s, 1e-12)
    return Cost(usd_per_hour, usd_per_hour / (rate * SECONDS_PER_HOUR) * 1e6, watts, watts / rate)
