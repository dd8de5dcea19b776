"""The tiers that a request asks for, with their names looked up."""

from __future__ import annotations

from recipe_core.base.errors import HardwareError
from recipe_core.base.units import GIB
from recipe_core.engines.kv_offload import Through
from recipe_core.engines.spec import Engine
from recipe_core.estimates.rules.kv_offload import FIELD, Offload, Store
from recipe_core.hardware.host import StorageTier, storage_tier
from recipe_core.request.kv_offload import KvOffload, KvStore


def offload_of(offload: KvOffload | None, spec: Engine) -> Offload | None:
    """The tiers of an engine; None where none is asked for.

    Raises:
        HardwareError: for a storage tier that there is not, naming close ones.
    """
    if offload is None:
        return None
    ways: list[Through] = [*spec.kv_offload]
    through = offload.through or (ways[0] if ways else None)
    device = offload.host_gib_per_device
    return Offload(
        through,
        spec.kv_offload.get(through) if through else None,
        host_bytes=None if offload.host_gib is None else offload.host_gib * GIB,
        host_bytes_per_device=None if device is None else device * GIB,
        disk=_kv_store(offload.disk, f"{FIELD}.disk.tier"),
        remote=_kv_store(offload.remote, f"{FIELD}.remote.tier"),
    )


def _kv_store(store: KvStore | None, field: str) -> Store | None:
    if store is None:
        return None
    return Store(_tier(store.tier, field), store.gib * GIB, store.path, store.url)


def _tier(name: str, field: str) -> StorageTier:
    try:
        return storage_tier(name)
    except HardwareError as error:
        raise HardwareError(error.message, field=field, hint=error.hint) from error
