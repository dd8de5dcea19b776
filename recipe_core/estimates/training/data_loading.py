"""What data loading has to deliver, and how long a step waits for it.

Each replica (dp) has its own workers; ranks of one replica share what they load. The slower of
workers, ``dp · workers · tokens_per_s_per_worker``, and storage, ``read_bytes_per_s /
bytes_per_token``, sets the rate; storage is as stated, else what the nodes in use reach of its tier
(`StorageTier`), else no limit. With prefetching a step waits only for what takes longer than
itself; without, for all of it.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.columns.training import TrainingCases
from recipe_core.hardware.storage import StorageTier
from recipe_core.request.training_workload import Loading


def loaded_tokens_per_s(
    cases: TrainingCases, loading: Loading, tier: StorageTier | None = None
) -> Float:
    """Tokens per second that all loaders deliver together (one per case)."""
    worker = loading.tokens_per_s_per_worker or training_data().run.loader_tokens_per_s.value
    read: Float | float = np.inf
    if loading.read_bytes_per_s is not None:
        read = loading.read_bytes_per_s
    elif tier is not None:
        read = tier.read_rate(cases.nodes_used)
    storage = read / loading.bytes_per_token
    return np.asarray(np.minimum(cases.dp * loading.workers * worker, storage), dtype=float)


def waiting_s(
    cases: TrainingCases, loading: Loading, step_s: Float, tier: StorageTier | None = None
) -> Float:
    """Seconds that a step of ``step_s`` waits for its data (one per case)."""
    load_s = cases.step_tokens / loaded_tokens_per_s(cases, loading, tier)
    return load_s if loading.prefetch == 0 else np.maximum(load_s - step_s, 0.0)
