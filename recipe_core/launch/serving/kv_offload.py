"""Words that put tiers below the devices' cache: options, variables and files of each way.

Sizes are those that were estimated. vLLM is told the memory of a server over all its ranks in GiB,
LMCache that of each rank in GiB, SGLang that of each rank in whole GB.
"""

from __future__ import annotations

from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.engines.memory import KvWay
from recipe_core.estimates.rules.kv_offload import FIELD, Offload, Store
from recipe_core.launch.process import Deployment

CONFIG = "engine/lmcache.yaml"
FOLDER = "/var/tmp/kv-cache"  # noqa: S108 - blocks may go with a restart, and any user may write
GB = 1e9


def _kv_offload_way(deployment: Deployment) -> tuple[Offload, KvWay] | None:
    offload = deployment.setting.offload
    if offload is None or offload.connector is None:
        return None
    return offload, offload.connector


def rank_bytes(deployment: Deployment) -> float:
    """Host memory of each rank of a server; 0 where none is asked for."""
    offload, candidate = deployment.setting.offload, deployment.candidate
    if offload is None:
        return 0.0
    if offload.host_bytes_per_device is not None:
        return offload.host_bytes_per_device
    return (offload.host_bytes or 0.0) / (candidate.tp * candidate.pp)


def offload_options(deployment: Deployment) -> dict[str, Any]:
    """Options of the engine; none without tiers."""
    offloading = _kv_offload_way(deployment)
    if offloading is None:
        return {}
    offload, _ = offloading
    rank, ranks = rank_bytes(deployment), deployment.candidate.tp * deployment.candidate.pp
    if offload.through == "native":
        return {"kv_offloading_size": rank * ranks / GIB, "kv_offloading_backend": "native"}
    if offload.through == "lmcache":
        connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
        return {"kv_transfer_config": connector}
    words: dict[str, Any] = {
        "enable_hierarchical_cache": True,
        "hicache_size": _whole_gb(rank),
        "hicache_write_policy": "write_through",
    }
    if offload.disk is not None or offload.remote is not None:
        words["hicache_storage_backend"] = "file"
        words["hicache_storage_prefetch_policy"] = "wait_complete"
    return words


def _whole_gb(rank: float) -> int:
    if rank < GB / 2:
        raise InputError(
            f"leaves {rank / GB:.2g} GB to a rank; SGLang counts in whole GB.",
            field=f"{FIELD}.host_gib",
            hint="Give each rank 1 GB or more.",
        )
    return round(rank / GB)


def offload_environment(deployment: Deployment) -> dict[str, str]:
    """Variables of the engine's processes; none without tiers."""
    offloading = _kv_offload_way(deployment)
    if offloading is None:
        return {}
    offload, _ = offloading
    if offload.through == "lmcache":
        # ranks find each other's blocks by hashes, which must not differ between processes
        return {"LMCACHE_CONFIG_FILE": f"${{root}}/{CONFIG}", "PYTHONHASHSEED": "0"}
    store = offload.disk or offload.remote
    if offload.through == "hicache" and store is not None:
        return {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": folder_of(store)}
    return {}


def offload_files(deployment: Deployment) -> dict[str, str]:
    """Files that the engine reads from the bundle; none without LMCache."""
    offloading = _kv_offload_way(deployment)
    if offloading is None or offloading[0].through != "lmcache":
        return {}
    offload, kv_way = offloading
    ranks = deployment.candidate.tp * deployment.candidate.pp
    config: dict[str, Any] = {
        "chunk_size": kv_way.block_tokens,
        "local_cpu": True,
        "max_local_cpu_size": round(rank_bytes(deployment) / GIB, 3),
    }
    if offload.disk is not None:
        config["local_disk"] = folder_of(offload.disk)
        config["max_local_disk_size"] = round(offload.disk.capacity_bytes / ranks / GIB, 3)
    if offload.remote is not None:
        config |= {"remote_url": _remote_store_url(offload.remote), "remote_serde": "naive"}
    return {CONFIG: to_yaml(config)}


def offload_modules(deployment: Deployment) -> tuple[str, ...]:
    """Modules that the engine's interpreter must find."""
    offloading = _kv_offload_way(deployment)
    return (offloading[1].package,) if offloading and offloading[1].package else ()


def folder_of(store: Store) -> str:
    return store.path or FOLDER


def _remote_store_url(store: Store) -> str:
    return store.url or f"fs://localhost:0{folder_of(store)}"
