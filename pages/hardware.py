from collections.abc import Sequence
from typing import Any

import _common as common
import _numbers as numbers
import _own_device as own_device
import _panels as panels
import _price as price
import _session as session
import _size_filters as filters
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.provenance import Source
from recipe_core.base.units import gib, per_second, significant, usd
from recipe_core.doors.serve import folders_allowed
from recipe_core.engines.spec import engine
from recipe_core.estimates.measured.support import device_support
from recipe_core.hardware.cluster import (
    cluster,
    device_names,
    device_profile,
    fabric,
    fabric_names,
    is_own,
    short_title,
)
from recipe_core.hardware.detect.machine import detect_machine
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.describe import hardware_name
from recipe_core.request.edit import range_of
from recipe_core.views.glossary import field_help

COLOURS = {
    "nvidia": "green",
    "amd": "red",
    "intel": "blue",
    "apple": "violet",
    "google": "yellow",
    "aws": "orange",
    "cpu": "gray",
}
LEVELS = {
    "measured": ("green", ":material/verified:"),
    "calibrated": ("blue", ":material/tune:"),
    "computed": ("orange", ":material/calculate:"),
    "unsupported": ("red", ":material/block:"),
}
DEFAULT = ""
request = session.request()
chip = device_profile(request.hardware.device)


def source_markdown(source: Source) -> str:
    title = common.escape(source.title)
    return f"[{title}]({source.url})" if source.url else title


def draw_links() -> None:
    """Ask for the links inside a node and between nodes, where they are not the usual ones."""
    inside, between = st.columns(2)
    networks = [name for name in fabric_names() if fabric(name).kind == "scale-out"]
    with inside:
        pick_fabric("In a node", "fabric", chip.node.fabric, chip.node.alternatives)
    with between:
        pick_fabric("Between nodes", "network", chip.node.network, networks)


def pick_fabric(label: str, field: str, default: str, alternatives: Sequence[str]) -> None:
    current = getattr(request.hardware, field)
    names = [DEFAULT, *(name for name in alternatives if name != default)]
    if current and current not in names:
        names.append(current)
    common.draw_choice(
        st.selectbox,
        label,
        f"_{field}",
        current or DEFAULT,
        lambda name: {f"hardware.{field}": name or None},
        options=names,
        format_func=lambda name: fabric(name).title if name else "As usual for the device",
    )


def draw_device_evidence() -> None:
    basis = device_support(chip)
    colour, icon = LEVELS[basis.level]
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(filters.VENDORS[chip.vendor], color=COLOURS[chip.vendor])
            st.badge(basis.level, color=colour, icon=icon)
            if is_own(chip):
                st.badge("your profile", color="violet", icon=":material/upload_file:")
        st.markdown(f"**{common.escape(chip.title)}**")
        st.caption(common.escape(basis.basis_text))
        joined = cluster(request.hardware)
        rows = {
            "Engines": ", ".join(engine(name).title for name in basis.engines) or "none",
            "Published runs": f"{basis.runs:,} in this package" if basis.runs else "none",
            **({"Known as": device_profile(chip.known_as).title} if chip.known_as else {}),
            "In a node": joined.fabric.title,
            "Between nodes": joined.network.title,
            "Price": joined.price_text(),
        }
        common.draw_facts(rows, "What is known about the device")


def draw_device_cards() -> None:
    rate = next(
        (dtype for dtype in ("bf16", "fp16", "fp32") if dtype in chip.peak_flops_per_s), "fp32"
    )
    with st.grid(4, min_column_width=150):
        st.metric("Memory", gib(chip.memory_bytes.value), border=True)
        st.metric(
            "Memory bandwidth",
            per_second(chip.memory_bandwidth_bytes_per_s.value, "B"),
            border=True,
        )
        st.metric(
            f"Dense {rate}", per_second(chip.peak_flops_per_s[rate].value, "FLOP"), border=True
        )
        st.metric("Power limit", f"{significant(chip.tdp_watts.value)} W", border=True)


def add_cluster(name: str) -> dict[str, object]:
    """One node of another device beside the request's."""
    cluster = HardwareRequest(device=name, per_node=device_profile(name).node.devices)
    return {"options.hardware": (*request.options.hardware, cluster)}


def draw_other_clusters() -> None:
    st.caption("Other clusters are evaluated together with this one; every chart tells them apart.")
    with numbers.group_boxes("clusters"):
        for n, cluster in enumerate(request.options.hardware):
            with st.container(key=f"cluster-{n}"):
                other_cluster(n, cluster)
    common.draw_choice(
        st.selectbox,
        "Add a cluster",
        "_add",
        None,
        add_cluster,
        options=sorted(device_names()),
        index=None,
        format_func=lambda name: device_profile(name).title,
        placeholder="Pick a device to add one standard node of it",
    )


def other_cluster(n: int, cluster_request: HardwareRequest) -> None:
    """The n-th other cluster: its size and price, and a button that removes it."""
    title_column, counts, remove = st.columns([2, 4, 1], vertical_alignment="bottom")
    name = common.escape(short_title(device_profile(cluster_request.device)))
    title_column.markdown(f"**{name}** · {common.escape(hardware_name(cluster_request))}")

    def box(label: str, field: str, **options: Any) -> None:
        numbers.box(
            label,
            f"_other_{n}_{field}",
            getattr(cluster_request, field),
            lambda value: session.change_to(
                {"options.hardware": replace_cluster_field(n, field, value)}
            ),
            range_of(f"options.hardware.0.{field}"),
            name=f"{label} of {short_title(device_profile(cluster_request.device))}",
            help=field_help(f"hardware.{field}"),
            **options,
        )

    with counts, st.grid(3, min_column_width=120):
        box("Devices per node", "per_node")
        box("Nodes", "nodes")
        offered = cluster(cluster_request).usd_per_device_hour
        box(
            "$ per device-hour",
            "usd_per_device_hour",
            optional=True,
            unit="$",
            placeholder="unknown" if offered is None else f"offer: {usd(offered)}",
        )
    rest = tuple(place for k, place in enumerate(request.options.hardware) if k != n)
    remove.button(
        "Remove",
        key=f"drop-{n}",
        icon=":material/close:",
        on_click=session.apply_changes,
        args=({"options.hardware": rest},),
    )


def replace_cluster_field(n: int, field: str, value: object) -> tuple[HardwareRequest, ...]:
    """The other clusters with a field of the n-th changed; a price of its own drops its offer."""
    clusters = list(request.options.hardware)
    fields = {field: value, **({"offer": None} if field == "usd_per_device_hour" else {})}
    clusters[n] = clusters[n].model_copy(update=fields)
    return tuple(clusters)


def draw_detection() -> None:
    with st.expander("Detect this machine", icon=":material/troubleshoot:"):
        if not folders_allowed():
            st.info(
                "This server also answers other machines, so it does not describe its own. "
                "On your machine, run: recipe hardware --detect",
                icon=":material/info:",
            )
            return
        if st.button("Detect", key="detect", icon=":material/search:"):
            with st.spinner("Querying the drivers"):
                st.session_state["detected"] = detect_machine()
        machine = st.session_state.get("detected")
        if machine is None:
            st.caption(
                "Queries the vendors' tools for devices, memory and links. "
                "Nothing leaves this machine."
            )
            return
        title = (
            device_profile(machine.matched).title
            if machine.matched
            else "a device without a profile"
        )
        rule = common.escape(machine.matched_by or "no rule")
        st.markdown(f"**{machine.count} × {common.escape(title)}**, identified by {rule}.")
        for note in machine.notes:
            st.caption(common.escape(note))
        if machine.request:
            hardware = machine.request["hardware"]
            common.edit_button(
                "Use this machine",
                "use-detected",
                {f"hardware.{name}": value for name, value in hardware.items()},
                type="primary",
            )


def draw_device_facts(chip: Device) -> None:
    try:
        joined = cluster(request.hardware)
    except RecipeError:
        return
    rows = [("Memory", gib(chip.memory_bytes.value), chip.memory_bytes, chip)]
    if chip.reserved_bytes:
        reserved = gib(chip.reserved_bytes.value)
        rows.append(("Reserved by the driver", reserved, chip.reserved_bytes, chip))
    rates = {
        "Memory bandwidth": (chip.memory_bandwidth_bytes_per_s, "B", chip),
        **{f"Dense {dtype}": (peak, "FLOP", chip) for dtype, peak in chip.peak_flops_per_s.items()},
        "Link in the node": (joined.fabric.bandwidth_bytes_per_s, "B", joined.fabric),
        "Link between nodes": (joined.network.bandwidth_bytes_per_s, "B", joined.network),
    }
    rows += [
        (name, per_second(quantity.value, unit), quantity, owner)
        for name, (quantity, unit, owner) in rates.items()
    ]
    rows.append(("Power limit", f"{significant(chip.tdp_watts.value)} W", chip.tdp_watts, chip))
    with st.expander("Device figures with sources", icon=":material/fact_check:"):
        common.draw_cells(
            {
                "Figure": [name for name, _, _, _ in rows],
                "Value": [value for _, value, _, _ in rows],
                "Status": [quantity.status for _, _, quantity, _ in rows],
                "Source": [
                    source_markdown(owner.sources[quantity.source])
                    for _, _, quantity, owner in rows
                ],
                "Note": [common.escape(quantity.note or "") for _, _, quantity, _ in rows],
            },
            "Figures of the device, each with value, status and source",
        )


def draw_chosen() -> None:
    """Draw what is known about the chosen device, its price, and what few need."""
    draw_device_cards()
    if chip.caveat:
        st.info(common.escape(chip.caveat), icon=":material/campaign:")
    with st.expander("Price", icon=":material/payments:", key="price"):
        price.draw_price()
    with st.expander("More about the hardware", icon=":material/tune:", key="more-hardware"):
        draw_rarely_needed()


def draw_rarely_needed() -> None:
    """Draw what few need: links, other clusters, devices that are not listed, figures' sources."""
    st.markdown("**Links between devices**")
    draw_links()
    st.markdown("**Compare with other clusters**")
    draw_other_clusters()
    own_device.draw_profile_upload(chip, short_title(chip))
    draw_detection()
    draw_device_facts(chip)


widgets.draw_page_head("Hardware")
choice_column, evidence_column = st.columns([3, 2], gap="large")
with choice_column:
    panels.draw_hardware_choice()
if session.hardware_is_open():
    with (
        choice_column,
        st.expander(
            "More filters and own machines",
            icon=":material/filter_alt:",
            key="size-more",
            on_change="rerun",
        ) as more,
    ):
        if more.open:
            filters.draw_size_filters()
else:
    with evidence_column:
        draw_device_evidence()
    draw_chosen()
