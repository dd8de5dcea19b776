"""Device memory of a collective library's communicators, which no allocator of torch counts.

Each group of ranks has one, with buffers of its own (NCCL, issues 864 and 964). Those of the first
group are in ``context_bytes``.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting

# Runtimes whose library (NCCL, RCCL) keeps buffers on the device.
_LIBRARIES = ("cuda", "rocm")


def communicator_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of the communicators of a rank beside its first (one per case).

    Groups: tensor, pipeline, context and expert parallelism, and replicas.
    """
    kinds = (cases.tp, cases.pp, cases.cp, cases.ep, cases.replicas)
    groups = np.sum([np.asarray(ranks) > 1 for ranks in kinds], axis=0)
    buffered = setting.cluster.device.runtime in _LIBRARIES
    each_bytes = setting.calibration.communicator_bytes.value if buffered else 0.0
    return np.asarray(each_bytes * np.maximum(groups - 1, 0), dtype=float)


def process_usable_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a device that its process's tensors can have (one per case)."""
    outside = setting.calibration.context_bytes.value + communicator_bytes(setting, cases)
    return np.asarray(setting.cluster.device.usable_memory_bytes - outside)
