"""Words that put tiers below the devices' cache: options, variables and files of each way.

Sizes are those that were estimated. vLLM is told the memory of a server over all its ranks in GiB,
LMCache that of each rank in GiB, SGLang that of each rank in whole GB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError
from recipe_core.base.units import GIB
from recipe_core.estimates.rules.kv_offload import FIELD, Offload, Store
from recipe_core.launch.process import Deployment

CONFIG = "engine/lmcache.yaml"
FOLDER = "/var/tmp/kv-cache"  # noqa: S108 - blocks may go with a restart, and any user may write
GB = 1e9


@dataclass(frozen=True, slots=True)
class OffloadLaunch:
    """The words of a launch: options, variables of its processes, files, modules."""

    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


def rank_bytes(deployment: Deployment) -> float:
    """Host memory of each rank of a server; 0 where none is asked for."""
    offload, ranks = deployment.setting.offload, deployment.candidate.tp * deployment.candidate.pp
    return 0.0 if offload is None else float(offload.rank_bytes(ranks))


def offload_launch(deployment: Deployment) -> OffloadLaunch:
    """Return what the tiers of a deployment need; nothing without tiers.

    Raises:
        InputError: for a rank with less than SGLang can count.
    """
    offload, ranks = deployment.setting.offload, deployment.candidate.tp * deployment.candidate.pp
    if offload is None or offload.connector is None:
        return OffloadLaunch()
    rank = rank_bytes(deployment)
    if offload.through == "native":
        return OffloadLaunch(
            {"kv_offloading_size": rank * ranks / GIB, "kv_offloading_backend": "native"}
        )
    if offload.through == "lmcache":
        connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
        # ranks find each other's blocks by hashes, which must not differ between processes
        environment = {"LMCACHE_CONFIG_FILE": f"${{root}}/{CONFIG}", "PYTHONHASHSEED": "0"}
        config = _lmcache_config(offload, offload.connector.block_tokens, ranks)
        package = offload.connector.package
        return OffloadLaunch(
            {"kv_transfer_config": connector},
            environment,
            {CONFIG: to_yaml(config)},
            (package,) if package else (),
        )
    options: dict[str, Any] = {
        "enable_hierarchical_cache": True,
        "hicache_size": _whole_gb(rank),
        "hicache_write_policy": "write_through",
    }
    if not offload.stores:
        return OffloadLaunch(options)
    options["hicache_storage_backend"] = "file"
    options["hicache_storage_prefetch_policy"] = "wait_complete"
    folder = store_folder(offload.stores[0])
    return OffloadLaunch(options, {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": folder})


def _whole_gb(rank: float) -> int:
    if rank < GB / 2:
        raise InputError(
            f"leaves {rank / GB:.2g} GB to a rank; SGLang counts in whole GB.",
            field=f"{FIELD}.host_gib",
            hint="Give each rank 1 GB or more.",
        )
    return round(rank / GB)


def _lmcache_config(offload: Offload, block_tokens: int, ranks: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "chunk_size": block_tokens,
        "local_cpu": True,
        "max_local_cpu_size": round(offload.rank_bytes(ranks) / GIB, 3),
    }
    if (disk := offload.store("disk")) is not None:
        config["local_disk"] = store_folder(disk)
        config["max_local_disk_size"] = round(disk.capacity_bytes / ranks / GIB, 3)
    if (remote := offload.store("remote")) is not None:
        config["remote_url"] = remote.url or f"fs://localhost:0{store_folder(remote)}"
        config["remote_serde"] = "naive"
    return config


def store_folder(store: Store) -> str:
    """The folder of a store on the nodes."""
    return store.path or FOLDER
