"""Tiers below the cache of the devices, and why a split cannot have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.units import gib, share_text
from recipe_core.engines.memory import KvWay, Through, Tier
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.hardware.host import StorageTier, host_links
from recipe_core.models.spec import CompressedAttention, LatentAttention, ModelSpec

if TYPE_CHECKING:
    from recipe_core.estimates.columns.serving import Cases, Setting

FIELD = "options.kv_offload"
Degree = TypeVar("Degree", int, Float)
_KINDS = {
    "states": "layers of linear attention or state space",
    "windows": "layers with a sliding window",
    "latents": "latent attention (MLA)",
    "compressed": "layers with a compressed past",
}


@dataclass(frozen=True, slots=True)
class Store:
    """A store behind the host's memory: what it is, and the room for blocks.

    ``path`` and ``url``: where it is, as the request says.
    """

    tier: Tier
    storage: StorageTier
    capacity_bytes: float
    path: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Offload:
    """Tiers asked to hold blocks that devices evict, and how the engine moves them.

    ``connector`` is None where the engine has no such way: every split is refused then.
    ``host_bytes`` of the host's memory are of a server, or of each device that it uses where
    ``per_device``; ``stores`` lie behind it, nearest first.
    """

    through: Through | None
    connector: KvWay | None
    host_bytes: float
    per_device: bool
    stores: tuple[Store, ...] = ()

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers, nearest first."""
        return ("host", *(store.tier for store in self.stores))

    def store(self, tier: Tier) -> Store | None:
        """The store of a tier; None for the host's memory, and where there is none."""
        return next((store for store in self.stores if store.tier == tier), None)

    def rank_bytes(self, ranks: Degree) -> Degree | float:
        """Host memory that each device of a server of ``ranks`` has for its blocks."""
        return self.host_bytes if self.per_device else self.host_bytes / ranks

    def server_bytes(self, cases: Cases) -> Float:
        """Host memory of one server (one per case)."""
        ranks = (cases.tp * cases.pp).astype(float)
        return self.rank_bytes(ranks) * ranks

    def node_bytes(self, cases: Cases) -> Float:
        """Host memory that the servers on the fullest node take (one per case)."""
        ranks = (cases.tp * cases.pp).astype(float)
        return self.rank_bytes(ranks) * np.minimum(cases.devices, cases.per_node)


def kinds_of(model: ModelSpec) -> frozenset[str]:
    """Kinds of layers that not every way to offload can save."""
    out = set()
    for layer, _ in model.kinds:
        mixer = layer.attention
        if isinstance(mixer, CompressedAttention):
            out.add("compressed")
        elif mixer is not None:
            has = {
                "states": bool(mixer.state_values),
                "windows": mixer.window is not None,
                "latents": isinstance(mixer, LatentAttention),
            }
            out |= {kind for kind, present in has.items() if present}
    return frozenset(out)


def offload_rules(setting: Setting, cases: Cases) -> list[Refusal]:
    """Splits that cannot have the tiers that are asked for; none where none is."""
    if setting.offload is None:
        return []
    reason = _unable(setting, setting.offload)
    everywhere = np.full(len(cases), reason is not None)
    pools = cases.disaggregated & (reason is None)
    return [
        Refusal("kv-offload", everywhere, lambda _: str(reason)),
        Refusal(
            "kv-offload-pools",
            pools,
            lambda _: (
                "offloaded blocks beside blocks that go from pool to pool need two connectors at "
                f"once, which is not modelled; leave {FIELD} or the prefill pool out"
            ),
        ),
        _host_memory(setting, setting.offload, cases, everywhere),
    ]


def _unable(setting: Setting, offload: Offload) -> str | None:
    """Say why no split of this engine and model can offload as asked, with the fix; else None."""
    engine, ways = setting.engine, ", ".join(setting.engine.kv_offload)
    title, connector = f"{engine.title} {engine.version}", offload.connector
    if not ways:
        return f"{title} has no option to offload its cache; leave {FIELD} out"
    if connector is None:
        return f"{title} does not offload through {offload.through}; set {FIELD}.through: {ways}"
    if setting.cluster.device.runtime not in connector.runtimes:
        runtime = setting.cluster.device.runtime
        return f"{offload.through} has no build for {runtime}; leave {FIELD} out"
    if not (setting.caches and setting.model.generates):
        return f"{setting.model.name} keeps no cache that could be offloaded; leave {FIELD} out"
    if setting.mode == "static":
        return f"a static batch has no past prompts to find; leave {FIELD} out or change the mode"
    missing = [tier for tier in offload.tiers if tier not in connector.tiers]
    if missing:
        return f"{offload.through} has no {missing[0]} tier; use lmcache, or leave it out"
    if len(offload.stores) > connector.stores:
        return f"{offload.through} takes one store besides the host; leave disk or remote out"
    kinds = [kind for kind in connector.lacks if kind in kinds_of(setting.model)]
    if kinds:
        return (
            f"{offload.through} cannot save {_KINDS[kinds[0]]}, which {setting.model.name} has; "
            f"leave {FIELD} out"
        )
    return None


def _host_memory(setting: Setting, offload: Offload, cases: Cases, elsewhere: Bool) -> Refusal:
    """More memory than a node has for it."""
    host = setting.cluster.device.node.host_memory_bytes
    needed, share = offload.node_bytes(cases), host_links().pinned_share.value
    room = np.inf if host is None else host.value * share

    def sentence(i: int) -> str:
        needed_text, room_text = gib(needed[i]), gib(room)
        device_room = room / min(float(cases.devices[i]), float(cases.per_node[i]))
        return (
            f"the offloaded cache takes {needed_text} of a node's host memory; {room_text} can be "
            f"had ({share_text(share)} of the node's); set host_gib_per_device to "
            f"{device_room / 2**30:,.0f} or less"
        )

    return Refusal("host-memory", (needed > room) & ~elsewhere, sentence)
