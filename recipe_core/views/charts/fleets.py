"""A placed fleet as pictures: racks of devices filled by model, and money by team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

import plotly.graph_objects as go
from markupsafe import Markup

from recipe_core.base.units import significant, trimmed
from recipe_core.fleets.answer import Charge, FleetAnswer
from recipe_core.hardware.cluster import chip_title, device_profile
from recipe_core.views.charts.style import LIGHT, PLAIN, Drawing, axis, categories, mix, palette
from recipe_core.views.fleet_racks import Device, Node, Piece, Racks, fill_racks, letter_owners

Marks = Mapping[str, tuple[str, int]]
# Nodes, or rows of nodes that are filled alike, in a picture.
MOST_ROWS = 240
# Width of a device, large in fleets of up to so many.
LARGE_PX, SMALL_PX, MOST_LARGE = 34, 24, 160
# Colours of models, then again; letters tell all of them apart.
HUES = len(LIGHT.groups)
# Characters of a team, project and cost centre beside their bar.
LONGEST_NAME = 48
TERMS = {
    "owned": "owned",
    "reserved": "reserved",
    "on-demand": "rented on demand",
    "spot": "spot",
}
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
    """Who pays: team, project and cost centre as far as they are stated."""
    names = [name for name in (charge.team, charge.project, charge.cost_centre) if name]
    text = " · ".join(names) or ("no team" if charge.models else "paid for, and idle")
    return escape(text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]} …")


# --- racks


def rack_style(answer: FleetAnswer, *, dark: bool = False) -> str:
    """The style of the picture of racks: a colour for each model, hatches for what is idle."""
    colours = palette(dark)
    fills = "\n".join(
        f".fleet-m{k} {{background: {colour}; color: {_readable_on(colour)}}}"
        for k, colour in enumerate(colours.groups)
    )
    faint = mix(colours.paper, colours.muted, 0.55)
    size = LARGE_PX if sum(use.devices for use in answer.pools) <= MOST_LARGE else SMALL_PX
    return f"""<style>
ul.fleet-legend {{display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 8px; padding: 0;
  list-style: none}}
ul.fleet-legend > li {{display: flex; align-items: center; gap: 6px; margin: 0; padding: 0}}
.fleet-racks, .fleet-rack {{display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: flex-start}}
.fleet-rack {{border-left: 2px solid {faint}; padding: 2px 0 2px 10px}}
.fleet-rack > .fleet-name {{flex-basis: 100%}}
.fleet-pool {{margin: 14px 0 4px}}
.fleet-node {{max-width: 100%}}
.fleet-name {{display: block; font-size: 12px; line-height: 1.4}}
.fleet-devices {{display: flex; flex-wrap: wrap; row-gap: 3px; margin-left: -3px;
  max-width: {8 * (size + 3) + 1}px}}
.fleet-devices > i, .fleet-legend i {{box-sizing: border-box; width: {size}px; height: {size}px;
  margin-left: 3px; border: 1.5px solid {colours.muted}; border-radius: 4px; overflow: hidden;
  font: 600 13px/{size - 3}px system-ui, sans-serif; text-align: center}}
.fleet-legend i {{margin: 0}}
.fleet-devices > i.fleet-on {{margin-left: 0; width: {size + 3}px; border-left: 0;
  border-top-left-radius: 0; border-bottom-left-radius: 0; padding-left: 3px}}
.fleet-devices > i.fleet-first {{border-top-right-radius: 0; border-bottom-right-radius: 0}}
.fleet-devices > i.fleet-cut {{display: flex; width: auto; padding: 0}}
.fleet-cut > b {{min-width: 16px; flex: 1; border-right: 1.5px solid {colours.muted}}}
.fleet-cut > b:last-child {{border-right: 0}}
.fleet-idle {{background: repeating-linear-gradient(45deg, {faint} 0 2px, transparent 2px 6px)}}
.fleet-free {{background: transparent}}
.fleet-devices > i.fleet-unrented, .fleet-legend i.fleet-unrented {{border-style: dashed;
  border-color: {faint}}}
{fills}
</style>"""


def _readable_on(colour: str) -> str:
    """Black or white, whichever has more contrast on a colour (WCAG 2.2)."""
    shares = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#FFFFFF"


def rack_picture(answer: FleetAnswer, period: str) -> str:
    """Racks and nodes of every pool in a period, each device a cell with the letter of its model.

    Cells that are joined are one replica. Every text is escaped.
    """
    marks, room = letter_owners(answer), MOST_ROWS
    racks = [fill_racks(answer, use, period) for use in answer.pools]
    parts = [_legend(racks, marks)]
    for pool in racks:
        device = answer.request.pool(pool.use.name).device
        title = chip_title(device_profile(device))
        parts.append(_pool(pool, title, pool.nodes[: max(room, 0)], marks))
        room -= len(pool.nodes)
    if room < 0:
        text = f"{-room} more rows of nodes are not drawn; the tables have all of them."
        parts.append(Markup("<p>{}</p>").format(text))
    return str(Markup("\n").join(parts))


def _legend(racks: Sequence[Racks], marks: Marks) -> Markup:
    devices = dict.fromkeys(marks, 0.0)
    states = set[str]()
    for piece, share, count in _iter_pieces(racks):
        for owner in piece.owners:
            devices[owner] += count * share / len(piece.owners)
        if not piece.owners:
            states.add(piece.state)
    rows = [
        _row(f"fleet-m{marks[name][1] % HUES}", marks[name][0], f"{name}, {trimmed(number)}")
        for name, number in devices.items()
        if number
    ]
    rows += [_row(f"fleet-{state}", "", STATES[state]) for state in STATES if state in states]
    return Markup('<ul class="fleet-legend">{}</ul>').format(Markup("").join(rows))


def _row(look: str, letter: str, text: str) -> Markup:
    return Markup('<li><i class="{}" aria-hidden="true">{}</i>{}</li>').format(look, letter, text)


def _iter_pieces(racks: Sequence[Racks]) -> list[tuple[Piece, float, int]]:
    """Every piece with its share of a device and the nodes that have it."""
    return [
        (piece, 1 / len(device), node.count)
        for pool in racks
        for node in pool.nodes
        for device in node.devices
        for piece in device
    ]


def _pool(pool: Racks, title: str, nodes: Sequence[Node], marks: Marks) -> Markup:
    use = pool.use
    used = sum(count * share for piece, share, count in _iter_pieces([pool]) if piece.owners)
    text = f"{use.nodes} × {use.per_node} {title}, {TERMS[use.term]}, {trimmed(used)} in use"
    rest = "not rented" if use.term in ("on-demand", "spot") else "free"
    if pool.undrawn:
        noun = "node is" if pool.undrawn == 1 else "nodes are"
        text += f"; {pool.undrawn:,} {'more ' if pool.nodes else ''}{noun} {rest}"
    drawn = [
        _rack(rack, [*members], use.racks > 1, marks)
        for rack, members in groupby(nodes, key=lambda node: node.rack)
    ]
    spoken = f"Devices of {use.name}: {text}"
    return Markup(
        '<p class="fleet-pool"><strong>{}</strong> {}</p>'
        '<div class="fleet-racks" role="img" aria-label="{}">{}</div>'
    ).format(use.name, text, spoken, Markup("").join(drawn))


def _rack(number: int, nodes: Sequence[Node], several: bool, marks: Marks) -> Markup:
    drawn = Markup("").join(_node(node, marks) for node in nodes)
    if not several:
        return drawn
    return Markup('<div class="fleet-rack"><span class="fleet-name">rack {}</span>{}</div>').format(
        number, drawn
    )


def _node(node: Node, marks: Marks) -> Markup:
    name = node.name if node.count == 1 else f"{node.name} … {node.last} ({node.count} alike)"
    cells = [
        _cell(device, later, name, marks)
        for device, later in zip(node.devices, [*node.devices[1:], ()], strict=True)
    ]
    return Markup(
        '<div class="fleet-node"><span class="fleet-name">{}</span>'
        '<div class="fleet-devices">{}</div></div>'
    ).format(name, Markup("").join(cells))


def _cell(device: Device, later: Device, node: str, marks: Marks) -> Markup:
    if len(device) > 1 or device[0].slice is not None:
        parts = [_part("b", piece, "", node, marks) for piece in device]
        return Markup('<i class="fleet-cut">{}</i>').format(Markup("").join(parts))
    first = bool(later) and later[0].goes_on and not device[0].goes_on
    more = " fleet-on" if device[0].goes_on else " fleet-first" if first else ""
    return _part("i", device[0], more, node, marks)


def _part(tag: str, piece: Piece, more: str, node: str, marks: Marks) -> Markup:
    look = f"fleet-m{marks[piece.owners[0]][1] % HUES}" if piece.owners else f"fleet-{piece.state}"
    letters = "".join(marks[name][0] for name in piece.owners)
    markup = {
        "i": Markup('<i class="{}" title="{}">{}</i>'),
        "b": Markup('<b class="{}" title="{}">{}</b>'),
    }[tag]
    return markup.format(look + more, f"{node}: {piece.text}", letters)
