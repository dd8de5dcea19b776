"""The tiers that a request asks for, with their names looked up."""

from __future__ import annotations

from recipe_core.base.errors import HardwareError
from recipe_core.base.units import GIB
from recipe_core.engines.kv_offload import Through
from recipe_core.engines.spec import Engine
from recipe_core.estimates.rules.kv_offload import FIELD, Offload, Store
from recipe_core.hardware.storage import StorageTier, storage_tier
from recipe_core.request.kv_offload import KvOffload, KvStore


def offload_of(asked: KvOffload | None, spec: Engine) -> Offload | None:
    """The tiers of an engine; None where none is asked for.

    Raises:
        HardwareError: for a storage tier that there is not, naming close ones.
    """
    if asked is None:
        return None
    ways: list[Through] = [*spec.kv_offload]
    through = asked.through or (ways[0] if ways else None)
    device = asked.host_gib_per_device
    return Offload(
        through,
        spec.kv_offload.get(through) if through else None,
        host_bytes=None if asked.host_gib is None else asked.host_gib * GIB,
        host_bytes_per_device=None if device is None else device * GIB,
        disk=_store(asked.disk, f"{FIELD}.disk.tier"),
        remote=_store(asked.remote, f"{FIELD}.remote.tier"),
    )


def _store(asked: KvStore | None, field: str) -> Store | None:
    if asked is None:
        return None
    return Store(_tier(asked.tier, field), asked.gib * GIB, asked.path, asked.url)


def _tier(name: str, field: str) -> StorageTier:
    try:
        return storage_tier(name)
    except HardwareError as error:
        raise HardwareError(error.message, field=field, hint=error.hint) from error
