"""A small answer of a simulation over time, for tests of what shows it."""

from __future__ import annotations

from typing import Any

from recipe_core.fleet.result import OverTimeAnswer

HOURS = 24


def policy(name: str, scaling: dict[str, Any] | None, hours: float, share: float) -> dict[str, Any]:
    """A policy with so many replica hours a day."""
    flat = [1.0] * HOURS
    return {
        "name": name,
        "scaling": scaling,
        "meets": share >= 0.99,
        "attainment": {"value": share, "low": share - 0.002, "high": min(share + 0.001, 1.0)},
        "replica_hours": hours,
        "gpu_hours": 2 * hours,
        "usd": 5.0 * hours,
        "usd_per_month": 5.0 * hours * 30.44,
        "worst_interval": {"at_s": 43_200.0, "share": 0.9, "seconds": 60.0},
        "cold_starts": 4.0,
        "requests_delayed": 12.0,
        "replicas_lost": 0.0,
        "replicas": {"min": 1, "mean": hours / HOURS, "max": 4},
        "against": {"always_peak": hours / 96, "clairvoyant": hours / 40},
        "checked": None,
        "series": {
            "interval_s": 3600.0,
            "arrived": [3600.0] * HOURS,
            "kept": [3600.0 * share] * HOURS,
            **dict.fromkeys(("ready", "starting", "wanted", "waiting", "running"), flat),
            "ttft_s": [0.2, None] * (HOURS // 2),
        },
    }


KEDA = {
    "policy": "keda",
    "min_replicas": 1,
    "max_replicas": 6,
    "triggers": [{"metric": "in-flight", "target": 24.0}],
    "down_delay_s": 300.0,
}
FIXED = {"policy": "fixed", "min_replicas": 4, "max_replicas": 4}
CHECKED = {"attainment": 0.985, "flow": 0.99, "requests": 3600, "window": [39_600.0, 43_200.0]}
ANSWER = OverTimeAnswer.model_validate(
    {
        "candidate": {"engine": "vllm", "tp": 2, "pp": 1, "dp": 4, "ep": 1},
        "engine": "vllm",
        "devices_per_replica": 2,
        "usd_per_replica_hour": 5.0,
        "price_basis": "2 × $2.50 per device-hour",
        "service": {"requests_per_s": 1.5, "slots": 128},
        "start": {"seconds": 300.0, "low_s": 200.0, "high_s": 500.0},
        "load": {
            "source": "stated rates",
            "span_s": 86_400.0,
            "requests": 86_400.0,
            "mean_rate_per_s": 1.0,
            "peak_rate_per_s": 4.0,
            "burstiness": 1.0,
            "input_tokens": 1024.0,
            "output_tokens": 256.0,
            "start_hour": 0,
            "interval_s": 3600.0,
            "rates_per_s": [1.0] * HOURS,
        },
        "limits": {"ttft_s": 2.0, "tpot_s": 0.05},
        "attainment_wanted": 0.99,
        "best": "keda",
        "policies": [
            policy("keda", KEDA, 50.0, 0.995) | {"checked": CHECKED},
            policy("fixed", FIXED, 96.0, 0.9999),
        ],
        "bounds": {
            "always_peak": policy("always_peak", None, 96.0, 1.0),
            "clairvoyant": policy("clairvoyant", None, 40.0, 0.99),
        },
        "kv_tiers": None,
        "notes": ["Machines of 8 devices are rented whole."],
    }
)
"""Two policies over a day."""
