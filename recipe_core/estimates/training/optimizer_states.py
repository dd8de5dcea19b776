"""Optimizer states of a parameter, and the bytes and time of an update.

Moments are kept in the format that is asked for, else in that of what is updated: fp32 where there
are fp32 shards or a master copy, 16 bits where all states are. An update reads gradient, parameter
(or master copy) and moments, and writes these but for the gradient; with a master copy the
parameter is written too.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.training import OFFLOADS, TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, only_number, record_entry
from recipe_core.estimates.roofline import operator_s
from recipe_core.models.tensors import bytes_per_value

# States that ``parameters`` moves; the reference last, which it moves where it is divided.
MOVED = ("parameters", "gradients", "optimizer", "master", "reference")
_OPTIMIZER = ("optimizer", "master")
# Bytes of Adafactor's two fp32 sums, one a row and one a column.
SUM_BYTES = 8.0
# Flops of Muon per parameter and row: five Newton-Schulz steps of three products (Jordan et al.,
# 2024).
ORTHOGONAL_FLOPS = 30.0


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


def moment_bytes(setting: TrainingSetting) -> float:
    """Bytes of a moment of a parameter."""
    stated_bytes = setting.optimizer.moment_bytes
    return _plain_bytes(setting) if stated_bytes is None else stated_bytes


def _plain_bytes(setting: TrainingSetting) -> float:
    """Bytes of a moment in the format that is asked for, else in that of what is updated."""
    return bytes_per_value(setting.moment_dtype or setting.state_dtype or "fp32")


def optimizer_state_bytes(setting: TrainingSetting) -> float:
    """Bytes of an optimizer's states of a parameter."""
    optimizer = setting.optimizer
    if optimizer.rows_and_columns:
        return SUM_BYTES / setting.model.hidden
    return optimizer.moments * moment_bytes(setting)


def table_state_bytes(setting: TrainingSetting) -> float | None:
    """Bytes of an optimizer's states of a parameter of embedding or head; None: as of others.

    The mean of both, where only the embedding's are in 32 bits.
    """
    optimizer = setting.optimizer
    if optimizer.table_moments is not None:
        return optimizer.table_moments * _plain_bytes(setting)
    if optimizer.wide_embedding:
        wide = optimizer.moments * 4.0
        return (
            wide if setting.model.tied_embeddings else (wide + optimizer_state_bytes(setting)) / 2
        )
    return None


def update_bytes(setting: TrainingSetting) -> float:
    """Bytes that an update moves of a parameter: in and out, of all that it touches."""
    states = setting.states
    state_traffic = 2 * (states.master or states.parameter) + 2 * optimizer_state_bytes(setting)
    return states.gradient + state_traffic + (states.parameter if states.master else 0.0)


def update_s(setting: TrainingSetting, cases: TrainingCases, trained: Float) -> Float:
    """Seconds of the optimizer on the ``trained`` parameters that a rank updates (one per case)."""
    moved, device = trained * update_bytes(setting), setting.cluster.device
    seconds = operator_s(
        device, "elementwise", "fp32", 12 * trained, moved, 8.0, label="Optimizer update"
    )
    if setting.optimizer.orthogonalizes:
        flops = ORTHOGONAL_FLOPS * setting.model.hidden * trained
        seconds = seconds + operator_s(
            device, "gemm", "bf16", flops, moved, label="Orthogonalization"
        )
    return np.where(cases.offload > 0, _offloaded_s(setting, cases, trained, moved), seconds)


def _offloaded_s(
    setting: TrainingSetting, cases: TrainingCases, trained: Float, moved: Float
) -> Float:
    """Seconds of an update on the host: the link, the host's memory, and disks with states on them.

    Each is one device's share of its node's, one after the other (ZeRO-Offload, arXiv:2101.06840,
    without its delayed update).
    """
    figures, states = setting.calibration, setting.states
    # gradients down, parameters up, unless these wait there and are copied for every layer
    link_bytes = np.where(cases.host_parameters, 0.0, (states.reduced + states.gathered) * trained)
    links = _state_transfer_s(link_bytes, figures.host_link_bytes_per_s.value, "Host link")
    # states are read and written
    disk_bytes = 2 * (states.master + optimizer_state_bytes(setting)) * trained
    on_disk = cases.offload == OFFLOADS.index("optimizer-nvme")
    read_s = _state_transfer_s(disk_bytes, figures.nvme_bytes_per_s.value, "Disk")
    disks = np.where(on_disk, read_s, 0.0)
    return (
        links
        + _state_transfer_s(moved, figures.host_memory_bytes_per_s.value, "Host memory")
        + disks
    )


def _state_transfer_s(data_bytes: Float, bytes_per_s: float, label: str) -> Float:
    """Seconds of bytes at a rate, one per case."""
    return record_entry(
        data_bytes / bytes_per_s,
        lambda seconds: Overhead(
            label, seconds, count=only_number(data_bytes), each_s=1 / bytes_per_s, per="byte"
        ),
    )
