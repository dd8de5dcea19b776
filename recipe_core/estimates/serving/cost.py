"""Money and energy of a deployment.

Money is the price of the rented devices by the hour, idle ones of a whole machine included. Of the
cost of a request, its prompt bears the share of busy time spent on prompts and its output the rest;
with a prefill pool each bears its own devices.

Power is that of the devices, without hosts, network and cooling:

    watts = idle + (limit - idle) · min(compute + MEMORY_WATTS · memory, 1)

where compute and memory are the shares of time in which matrix products and memory traffic are
busy, as the roofline counts both (a prompt is mostly the first, a decoded token the second). Sums
over the busy units are the usual form of such models (Wattchmen, arXiv 2603.26435; EnergAIzer,
arXiv 2604.20105). Left out: clocks that follow the load, and the power of collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.provenance import Quantity
from recipe_core.base.units import significant
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.recall import Recall
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.rules import serving_devices_rented
from recipe_core.estimates.serving.continuous_batching import decode_step, idle_step, prompt_step
from recipe_core.estimates.serving.kernels import total
from recipe_core.estimates.serving.pooling import batch_parts
from recipe_core.estimates.serving.pools import Pools
from recipe_core.estimates.serving.rates import Serving, active_replicas
from recipe_core.estimates.serving.speculative import engine_step, engine_steps, tokens_per_step
from recipe_core.hardware.cluster import Cluster, priors
from recipe_core.hardware.profile import Device, Fabric

SECONDS_PER_HOUR = 3600.0

# Watts above idle at full memory traffic, as a share of those at full compute; assumed, so that
# published draws are roughly met.
#
# An H100 decoding one sequence draws 300 W, decoding 128 of them 600 W (ML.ENERGY 3.0, cited by
# vLLM's fleet simulator): the estimates are 305 and 480 to 500 W. An H200 decoding draws 137 to 300
# W of its 700 (arXiv 2605.11999): the estimate is 290 W and more.
MEMORY_WATTS = 0.5


@dataclass(frozen=True, slots=True)
class Cost(Columns):
    """Cost, power and energy, one number per case; ``usd_*`` are NaN when no price is known.

    ``usd_per_million_output_tokens`` puts the whole cost on the output. Split by ``prefill_share``,
    an input token costs ``usd_per_million_input_tokens_alone`` and an output token
    ``usd_per_million_output_tokens_alone``. ``watts_limit``: the power limits of all devices, which
    ``watts`` never exceeds. ``devices_rented``: devices that are paid for.
    """

    usd_per_hour: Float
    usd_per_million_output_tokens: Float
    usd_per_request: Float
    prefill_share: Float
    usd_per_million_input_tokens_alone: Float
    usd_per_million_output_tokens_alone: Float
    watts: Float
    watts_limit: Float
    joules_per_token: Float
    joules_per_request: Float
    devices_rented: Float


@dataclass(frozen=True, slots=True)
class Busy:
    """Shares of a device's time spent on prompts and on decoding."""

    prefill: Float
    decode: Float


# Settings without what is no work, which all estimates of a setting share.
_IDEAL: Recall[Setting] = Recall(512)


def serving_cost(
    setting: Setting, cases: Cases, served: Serving, pools: Pools | None = None
) -> Cost:
    """Cost and power per hour, and per request and token at the estimated rate."""
    devices = cases.devices.astype(np.float64)
    price = setting.cluster.usd_per_device_hour
    rented = serving_devices_rented(setting, cases).astype(np.float64)
    usd_per_hour = rented * (np.nan if price is None else price)
    tokens_per_s = np.maximum(served.output_tokens_per_s, 1e-12)
    requests_per_s = tokens_per_s / cases.output_tokens
    usd_per_request = usd_per_hour / SECONDS_PER_HOUR / requests_per_s
    prefill_share = _prefill_share(cases, served, pools)
    ideal = _IDEAL.value(lambda: busy_time_setting(setting), setting, None)
    watts = _watts(setting, cases, busy_shares(ideal, cases, served, pools))
    input_usd = prefill_share * usd_per_request / cases.input_tokens
    output_usd = (1 - prefill_share) * usd_per_request / cases.output_tokens
    return Cost(
        usd_per_hour=usd_per_hour,
        usd_per_million_output_tokens=usd_per_request / cases.output_tokens * 1e6,
        usd_per_request=usd_per_request,
        prefill_share=prefill_share,
        usd_per_million_input_tokens_alone=input_usd * 1e6,
        usd_per_million_output_tokens_alone=output_usd * 1e6,
        watts=watts,
        watts_limit=devices * setting.cluster.device.tdp_watts.value,
        joules_per_token=watts / tokens_per_s,
        joules_per_request=watts / requests_per_s,
        devices_rented=rented,
    )


def _prefill_share(cases: Cases, served: Serving, pools: Pools | None) -> Float:
    """Prompts' share of the cost: of a request's busy time or, with two pools, of the devices."""
    if pools is not None:
        return cases.prefill_devices / cases.devices
    yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
    steps = np.maximum(cases.output_tokens - 1, 0.0) / yields
    prompt_s = served.prompt_s / cases.pp
    decode_s = steps * served.step_s / np.maximum(served.decoding, 1.0)
    return prompt_s / np.maximum(prompt_s + decode_s, 1e-30)


def _watts(setting: Setting, cases: Cases, work: Busy) -> Float:
    """Watts of all devices; those of a prefill pool compute prompts and the others decode."""
    device = setting.cluster.device
    idle = idle_watts(device)
    span = device.tdp_watts.value - idle
    pool = cases.prefill_devices
    mixed = np.where(pool > 0, work.decode, work.decode + work.prefill)
    prefilling = np.minimum(work.prefill, 1.0)
    busy_devices = (cases.devices - pool) * np.minimum(mixed, 1.0) + pool * prefilling
    return cases.devices * idle + busy_devices * span


def watts_basis(setting: Setting) -> str:
    """Say how the watts of an estimate were derived, as a sentence."""
    device, idle = setting.cluster.device, setting.cluster.device.idle_watts
    low = f"{significant(idle_watts(device))} W idle ({idle.status if idle else 'assumed'})"
    high = significant(device.tdp_watts.value)
    return f"computed: {low} to {high} W per device by compute and memory load; without hosts"


def idle_watts(device: Device) -> float:
    """Watts of an idle device: its profile's value, or a tenth of its limit as in most profiles."""
    return device.idle_watts.value if device.idle_watts else 0.1 * device.tdp_watts.value


def busy_shares(
    setting: Setting, cases: Cases, served: Serving, pools: Pools | None = None
) -> Busy:
    """Share of a device's time spent on prompts and on decoding, a mean over replicas.

    Replicas without work count as idle. Decode steps of a replica are those that its requests need,
    over how many of them decode together (Little's law; a static batch and a decode pool state it).
    Each stage of a pipeline runs its part of a step. A prompt counts with what it adds to a step.
    """
    replicas, pool = active_replicas(cases), pools.prefill if pools else None
    if not setting.model.generates:
        rate = served.output_tokens_per_s / cases.output_tokens
        prompts = np.maximum(served.resident, 1.0)
        prompt_s = total(batch_parts(setting, cases, prompts)) / prompts / cases.pp
        return Busy(np.minimum(rate / cases.replicas * prompt_s, 1.0), np.zeros(len(cases)))
    rate = served.output_tokens_per_s / cases.output_tokens / replicas
    yields = tokens_per_step(cases.draft_tokens, cases.acceptance)
    steps = np.maximum(cases.output_tokens - 1, 0.0) / yields
    decoding = served.decoding
    step = decode_step(cases, decoding)
    rounds_per_s = rate * steps / np.maximum(decoding, 1.0)
    working = replicas / cases.replicas
    if pool is None:
        mixed, prompts = prompt_step(setting, cases, step, decoding / np.maximum(steps, 1e-6))
        step_s, mixed_s = map(total, engine_steps(setting, cases, step, mixed))
        prompt_s = np.maximum(mixed_s - step_s, 0.0) / prompts / cases.pp
        return Busy(working * rate * prompt_s, working * rounds_per_s * step_s)
    decode = working * rounds_per_s * total(engine_step(setting, cases, step))
    alone, prompts = prompt_step(setting, pool, idle_step(pool), np.ones(len(pool)))
    prompt_s = total(engine_step(setting, pool, alone)) / prompts / pool.pp
    return Busy(rate * replicas / pool.replicas * prompt_s, decode)


def busy_time_setting(setting: Setting) -> Setting:
    """The setting on devices where nothing but work takes time: what a step takes is busy time.

    Operators take their compute time and ``MEMORY_WATTS`` of their memory time, one after the
    other: the time for which a device draws its full power.
    """
    device = setting.cluster.device
    idealised = {"overhead_s": 0.0, "sort_s": 0.0, "smoothing": 1.0}
    shapes = {}
    for family, prior in priors().roofline[device.runtime].items():
        fitted = {"any": prior, **device.roofline.get(family, {})}
        shapes[family] = {
            dtype: shape.model_copy(update=idealised) for dtype, shape in fitted.items()
        }
    bandwidth = change_quantity(
        device.memory_bandwidth_bytes_per_s, lambda value: value / MEMORY_WATTS
    )
    active = device.model_copy(
        update={"roofline": shapes, "memory_bandwidth_bytes_per_s": bandwidth}
    )
    free = dict.fromkeys(("step_s", "sequence_s", "layer_s", "launch_s", "expert_row_s"), 0.0)
    overheads = {
        runtime: overhead.model_copy(update=free)
        for runtime, overhead in setting.engine.overheads.items()
    }
    joined = replace(without_links(setting.cluster), device=active)
    idle = {"overheads": overheads, "kernels": {}}
    return replace(setting, cluster=joined, engine=setting.engine.model_copy(update=idle))


def without_links(cluster: Cluster) -> Cluster:
    """The cluster with links over which collectives take no time."""
    beyond = _free_fabric(cluster.beyond) if cluster.beyond else None
    return replace(
        cluster,
        fabric=_free_fabric(cluster.fabric),
        network=_free_fabric(cluster.network),
        beyond=beyond,
    )


def change_quantity(figure: Quantity, change: Callable[[float], float]) -> Quantity:
    """The quantity with another value, unvalidated: zero and infinity are allowed."""
    return figure.model_copy(update={"value": change(figure.value)})


def _free_fabric(fabric: Fabric) -> Fabric:
    return fabric.model_copy(
        update={
            "bandwidth_bytes_per_s": change_quantity(
                fabric.bandwidth_bytes_per_s, lambda _: np.inf
            ),
            "latency_s": change_quantity(fabric.latency_s, lambda _: 0.0),
            "latency_per_rank_s": None,
            "direct": None,
        }
    )
