"""Finding devices, fabrics and price offers in ``hw_profiles/``, and putting them together as a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from recipe_core.documents import read_document
from recipe_core.errors import HardwareError, unknown
from recipe_core.hardware.profile import Device, DtypeFile, DtypeSupport, Fabric, Family, Offer, OfferFile, Priors, Roofline
from recipe_core.request import HardwareRequest
from recipe_core.resources import root

Model = TypeVar("Model", bound=BaseModel)
SHARED = ("priors", "dtypes")  # files of hw_profiles/ that are about every device


def _read(path: Path, schema: type[Model]) -> Model:
    try:
        return schema.model_validate(read_document(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise HardwareError(f"{path.name}: {where}: {first['msg']}.", field="hardware", hint="Correct the profile.") from None


def _named(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def device_names() -> list[str]:
    """The devices there are profiles of, sorted."""
    return [name for name in _named(root("hw_profiles")) if name not in SHARED]


@cache
def device(name: str) -> Device:
    """The profile of a device by its name or an alias; raises HardwareError naming close ones when there is none."""
    files = _named(root("hw_profiles"))
    wanted = name.casefold()
    if wanted not in device_names():
        wanted = _aliases().get(wanted, wanted)
    if wanted not in device_names():
        message, hint = unknown("device", name, device_names())
        raise HardwareError(message, field="hardware.device", hint=hint)
    return _read(files[wanted], Device)


@cache
def _aliases() -> dict[str, str]:
    return {alias.casefold(): name for name in device_names() for alias in device(name).aliases}


def fabric_names() -> list[str]:
    """The link technologies there are profiles of, sorted."""
    return list(_named(root("hw_profiles") / "fabrics"))


@cache
def fabric(name: str, field: str = "hardware.fabric") -> Fabric:
    """The profile of a link technology; raises HardwareError when there is none."""
    files = _named(root("hw_profiles") / "fabrics")
    if name not in files:
        message, hint = unknown("fabric", name, list(files))
        raise HardwareError(message, field=field, hint=hint)
    return _read(files[name], Fabric)


@cache
def offers() -> tuple[Offer, ...]:
    """All price offers, cheapest first."""
    files = _named(root("hw_profiles") / "offers").values()
    found = [offer for path in files for offer in _read(path, OfferFile).offers]
    return tuple(sorted(found, key=lambda offer: (offer.usd_per_device_hour, offer.name)))


@cache
def priors() -> Priors:
    """Roofline figures for devices without their own."""
    return _read(root("hw_profiles") / "priors.yaml", Priors)


@cache
def dtypes() -> DtypeFile:
    """What silicon and engines make of each weight format, by architecture."""
    return _read(root("hw_profiles") / "dtypes.yaml", DtypeFile)


@cache
def no_kernels(engine: str, architecture: str, dtype: str, writer: str) -> DtypeSupport | None:
    """The row that says an engine has no kernels for a weight format, as ``writer`` encodes it, on an architecture."""
    for row in dtypes().support:
        encoded = row.encoding is None or row.dtype != "int4" or (writer == "bitsandbytes") == row.encoding.startswith("bitsandbytes")
        if row.dtype == dtype and architecture in row.architectures and encoded and row.engines.get(engine) == "none":
            return row
    return None


def roofline(profile: Device, family: Family, *dtypes: str) -> Roofline:
    """The four numbers of an operator family.

    The device's own for the first of ``dtypes`` it has, else its own for any, else its runtime's prior.
    """
    own: dict[str, Roofline] = {str(dtype): shape for dtype, shape in profile.roofline.get(family, {}).items()}
    known = [own[dtype] for dtype in (*dtypes, "any") if dtype in own]
    return known[0] if known else priors().roofline[profile.runtime][family]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in nodes, what joins them, and what an hour of one costs (None: unknown).

    ``beyond`` joins the fabric's domains inside a node; None where a domain holds the node.
    """

    device: Device
    per_node: int
    nodes: int
    fabric: Fabric
    network: Fabric
    usd_per_device_hour: float | None
    price_basis: str | None
    beyond: Fabric | None = None
    asked: HardwareRequest | None = None

    @property
    def devices(self) -> int:
        """All devices."""
        return self.per_node * self.nodes

    @property
    def rack_scale(self) -> bool:
        """Whether the fabric joins devices of different nodes (NVL72), so that only its domain bounds a fast group."""
        return self.fabric.spans_nodes


def cluster(request: HardwareRequest) -> Cluster:
    """The cluster a request names.

    Raises:
        HardwareError: for an unknown device, fabric, network or offer, or more devices in a node than its fabric joins.
    """
    profile = device(request.device)
    inside = fabric(request.fabric or profile.node.fabric)
    if inside.kind != "scale-up":
        raise HardwareError(
            f"{inside.name!r} joins nodes, not devices in a node.", field="hardware.fabric", hint="Give it as network instead."
        )
    _check_domain(request, inside)
    price, basis = _price(request, profile)
    return Cluster(
        device=profile,
        per_node=request.per_node,
        nodes=request.nodes,
        fabric=inside,
        network=fabric(request.network or profile.node.network, "hardware.network"),
        usd_per_device_hour=price,
        price_basis=basis,
        asked=request,
        beyond=fabric(inside.beyond) if inside.beyond and inside.domain and request.per_node > inside.domain else None,
    )


def _check_domain(request: HardwareRequest, inside: Fabric) -> None:
    """Raise where a node holds more devices than one domain of its fabric and nothing is known to join the domains."""
    if inside.domain is None or inside.joins(request.per_node):
        return
    nodes = -(-request.per_node // inside.domain)
    raise HardwareError(
        f"{request.per_node} devices do not fit into one node: {inside.title} ({inside.name}) joins {inside.domain}.",
        field="hardware.per_node",
        hint=f"Say per_node: {-(-request.per_node // nodes)} with nodes: {nodes * request.nodes}, or name another fabric.",
    )


def _price(request: HardwareRequest, profile: Device) -> tuple[float | None, str | None]:
    """The stated price, the named offer, or the cheapest on-demand offer for the device."""
    if request.usd_per_device_hour is not None:
        if request.offer is not None:
            raise HardwareError("give either an offer or a price per device hour, not both.", field="hardware.offer")
        return request.usd_per_device_hour, "stated in the request"
    matching = [offer for offer in offers() if offer.device == profile.name]
    if request.offer is not None:
        chosen = next((offer for offer in matching if offer.name == request.offer), None)
        if chosen is None:
            message, hint = unknown(f"offer for {profile.name}", request.offer, [offer.name for offer in matching])
            raise HardwareError(message, field="hardware.offer", hint=hint)
    else:
        chosen = next((offer for offer in matching if offer.commitment == "on-demand"), None)
    return (chosen.usd_per_device_hour, f"{chosen.name}, {chosen.date}") if chosen else (None, None)
