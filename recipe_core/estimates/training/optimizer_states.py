"""What an optimizer keeps of a parameter, what an update moves, and its time.

Moments are kept in the format that is asked for, else in that of what is updated: fp32 where there
are fp32 shards or a master copy, 16 bits where all states are. An update reads gradient, parameter
(or master copy) and moments, and writes these but for the gradient; with a master copy the
parameter is written too.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import OFFLOADS, TrainingCases, TrainingSetting
from recipe_core.estimates.ledger import Overhead, only_number, record_entry
from recipe_core.estimates.roofline import operator_s
from recipe_core.models.dtypes import bytes_per_value

# Bytes of Adafactor's two fp32 sums, one a row and one a column.
SUM_BYTES = 8.0
# Flops of Muon per parameter and row: five Newton-Schulz steps of three products (Jordan et al.,
# 2024).
ORTHOGONAL_FLOPS = 30.0


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
