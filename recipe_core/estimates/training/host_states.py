"""States that wait in the host's memory instead of on the device.

``optimizer``: optimizer states and master copy. ``parameters``: these, gradients and parameters
too, under ZeRO-3; the device has the layers that are gathered. For these a node needs what
DeepSpeed reckons with (`estimate_zero3_model_states_mem_needs`): ``host_buffers`` times the states,
or times the whole model in every process where each loads it before it is divided.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting

# States that ``parameters`` moves; the reference last, which it moves where it is divided.
MOVED = ("parameters", "gradients", "optimizer", "master", "reference")
_OPTIMIZER = ("optimizer", "master")


def offload_states(
    setting: TrainingSetting, cases: TrainingCases, states: dict[str, Float], undivided: Float
) -> tuple[dict[str, Float], Float]:
    """States left on the device, and bytes that a device of the fullest stage has on its host.

    Args:
        setting: what all cases share.
        cases: the splits.
        states: bytes of a device by state, of shape (cases, stages).
        undivided: bytes of all parameters of a stage as they are stored, undivided.
    """
    some, hosted = cases.offload[:, None] > 0, cases.host_parameters
    moved = MOVED if setting.framework.reference_divided else MOVED[:-1]
    away = dict.fromkeys(moved, hosted[:, None]) | dict.fromkeys(_OPTIMIZER, some)
    on_device = {
        name: np.where(away[name], 0.0 * size, size) if name in away else size
        for name, size in states.items()
    }
    optimizer = np.nanmax(np.where(some, add(states[name] for name in _OPTIMIZER), 0.0), axis=1)
    if not hosted.any():
        return on_device, optimizer
    narrow = 0.0 if setting.state_dtype == "bf16" else 4.0 / setting.states.gradient - 1.0
    host_states = add(states[name] for name in moved) + narrow * states["gradients"]  # in fp32
    everything = np.nanmax(host_states, axis=1)
    loaded, start = np.nansum(undivided, axis=1), setting.framework.loads_whole
    if start == "every" and not setting.frozen:
        everything = np.maximum(everything, loaded)
    needed = setting.calibration.host_buffers.value * everything
    if start == "one":  # beside the shards that it sends to all
        shared = loaded / np.minimum(cases.per_node, cases.devices)
        needed = np.maximum(needed, np.nanmax(states["parameters"], axis=1) + shared)
    return on_device, np.where(hosted, needed, optimizer)


def copied_s(
    setting: TrainingSetting, cases: TrainingCases, stored: Float, reference: Float
) -> tuple[Float, Float]:
    """Seconds in which a device's parameters cross the host link, forward and backward.

    Once in each pass, and once more where ZeRO-3 gathers a layer again that is recomputed
    (ZeRO-Infinity, arXiv:2104.07857, section 4); FSDP gathers it once for both. ``stored``,
    ``reference``: bytes of a device's part of the parameters, and of DPO's frozen ones.
    """
    link = setting.calibration.host_link_bytes_per_s.value
    once, frozen = stored / link, reference / link
    again = (cases.recompute > 0) & (setting.framework.sharding == "optimizer")
    hosted = cases.host_parameters
    return np.where(hosted, once + frozen, 0.0), np.where(hosted, (1.0 + again) * once, 0.0)
