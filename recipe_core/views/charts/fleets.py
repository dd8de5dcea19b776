"""A placed fleet as pictures: racks of devices filled by model, and money by team."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from recipe_core.base.units import significant, trimmed
from recipe_core.fleets.answer import Charge, FleetAnswer
from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.views.charts.style import LIGHT, PLAIN, Drawing, axis, categories, mix, palette
from recipe_core.views.fleet_racks import Racks, fill_racks, letter_owners
from recipe_core.views.fleets import RENTED
from recipe_core.views.texts import read_html_template

# Nodes, or rows of nodes that are filled alike, in a picture.
MOST_ROWS = 240
# Widths of a device, and of a letter, which the smallest slice of a device has room for.
DEVICE_PX, LETTER_PX = 34, 16
# Colours of models, then again; letters tell all of them apart.
HUES = len(LIGHT.groups)
# Characters of a team, project and cost centre beside their bar.
LONGEST_NAME = 48
STATES = {
    "idle": "paid for, and idle",
    "free": "free",
    "unrented": "not rented",
}


def team_costs(charges: Sequence[Charge], *, dark: bool = False) -> go.Figure:
    """Costs of a month by team, project and cost centre, as bars; what nobody uses in grey."""
    draw = Drawing(dark=dark)
    for names, look in ((True, 0), (False, {"color": draw.colours.muted})):
        rows = [charge for charge in charges if bool(charge.models) == names]
        if not rows:
            continue
        values = [charge.usd_per_month for charge in rows]
        texts = [f"${value:,.0f}" if value >= 100 else f"${significant(value)}" for value in values]
        about = [escape(", ".join(charge.models)) or "nobody" for charge in rows]
        hover = "%{y}<br>%{text} a month<br>%{customdata}"
        labels = [payer_name(charge) for charge in rows]
        draw.bars(None, labels, values, look, hover, about, **draw.labels(texts))
    highest = max((charge.usd_per_month for charge in charges), default=0.0)
    across = axis("$ a month", range=[0, highest * 1.3 or 1])
    return draw.set_axes(across, categories(), 90 + 34 * len(charges), PLAIN)


def payer_name(charge: Charge) -> str:
    """Return who pays: team, project and cost centre as far as they are stated."""
    names = [name for name in (charge.team, charge.project, charge.cost_centre) if name]
    text = " · ".join(names) or ("no team" if charge.models else "paid for, and idle")
    return escape(text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]} …")


# --- racks


def rack_style(*, dark: bool = False) -> str:
    """The style of the picture of racks: a colour for each model, hatches for what is idle."""
    colours = palette(dark)
    return read_html_template("fleet_racks.css.j2").render(
        colours=colours,
        faint=mix(colours.paper, colours.muted, 0.55),
        size=DEVICE_PX,
        fills=[(colour, _readable_on(colour)) for colour in colours.groups],
    )


def _readable_on(colour: str) -> str:
    """Black or white, whichever has more contrast on a colour (WCAG 2.2)."""
    shares = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#FFFFFF"


def rack_picture(answer: FleetAnswer, period: str) -> str:
    """Racks and nodes of every pool in a period, each device a cell with the letter of its model.

    Cells that are joined are one replica; slices have their shares of a cell. Every text is
    escaped.
    """
    room, pools, numbers = MOST_ROWS, [], defaultdict[str, float](float)
    for use in answer.pools:
        racks = fill_racks(answer, use, period)
        _count_devices(racks, numbers)
        pools.append((use, _pool_text(racks, answer, period), racks.nodes[: max(room, 0)]))
        room -= len(racks.nodes)
    marks = letter_owners(answer)
    return read_html_template("fleet_racks.html.j2").render(
        pools=pools,
        marks=marks,
        hues=HUES,
        size=DEVICE_PX,
        letter=LETTER_PX,
        devices={name: trimmed(numbers[name]) for name in marks if numbers[name]},
        states={state: text for state, text in STATES.items() if numbers[f"-{state}"]},
        undrawn=-room,
    )


def _count_devices(racks: Racks, numbers: dict[str, float]) -> None:
    """Add devices by owner; those that nobody has by a dash and their state, which is no name."""
    for node in racks.nodes:
        for piece in (piece for device in node.devices for piece in device):
            numbers[piece.owner or f"-{piece.state}"] += node.count * piece.share


def _pool_text(racks: Racks, answer: FleetAnswer, period: str) -> str:
    """A pool in a line: nodes, devices, term, and how many are in use."""
    use, term = racks.use, "rented on demand" if racks.use.term == "on-demand" else racks.use.term
    title = chip_title(device_profile(answer.request.pool(use.name).device))
    used = trimmed(use.used.get(period, 0.0))
    text = f"{use.nodes} × {use.per_node} {title}, {term}, {used} in use"
    if not racks.undrawn:
        return text
    noun = "node is" if racks.undrawn == 1 else "nodes are"
    rest = STATES["unrented" if use.term in RENTED else "free"]
    return f"{text}; {racks.undrawn:,} {'more ' if racks.nodes else ''}{noun} {rest}"
