"""The context of every target: how a deployment is started, on what, and in what place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from recipe_core.base.errors import HardwareError
from recipe_core.engines.release import ApiKey
from recipe_core.engines.spec import engine
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.profile import SliceOf
from recipe_core.launch.process import Launch
from recipe_core.launch.start import names_folder
from recipe_core.models.spec import UNPLACED
from recipe_core.recipe.place import Parameters
from recipe_core.request.over_time import Start
from recipe_core.request.scaling import Scaling
from recipe_core.request.supervision import Supervision

POD_SHARE = 0.95  # of a node's memory that pods may have; the rest is the node's own (assumed)
NAME_ONE = "Name one with a tag or a digest."


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image.

    ``reference`` has a tag that is never ``latest``; its ``digest`` is there where it is known.
    """

    reference: str
    digest: str | None = None

    @property
    def pinned(self) -> str:
        """Say what a manifest names: by digest when there is one."""
        return f"{self.reference}@{self.digest}" if self.digest else self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A recipe as targets see it.

    ``name`` is a DNS label. ``devices_per_node`` of ``device`` (a profile's name, or that of the
    shipped device as which a profile of one's own is known; ``device_names``: what else it is
    called, by its driver too) are used in each of ``launch.nodes`` nodes, of ``vendor`` (nvidia,
    amd, intel, cpu) and ``runtime`` (cuda, rocm, cpu). ``image`` is None where no container is
    known. ``weights_bytes``: of the whole checkpoint. ``estimate`` and ``limits`` are the recipe's
    (for thresholds). ``workload`` is the request's. ``files``: what processes read from the bundle
    besides ``launch.files`` (a trainer's program), by path. ``install``: the shell command that
    installs the engine where there is no container. ``no_image``: what to do where none is known.
    ``supervision``: the request's, for every controller. ``scaling``: the request's policy, in
    servers; None where autoscalers derive theirs from the estimate. ``start``: what a new copy
    finds, the request's too; ``weight_dtype``: the format its weights are in. ``network`` joins
    nodes in the estimate (a profile's name and title); ``rack_scale``: so does a rack's own fabric.
    ``apart``: whether processes of one node run in pods that may be on several.
    ``offloaded_bytes_per_device``: host memory that holds blocks of the cache.
    ``makes_checkpoint``: whether the bundle makes the checkpoint that is served. ``spills``:
    whether blocks of the cache go to a folder on the nodes. ``spot``: who may take the devices
    back, where their price is spot; empty for a price of one's own. ``provider`` and ``instance``:
    whose machines the price is of, and their type, where an offer says so. ``slice_of``: where the
    devices are slices of ``device``.
    """

    name: str
    kind: Literal["serving", "training"]
    engine: str
    engine_version: str
    launch: Launch
    parameters: Parameters
    model: str
    device: str
    vendor: str
    runtime: str
    architecture: str
    devices_per_node: int
    device_memory_bytes: int
    host_memory_bytes: int | None
    image: Image | None
    weights_bytes: int
    estimate: dict[str, Any]
    workload: dict[str, Any]
    limits: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    install: str = ""
    no_image: str = NAME_ONE
    device_names: tuple[str, ...] = ()
    network: str | None = None
    network_title: str = ""
    rack_scale: bool = False
    apart: bool = False
    offloaded_bytes_per_device: float = 0.0
    supervision: Supervision = field(default_factory=Supervision)
    scaling: Scaling | None = None
    start: Start = field(default_factory=Start)
    weight_dtype: str | None = None
    makes_checkpoint: bool = False
    spills: bool = False
    spot: str | None = None
    provider: str | None = None
    instance: str | None = None
    slice_of: SliceOf | None = None

    @property
    def devices_of_node(self) -> float:
        """Devices that a node has; infinity for a profile that is not shipped."""
        try:
            part = f"-{self.slice_of.name}" if self.slice_of else ""
            return device_profile(f"{self.device}{part}").node.devices
        except HardwareError:
            return math.inf

    def host_share_bytes(self, devices: int) -> int | None:
        """The host's memory that belongs to so many of a node's devices, None where not known.

        With all of them it leaves some for the node itself.
        """
        node_devices = self.devices_of_node
        if self.host_memory_bytes is None or not devices or node_devices == math.inf:
            return None
        return int(self.host_memory_bytes * min(devices / node_devices, POD_SHARE))

    @property
    def simulated(self) -> bool:
        """Return whether the request's policy was simulated over its load, as both are now."""
        simulation = self.estimate.get("scaling", {}).get("simulated")
        return simulation is not None and bool(simulation["current"])

    @property
    def nodes(self) -> int:
        return self.launch.nodes

    @property
    def api_key(self) -> ApiKey | None:
        """Return how the engine asks callers for a key; None where it asks nobody."""
        return engine(self.engine).api_key if self.kind == "serving" else None

    @property
    def key_variable(self) -> str | None:
        """The variable with the key that callers have to send; None where anybody is answered."""
        asks = self.parameters.api_key_secret and self.api_key
        return asks.variable if asks else None

    @property
    def time_limit_minutes(self) -> int | None:
        """Time limit of a start, in minutes; None where a scheduler's own applies."""
        limit_s = self.workload.get("time_limit_s")
        limit_minutes = self.parameters.time_limit_minutes
        return limit_minutes or (math.floor(limit_s / 60) or 1 if limit_s else None)

    @property
    def model_source(self) -> str:
        """Say what engines load: a folder on the nodes or a hub id."""
        return self.parameters.model or self.model

    @property
    def asks_for_weights(self) -> bool:
        return self.model_source == UNPLACED and self.launch.loads_model

    @property
    def node_files(self) -> tuple[str, ...]:
        """Files on the nodes that a run reads: its data, and the rule of its rewards."""
        rollout = self.workload.get("rollout") or {}
        paths = (self.workload.get("data"), rollout.get("reward_file"))
        return tuple(dict.fromkeys(path for path in paths if path))

    @property
    def model_is_folder(self) -> bool:
        return names_folder(self.model_source)

    @property
    def mounted(self) -> dict[str, str]:
        return self.launch.files | self.files
