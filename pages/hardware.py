import common
import streamlit as st

from recipe_core.hardware.catalog import cluster, device, device_names, offers, roofline
from recipe_core.hardware.profile import Source
from recipe_core.units import gib, per_second, significant, usd

VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "cpu": "CPU"}
FIRST = {"nvidia": "h100-sxm", "amd": "mi300x"}
CHEAPEST, OWN = "", "own price"

request = common.request()
chosen = device(request.hardware.device)
by_vendor = {vendor: [name for name in device_names() if device(name).vendor == vendor] for vendor in VENDORS}
by_vendor = {vendor: names for vendor, names in by_vendor.items() if names}
prices = {offer.name: offer for offer in offers() if offer.device == chosen.name}


def choose_vendor() -> None:
    """The vendor's usual device; a vendor that is clicked again stays."""
    vendor = st.session_state["_vendor"]
    if vendor and vendor != chosen.vendor:
        common.apply({"hardware.device": FIRST.get(vendor, by_vendor[vendor][0])})


def choose_price() -> None:
    """An offer, the cheapest, or a price of one's own that starts at the present one."""
    option = st.session_state["_price"]
    present = cluster(request.hardware).usd_per_device_hour
    common.apply(
        {
            "hardware.offer": option if option in prices else None,
            "hardware.usd_per_device_hour": (present or 1.0) if option == OWN else None,
        }
    )


def price_label(option: str) -> str:
    """An option of the price list."""
    if option == OWN:
        return "My own price"
    if option == CHEAPEST:
        return "Cheapest on-demand offer" if prices else "No offer known for this device"
    offer = prices[option]
    return f"{usd(offer.usd_per_device_hour)} per hour · {offer.name} · {offer.commitment} · {offer.date}"


def source(found: Source) -> str:
    """A source as Markdown, linked where it has an address."""
    title = common.escape(found.title)
    return f"[{title}]({found.url})" if found.url else title


common.head("Where will it run?")
left, right = st.columns([3, 2], gap="large")
with left:
    st.session_state["_vendor"] = chosen.vendor
    st.segmented_control("Vendor", list(by_vendor), format_func=VENDORS.get, key="_vendor", on_change=choose_vendor, required=True)
    common.edit(
        st.selectbox,
        "Device",
        "hardware.device",
        read=lambda _: chosen.name,
        options=by_vendor[chosen.vendor],
        format_func=common.device_title,
        help="Search by any part of the name.",
    )
    per_node, nodes = st.columns(2)
    with per_node:
        common.edit(st.number_input, "Devices per node", "hardware.per_node", min_value=1, max_value=1 << 20, step=1)
    with nodes:
        common.edit(st.number_input, "Nodes", "hardware.nodes", min_value=1, max_value=1 << 20, step=1)
    own = request.hardware.usd_per_device_hour is not None
    st.session_state["_price"] = OWN if own else request.hardware.offer or CHEAPEST
    st.selectbox("Price per device", [CHEAPEST, *prices, OWN], format_func=price_label, key="_price", on_change=choose_price)
    if own:
        common.edit(
            st.number_input, "My price ($ per device and hour)", "hardware.usd_per_device_hour", min_value=0.001, step=0.1, format="%.3f"
        )
with right:
    joined = cluster(request.hardware)
    grade = roofline(chosen, "gemm", "bf16")
    st.subheader("What the estimates rest on", anchor=False)
    if grade.status in ("fitted", "measured"):
        st.badge("fitted to measurements", color="green", icon=":material/check:")
        st.caption("The speed of matrix products, attention and experts was fitted to operator timings taken on this device.")
    else:
        st.badge("prior figures", color="orange", icon=":material/calculate:")
        st.caption("No operator timings of this device are known: its rates below count with usual efficiencies, so the bands are wider.")
    price = "unknown" if joined.usd_per_device_hour is None else f"{usd(joined.usd_per_device_hour)} per device and hour"
    st.table(
        {
            "In a node": f"{joined.fabric.title}",
            "Between nodes": f"{joined.network.title}",
            "Price": common.escape(f"{price} ({joined.price_basis})" if joined.price_basis else price),
        },
        border="horizontal",
        alt="Links and price",
    )

st.subheader("Device facts", anchor=False)
rows = [
    ("Memory", gib(chosen.memory_bytes.value), chosen.memory_bytes, chosen),
    *([("Kept by the driver", gib(chosen.reserved_bytes.value), chosen.reserved_bytes, chosen)] if chosen.reserved_bytes else []),
    ("Memory bandwidth", per_second(chosen.memory_bandwidth_bytes_per_s.value, "B"), chosen.memory_bandwidth_bytes_per_s, chosen),
    *((f"Dense rate, {dtype}", per_second(f.value, "FLOP"), f, chosen) for dtype, f in chosen.peak_flops_per_s.items()),
    ("Power limit", f"{significant(chosen.tdp_watts.value)} W", chosen.tdp_watts, chosen),
    ("Link in the node", per_second(joined.fabric.bandwidth_bytes_per_s.value, "B"), joined.fabric.bandwidth_bytes_per_s, joined.fabric),
    (
        "Link between nodes",
        per_second(joined.network.bandwidth_bytes_per_s.value, "B"),
        joined.network.bandwidth_bytes_per_s,
        joined.network,
    ),
]
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
