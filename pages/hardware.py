import common
import own_device
import parts
import price
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.provenance import Source
from recipe_core.base.units import gib, per_second, significant, usd
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.cluster import cluster, device, device_names, fabric, fabric_names, is_own
from recipe_core.hardware.detect.machine import detect
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.measured.support import support
from recipe_core.request.describe import hardware_name

VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "cpu": "CPU"}
COLOURS = {"nvidia": "green", "amd": "red", "intel": "blue", "cpu": "gray"}
FIRST = {"nvidia": "h100-sxm", "amd": "mi300x"}
LEVELS = {
    "measured": ("green", ":material/verified:"),
    "calibrated": ("blue", ":material/tune:"),
    "computed": ("orange", ":material/calculate:"),
    "unsupported": ("red", ":material/block:"),
}
AS_USUAL = ""
request = common.request()
chosen = device(request.hardware.device)
by_vendor = {
    vendor: [name for name in device_names() if device(name).vendor == vendor] for vendor in VENDORS
}
by_vendor = {vendor: names for vendor, names in by_vendor.items() if names}


def short(chip: Device) -> str:
    """A device as its profile calls it, without its vendor and what it is like."""
    if is_own(chip):
        return chip.name
    said = chip.title.split(",")[0].split("(")[0]
    return (
        said.removeprefix("NVIDIA ")
        .removeprefix("AMD ")
        .removeprefix("Intel ")
        .removeprefix("GeForce ")
        .strip()
    )


def source(found: Source) -> str:
    """A source as Markdown, linked where it has an address."""
    title = common.escape(found.title)
    return f"[{title}]({found.url})" if found.url else title


def devices() -> None:
    """Vendor and device."""
    common.choose(
        st.segmented_control,
        "Vendor",
        "_vendor",
        chosen.vendor,
        lambda vendor: (
            {}
            if vendor == chosen.vendor
            else {"hardware.device": FIRST.get(vendor, by_vendor[vendor][0])}
        ),
        options=list(by_vendor),
        format_func=VENDORS.get,
        required=True,
    )
    common.pick_device(
        st.pills, "Device", by_vendor[chosen.vendor], short, required=True, wrap=True
    )


def counts() -> None:
    """How many there are, and what joins them."""
    per_node, nodes = st.columns(2)
    inside, between = st.columns(2)
    with per_node:
        common.edit(
            st.number_input,
            "Devices per node",
            "hardware.per_node",
            min_value=1,
            max_value=1 << 20,
            step=1,
        )
    with nodes:
        common.edit(
            st.number_input, "Nodes", "hardware.nodes", min_value=1, max_value=1 << 20, step=1
        )
    networks = [name for name in fabric_names() if fabric(name).kind == "scale-out"]
    for place, label, field, usual, others in (
        (inside, "In a node", "fabric", chosen.node.fabric, chosen.node.alternatives),
        (between, "Between nodes", "network", chosen.node.network, networks),
    ):
        stated = getattr(request.hardware, field)
        with place:
            common.choose(
                st.selectbox,
                label,
                f"_{field}",
                stated or AS_USUAL,
                lambda name, field=field: {f"hardware.{field}": name or None},
                options=list(
                    dict.fromkeys(
                        [
                            AS_USUAL,
                            *(name for name in others if name != usual),
                            *([stated] if stated else []),
                        ]
                    )
                ),
                format_func=lambda name, usual=usual: (
                    fabric(name or usual).title + ("" if name else " (usual)")
                ),
            )


def known() -> None:
    """What the estimates on this device rest on."""
    found = support(chosen)
    colour, icon = LEVELS[found.level]
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(VENDORS[chosen.vendor], color=COLOURS[chosen.vendor])
            st.badge(found.level, color=colour, icon=icon)
            if is_own(chosen):
                st.badge("your profile", color="violet", icon=":material/upload_file:")
        st.markdown(f"**{common.escape(chosen.title)}**")
        st.caption(found.said)
        joined = cluster(request.hardware)
        cost = (
            "unknown"
            if joined.usd_per_device_hour is None
            else f"{usd(joined.usd_per_device_hour)} per device and hour"
        )
        rows = {
            "Engines": ", ".join(found.engines) or "none",
            "Published runs": f"{found.runs:,} come with the package" if found.runs else "none",
            **({"Known as": device(chosen.known_as).title} if chosen.known_as else {}),
            "In a node": joined.fabric.title,
            "Between nodes": joined.network.title,
            "Price": f"{cost} ({joined.price_basis})" if joined.price_basis else cost,
        }
        st.table(
            {name: common.escape(text) for name, text in rows.items()},
            border="horizontal",
            alt="What is known of the device",
        )


def cards() -> None:
    """The device's main figures."""
    rate = next(
        (dtype for dtype in ("bf16", "fp16", "fp32") if dtype in chosen.peak_flops_per_s), "fp32"
    )
    with st.grid(4, min_column_width=150):
        st.metric(
            "Memory", gib(chosen.memory_bytes.value), border=True, help="As the driver reports it"
        )
        st.metric(
            "Memory bandwidth",
            per_second(chosen.memory_bandwidth_bytes_per_s.value, "B"),
            border=True,
        )
        st.metric(
            f"Dense {rate}",
            per_second(chosen.peak_flops_per_s[rate].value, "FLOP"),
            border=True,
            help="Without sparsity",
        )
        st.metric("Power limit", f"{significant(chosen.tdp_watts.value)} W", border=True)


def add_cluster(name: str) -> dict[str, object]:
    """One node of another device beside the request's."""
    other = HardwareRequest(device=name, per_node=device(name).node.devices)
    return {"options.hardware": (*request.options.hardware, other)}


def beside() -> None:
    """Other clusters, judged together with this one."""
    st.header("Side by side", anchor=False)
    others = request.options.hardware
    st.caption(
        "Other clusters are judged together with this one; every chart then shows which split is whose."
    )
    for n, other in enumerate(others):
        left, per_node, nodes, remove = st.columns([3, 1, 1, 1], vertical_alignment="bottom")
        left.markdown(
            f"**{common.escape(short(device(other.device)))}** · {common.escape(hardware_name(other))}"
        )
        for place, field, label in (
            (per_node, "per_node", "Devices per node"),
            (nodes, "nodes", "Nodes"),
        ):
            with place:
                common.choose(
                    st.number_input,
                    label,
                    f"_other_{n}_{field}",
                    getattr(other, field),
                    lambda value, n=n, field=field: {
                        "options.hardware": replaced(n, **{field: value})
                    },
                    min_value=1,
                    max_value=4096,
                    step=1,
                )
        dropped = {"options.hardware": tuple(each for k, each in enumerate(others) if k != n)}
        remove.button(
            "Remove",
            key=f"drop-{n}",
            icon=":material/close:",
            on_click=common.apply,
            args=(dropped,),
        )
    common.choose(
        st.selectbox,
        "Add a cluster",
        "_add",
        None,
        add_cluster,
        options=device_names(),
        index=None,
        format_func=lambda name: device(name).title,
        placeholder="Choose a device: one usual node of it is added",
    )


def replaced(n: int, **fields: object) -> tuple[HardwareRequest, ...]:
    """The other clusters with some fields of the n-th changed."""
    return tuple(
        each.model_copy(update=fields) if k == n else each
        for k, each in enumerate(request.options.hardware)
    )


def here() -> None:
    """What this machine is, read when asked for."""
    with st.expander("Detect this machine", icon=":material/troubleshoot:"):
        if not folders_allowed():
            st.info(
                "This server answers other machines too, so it does not describe its own. On yours, run: recipe hardware --detect",
                icon=":material/info:",
            )
            return
        if st.button("Read it", key="detect", icon=":material/search:"):
            with st.spinner("Asking the drivers"):
                st.session_state["detected"] = detect()
        if (found := st.session_state.get("detected")) is None:
            st.caption(
                "Asks the vendors' tools for devices, memory and links. Nothing is sent anywhere."
            )
            return
        named = device(found.matched).title if found.matched else "a device without a profile"
        st.markdown(
            f"**{found.count} × {common.escape(named)}**, found by {common.escape(found.matched_by or 'no rule')}."
        )
        for note in found.notes:
            st.caption(common.escape(note))
        if found.request:
            fields = {
                f"hardware.{name}": value for name, value in found.request["hardware"].items()
            }
            st.button(
                "Use this machine",
                key="use-detected",
                type=common.main_button(),
                on_click=common.apply,
                args=(fields,),
            )


def facts(chip: Device) -> None:
    """Every figure of the device with its status and source."""
    try:
        joined = cluster(request.hardware)
    except RecipeError:
        return
    rows = [
        ("Memory", gib(chip.memory_bytes.value), chip.memory_bytes, chip),
        *(
            [("Kept by the driver", gib(chip.reserved_bytes.value), chip.reserved_bytes, chip)]
            if chip.reserved_bytes
            else []
        ),
        (
            "Memory bandwidth",
            per_second(chip.memory_bandwidth_bytes_per_s.value, "B"),
            chip.memory_bandwidth_bytes_per_s,
            chip,
        ),
        *(
            (f"Dense rate, {dtype}", per_second(f.value, "FLOP"), f, chip)
            for dtype, f in chip.peak_flops_per_s.items()
        ),
        ("Power limit", f"{significant(chip.tdp_watts.value)} W", chip.tdp_watts, chip),
        (
            "Link in the node",
            per_second(joined.fabric.bandwidth_bytes_per_s.value, "B"),
            joined.fabric.bandwidth_bytes_per_s,
            joined.fabric,
        ),
        (
            "Link between nodes",
            per_second(joined.network.bandwidth_bytes_per_s.value, "B"),
            joined.network.bandwidth_bytes_per_s,
            joined.network,
        ),
    ]
    with st.expander("Device facts with their sources", icon=":material/fact_check:"):
        st.table(
            {
                "Fact": [name for name, _, _, _ in rows],
                "Value": [value for _, value, _, _ in rows],
                "Status": [figure.status for _, _, figure, _ in rows],
                "Source": [source(owner.sources[figure.source]) for _, _, figure, owner in rows],
                "Note": [common.escape(figure.note or "") for _, _, figure, _ in rows],
            },
            border="horizontal",
            hide_index=True,
            alt="Facts of the device, each with value, status and source",
        )


parts.head("Where will it run?")
left, right = st.columns([3, 2], gap="large")
with left:
    devices()
    counts()
    price.draw()
with right:
    known()
cards()
own_device.draw(chosen, short(chosen))
if not common.training():
    beside()
here()
facts(chosen)
