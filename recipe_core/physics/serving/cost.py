"""Money and energy of a deployment.

Money is the price of the devices by the hour. Of a request's cost its prompt bears the share of the busy time that goes into prompts, its
output the rest; with a prefill pool each bears its own devices.

Power is that of the devices, without hosts, network and cooling:

    watts = idle + (limit - idle) · min(compute + MEMORY_WATTS · memory, 1)

with the shares of the time in which products keep the units for them and traffic keeps the memory busy, as the roofline counts both (a
prompt is near the first, a decoded token near the second). Sums over units of what they use when busy are the usual form of such models
(Wattchmen, arXiv 2603.26435; EnergAIzer, arXiv 2604.20105). Left out: clocks that follow the load, and what collectives draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.provenance import Quantity
from recipe_core.base.units import significant
from recipe_core.hardware.cluster import Cluster, priors
from recipe_core.hardware.profile import Device, Fabric
from recipe_core.physics.serving.continuous_batching import decode_step, idle_step, prompt_step
from recipe_core.physics.serving.operators import total
from recipe_core.physics.serving.pools import Pools
from recipe_core.physics.serving.rates import Serving, active_replicas
from recipe_core.physics.serving.speculative import engine_step, engine_steps, tokens_per_step
from recipe_core.space.serving import Cases, Setting

SECONDS_PER_HOUR = 3600.0

MEMORY_WATTS = 0.5
"""Watts above idle at full memory traffic, as a share of those at full compute; assumed, so that published draws are met roughly.

An H100 decoding one sequence draws 300 W and with 128 of them 600 W (ML.ENERGY 3.0, as vLLM's fleet simulator cites it): estimated are 305
and 480 to 500. An H200 decoding draws 137 to 300 W of its 700 (arXiv 2605.11999): estimated are 290 and more.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """``usd_*`` are NaN when no price is known.

    ``usd_per_million_output_tokens`` lays the whole cost on the output. Laid on both, by ``prefill_share``, an input token costs
    ``usd_per_million_input_tokens_alone`` and an output token ``usd_per_million_output_tokens_alone``. ``watts_limit``: the devices' power
    limits together, which ``watts`` never exceeds.
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


@dataclass(frozen=True, slots=True)
class Busy:
    """Shares of the time of a device that prompts and decoding take."""

    prefill: Float
    decode: Float


def cost(setting: Setting, cases: Cases, served: Serving, pools: Pools | None = None) -> Cost:
    """Cost and power of the devices a case uses, for an hour, and for the requests and tokens it serves at the estimated rate."""
    price = setting.cluster.usd_per_device_hour
    devices = cases.devices.astype(np.float64)
    usd_per_hour = devices * (np.nan if price is None else price)
    tokens_per_s = np.maximum(served.output_tokens_per_s, 1e-12)
    requests_per_s = tokens_per_s / cases.output_tokens
    usd_per_request = usd_per_hour / SECONDS_PER_HOUR / requests_per_s
    prefill_share = _prefill_share(cases, served, pools)
    watts = _watts(setting, cases, busy(at_work(setting), cases, served, pools))
    return Cost(
        usd_per_hour=usd_per_hour,
        usd_per_million_output_tokens=usd_per_request / cases.output_tokens * 1e6,
        usd_per_request=usd_per_request,
        prefill_share=prefill_share,
        usd_per_million_input_tokens_alone=prefill_share
        * usd_per_request
        / cases.input_tokens
        * 1e6,
        usd_per_million_output_tokens_alone=(1 - prefill_share)
        * usd_per_request
        / cases.output_tokens
        * 1e6,
        watts=watts,
        watts_limit=devices * setting.cluster.device.tdp_watts.value,
        joules_per_token=watts / tokens_per_s,
        joules_per_request=watts / requests_per_s,
    )


def _prefill_share(cases: Cases, served: Serving, pools: Pools | None) -> Float:
    """Of what is paid for: the prompt's share of the busy time of a request, or of the devices."""
    if pools is not None:
        return cases.prefill_devices / cases.devices
    steps = np.maximum(cases.output_tokens - 1, 0.0) / tokens_per_step(
        cases.draft_tokens, cases.acceptance
    )
    prompt_s, decode_s = (
        served.prompt_s / cases.pp,
        steps * served.step_s / np.maximum(served.decoding, 1.0),
    )
    return prompt_s / np.maximum(prompt_s + decode_s, 1e-30)


def _watts(setting: Setting, cases: Cases, work: Busy) -> Float:
    """Of all devices; where there is a prefill pool its devices compute the prompts, and the others decode."""
    device = setting.cluster.device
    idle = idle_watts(device)
    span = device.tdp_watts.value - idle
    pool = cases.prefill_devices
    mixed = np.where(pool > 0, work.decode, work.decode + work.prefill)
    busy_devices = (cases.devices - pool) * np.minimum(mixed, 1.0) + pool * np.minimum(
        work.prefill, 1.0
    )
    return cases.devices * idle + busy_devices * span


def watts_basis(setting: Setting) -> str:
    """What the watts of an estimate rest on."""
    device, idle = setting.cluster.device, setting.cluster.device.idle_watts
    low = f"{significant(idle_watts(device))} W idle ({idle.status if idle else 'assumed'})"
    return f"computed: {low} to {significant(device.tdp_watts.value)} W a device by use of compute and memory; without hosts"


def idle_watts(device: Device) -> float:
    """Watts of a device that does nothing: the profile's figure, or a tenth of the limit (what most profiles are near)."""
    return device.idle_watts.value if device.idle_watts else 0.1 * device.tdp_watts.value


def busy(setting: Setting, cases: Cases, served: Serving, pools: Pools | None = None) -> Busy:
    """How much of its time a device spends on prompts and on decoding, averaged over replicas (those without work count as idle).

    A replica's decode steps are those that its requests need, divided by how many of them decode together (Little's law; a static batch and
    a decode pool say it themselves). Stages of a pipeline each have their part of a step. A prompt counts with what it adds to a step.
    """
    replicas, pool = active_replicas(cases), pools.prefill if pools else None
    rate = served.output_tokens_per_s / cases.output_tokens / replicas
    steps = np.maximum(cases.output_tokens - 1, 0.0) / tokens_per_step(
        cases.draft_tokens, cases.acceptance
    )
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


def at_work(setting: Setting) -> Setting:
    """The same on devices where operators take their compute and ``MEMORY_WATTS`` of their memory time, in turn, and nothing else does.

    What a step takes there is the time for which a device draws its full power.
    """
    device = setting.cluster.device
    shapes = {
        family: {
            dtype: shape.model_copy(update={"overhead_s": 0.0, "sort_s": 0.0, "smoothing": 1.0})
            for dtype, shape in ({"any": prior} | device.roofline.get(family, {})).items()
        }
        for family, prior in priors().roofline[device.runtime].items()
    }
    bandwidth = changed(device.memory_bandwidth_bytes_per_s, lambda value: value / MEMORY_WATTS)
    active = device.model_copy(
        update={"roofline": shapes, "memory_bandwidth_bytes_per_s": bandwidth}
    )
    free = dict.fromkeys(("step_s", "sequence_s", "layer_s", "launch_s"), 0.0)
    overheads = {
        runtime: overhead.model_copy(update=free)
        for runtime, overhead in setting.engine.overheads.items()
    }
    joined = replace(without_links(setting.cluster), device=active)
    return replace(
        setting, cluster=joined, engine=setting.engine.model_copy(update={"overheads": overheads})
    )


def without_links(cluster: Cluster) -> Cluster:
    """The cluster joined by links over which collectives take no time."""
    beyond = _free(cluster.beyond) if cluster.beyond else None
    return replace(
        cluster, fabric=_free(cluster.fabric), network=_free(cluster.network), beyond=beyond
    )


def changed(figure: Quantity, change: Callable[[float], float]) -> Quantity:
    """The figure with another value, unvalidated: nought and infinity may be asked for."""
    return figure.model_copy(update={"value": change(figure.value)})


def _free(fabric: Fabric) -> Fabric:
    rate, start = (
        changed(fabric.bandwidth_bytes_per_s, lambda _: np.inf),
        changed(fabric.latency_s, lambda _: 0.0),
    )
    return fabric.model_copy(
        update={
            "bandwidth_bytes_per_s": rate,
            "latency_s": start,
            "latency_per_rank_s": None,
            "direct": None,
        }
    )
