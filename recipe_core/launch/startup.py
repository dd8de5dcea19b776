"""How long a start may take: one figure for the launcher and the controllers of every target.

    limit = engine + bytes / arrival rate + bytes / read rate        [seconds]

``engine``: what an engine may take beside its weights (imports, compilation, tuning of kernels,
graphs): its launch's ``startup_timeout_s``. ``bytes``: the whole checkpoint, which each node
fetches and reads. Weights of a hub arrive first and are read then; those of a folder are only read.
A stated rate is that of the link to the hub, or of the folder's storage. The rates and their
sources are in ``startup.yaml``. Of the published start-ups that they were chosen from, three last
longer than the limit, and their reports call all three faults: a disk at 19 MB/s, a first start of
50 minutes, a start with adapters of three hours. It leaves out the pull of the image, which
controllers count apart.
"""

from __future__ import annotations

import math
from functools import cache

from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.launch.process import Launch

MEGABYTE = 1e6


class Rates(Sourced):
    """Rates at which weights come, in bytes per second."""

    fetch_bytes_per_s: Quantity
    read_bytes_per_s: Quantity


@cache
def startup_rates() -> Rates:
    """The rates that hold where none is stated."""
    return DataFile(PACKAGE / "launch" / "startup.yaml", "startup").read_as(Rates)


def names_folder(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~"))


def limit_s(launch: Launch, weights_bytes: int, model: str, rate_mb_per_s: float | None) -> int:
    """Seconds that a start may take.

    Args:
        launch: what is started; one that reads no weights waits for none.
        weights_bytes: of the whole checkpoint.
        model: a folder or a hub's id.
        rate_mb_per_s: stated rate of the link to the hub or of the folder's storage, in 10^6 bytes
            per second; None where it is not known.
    """
    size = weights_bytes if launch.loads_model else 0
    return math.ceil(launch.startup_timeout_s + weights_s(size, model, rate_mb_per_s))


def weights_s(weights_bytes: int, model: str, rate_mb_per_s: float | None) -> float:
    """Seconds of ``limit_s`` in which the weights arrive and are read."""
    rates = startup_rates()
    rate = rate_mb_per_s * MEGABYTE if rate_mb_per_s else None
    if names_folder(model):
        return weights_bytes / (rate or rates.read_bytes_per_s.value)
    arrival = weights_bytes / (rate or rates.fetch_bytes_per_s.value)
    return arrival + weights_bytes / rates.read_bytes_per_s.value
