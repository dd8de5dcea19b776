"""A plausible answer of a simulation over time, made by formulas, for tests of what draws it."""

from __future__ import annotations

import math
from typing import Any

Json = dict[str, Any]
HOUR_S, MONTH_H = 3600.0, 365.25 / 12 * 24
CAPACITY, PRICE, DEVICES = 2.0, 5.0, 2
"""Requests per second of a replica, its dollars an hour, its devices."""


def rates(days: int) -> list[float]:
    """Requests per second by the hour: a hump at noon, half of it at weekends."""
    return [
        (1.0 if day % 7 < 5 else 0.5) * (5.0 + 4.0 * math.sin((hour - 6) / 12 * math.pi))
        for day in range(days)
        for hour in range(24)
    ]


def policy(name: str, counts: list[int], load: list[float], **changes: Any) -> Json:
    """A policy that has these replicas by the hour; what is beyond their capacity misses."""
    arrived = [rate * HOUR_S for rate in load]
    kept = [
        min(rate, n * CAPACITY) / rate * some if rate else 0.0
        for rate, n, some in zip(load, counts, arrived, strict=True)
    ]
    share, hours = sum(kept) / sum(arrived), float(sum(counts))
    busy = [n for n, some in enumerate(arrived) if some]
    worst = min(busy, key=lambda n: kept[n] / arrived[n])
    before = [counts[0], *counts[:-1]]
    month = hours * PRICE / len(load) * MONTH_H
    return {
        "name": name,
        "scaling": None,
        "meets": share >= 0.99,
        "attainment": {"value": share, "low": max(0.0, share - 0.01), "high": min(1, share + 0.01)},
        "replica_hours": hours,
        "gpu_hours": hours * DEVICES,
        "usd": hours * PRICE,
        "usd_per_month": month,
        "worst_interval": {
            "at_s": worst * HOUR_S,
            "share": kept[worst] / arrived[worst],
            "seconds": HOUR_S,
        },
        "cold_starts": sum(max(0, now - old) for now, old in zip(counts, before, strict=True)),
        "requests_delayed": 12,
        "replicas_lost": 0,
        "replicas": {"min": min(counts), "mean": hours / len(load), "max": max(counts)},
        "against": {"always_peak": 0.5, "clairvoyant": 1.5},
        "checked": None,
        "series": {
            "interval_s": HOUR_S,
            "arrived": arrived,
            "kept": kept,
            "ready": [float(min(pair)) for pair in zip(counts, before, strict=True)],
            "starting": [float(max(0, a - b)) for a, b in zip(counts, before, strict=True)],
            "wanted": [float(n) for n in counts],
            "waiting": [0.0] * len(load),
            "running": [rate * 4 for rate in load],
            "ttft_s": [None if not rate else 0.2 + 0.05 * rate for rate in load],
        },
    } | changes


def answer(days: int = 7, **changes: Any) -> Json:
    """What ``OverTimeAnswer.to_json`` gives, with three policies and both bounds."""
    load = rates(days)
    needed = [math.ceil(rate / CAPACITY) for rate in load]
    peak, idle = max(needed), min(needed)
    keda = {
        "policy": "keda",
        "min_replicas": idle,
        "max_replicas": peak + 1,
        "triggers": [{"metric": "in-flight", "target": 12.0}],
        "down_delay_s": 300.0,
    }
    out = {
        "schema_version": 1,
        "candidate": {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1, "ep": 1},
        "engine": "vllm",
        "devices_per_replica": DEVICES,
        "usd_per_replica_hour": PRICE,
        "price_basis": "an offer",
        "service": {"requests_per_s": CAPACITY, "slots": 64},
        "start": start(),
        "load": {
            "source": "azure_2024_conv",
            "span_s": days * 24 * HOUR_S,
            "requests": sum(load) * HOUR_S,
            "mean_rate_per_s": sum(load) / len(load),
            "peak_rate_per_s": max(load),
            "burstiness": 1.0,
            "input_tokens": 1024.0,
            "output_tokens": 256.0,
            "start_hour": 0,
            "interval_s": HOUR_S,
            "rates_per_s": load,
        },
        "limits": {"ttft_s": 2.0, "tpot_s": 0.05},
        "attainment_wanted": 0.99,
        "best": "keda",
        "policies": [
            policy("keda", [n + 1 for n in needed], load, scaling=keda),
            policy(
                "fixed",
                [peak + 1] * len(load),
                load,
                scaling={"policy": "fixed", "min_replicas": peak + 1, "max_replicas": peak + 1},
            ),
            policy(
                "hpa",
                [max(idle, n - 1) for n in needed],
                load,
                scaling={"policy": "hpa", "min_replicas": idle, "max_replicas": peak},
            ),
        ],
        "bounds": {
            "always_peak": policy("always_peak", [peak] * len(load), load),
            "clairvoyant": policy("clairvoyant", needed, load),
        },
        "kv_tiers": None,
        "notes": ["Starts are drawn from their band."],
    }
    return out | changes


def start() -> Json:
    """A cold start of three phases."""
    phases = [("node", 90.0), ("image", 60.0), ("weights", 45.0)]
    total = sum(seconds for _, seconds in phases)
    return {
        "seconds": total,
        "low_s": total / 2,
        "high_s": total * 2,
        "phases": [
            {
                "name": name,
                "seconds": seconds,
                "low_s": seconds / 2,
                "high_s": seconds * 2,
                "basis": "published starts",
            }
            for name, seconds in phases
        ],
        "savings": [{"change": "keep the image on the node", "seconds": 60.0}],
    }


def without_price(found: Json) -> Json:
    """The same answer for a device that has no price."""
    for one in (*found["policies"], *found["bounds"].values()):
        one |= {"usd": None, "usd_per_month": None}
    return found | {"usd_per_replica_hour": None, "price_basis": None}
