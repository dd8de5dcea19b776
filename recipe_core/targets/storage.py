"""Claims for volumes: the weights, which all pods read, and the checkpoints of a run."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.targets import pod
from recipe_core.targets.context import Context
from recipe_core.targets.layout import launch_units
from recipe_core.targets.pod import object_metadata, object_name, recipe_object
from recipe_core.targets.resources import GIB
from recipe_core.targets.scale.policy import most_copies

CHECKPOINTS_KEPT = 4  # that the place of a run has room for
# Of a checkpoint with fp32 weights and Adam's moments, where the estimate does not say.
BYTES_PER_PARAMETER = 16
SPARE_CACHE = 1.2  # times the weights: a partial download lies beside the finished files


def makes_weights(context: Context) -> bool:
    """Return whether the recipe claims a volume for weights: no folder, no other claim."""
    return bool(pod.claim_name(context)) and not context.parameters.model_cache


def weights_claim(context: Context) -> dict[str, Any]:
    """The claim for the weights."""
    name = object_name(context, "-models")
    return volume_claim(context, name, cache_gib(context), shared=is_shared(context))


def is_shared(context: Context) -> bool:
    """Return whether more than one pod mounts a volume of the recipe."""
    if context.kind == "training":
        return context.nodes > 1
    return (
        sum(most_copies(context, unit) * len(unit.pods) for unit in launch_units(context.launch))
        > 1
    )


def shares_a_claim(context: Context) -> bool:
    """Return whether several pods mount a volume that the recipe claims."""
    claims = context.kind == "training" or makes_weights(context)
    return claims and is_shared(context)


def cache_gib(context: Context) -> int:
    """Size of the claim for the weights, in GiB."""
    return context.parameters.cache_gib or math.ceil(SPARE_CACHE * context.weights_bytes / GIB) + 1


def checkpoints_gib(context: Context) -> int:
    """Size of what a run keeps of its checkpoints, with one that is being written, in GiB."""
    estimated = context.estimate.get("run", {}).get("checkpoint_bytes")
    # without an estimate: the weights' file has 2 bytes per parameter
    size = estimated or BYTES_PER_PARAMETER / 2 * context.weights_bytes
    return math.ceil(CHECKPOINTS_KEPT * size / GIB) + 1


def volume_claim(context: Context, name: str, size_gib: int, *, shared: bool) -> dict[str, Any]:
    """A PersistentVolumeClaim, mounted by several nodes if ``shared``."""
    parameters = context.parameters
    return recipe_object(
        context,
        "claim",
        metadata=object_metadata(context) | {"name": name},
        access="ReadWriteMany" if shared else "ReadWriteOnce",
        storage_class=(parameters.shared_class if shared else parameters.storage_class) or None,
        size_gib=size_gib,
    )
