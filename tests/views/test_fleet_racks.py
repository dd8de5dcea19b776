"""A placed fleet as racks of devices, and the changes that are suggested for it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import recipe_core as rb
from recipe_core.base.documents import parse_yaml
from recipe_core.base.resources import PACKAGE
from recipe_core.base.units import trimmed
from recipe_core.fleets.answer import Charge, CutDevices, FleetAnswer, NodeShare, Placement
from recipe_core.fleets.what_if import FleetChanges
from recipe_core.hardware.slices import list_slices
from recipe_core.views.charts.fleets import rack_picture, rack_style, team_costs
from recipe_core.views.fleet_changes import changed_document, suggest_changes
from recipe_core.views.fleet_racks import MOST_SINGLE, Racks, fill_racks

EXAMPLE = PACKAGE / "fleets" / "example.yaml"


def example() -> dict[str, Any]:
    values: dict[str, Any] = parse_yaml(EXAMPLE.read_text(encoding="utf-8"), "example.yaml")
    return values


@cache
def placed() -> FleetAnswer:
    return rb.fleet(example())


def cells(racks: Racks) -> list[str]:
    """Nodes as letters: the owner's first, ``.`` paid for and idle, ``-`` free or not rented."""
    signs = {"idle": ".", "free": "-", "unrented": "-"}
    return [
        " ".join(
            "".join(piece.owner or signs[piece.state] for piece in device)
            for device in node.devices
        )
        for node in racks.nodes
    ]


def with_placements(*placements: Placement, nodes: int = 2, **use: Any) -> FleetAnswer:
    """The example with these placements of its first model in its first pool, and no others."""
    answer = placed()
    model = replace(answer.models[0], placements=placements)
    values = {"used": {"day": 0.0}, "paid": {"day": 0.0}, "nodes": nodes, **use}
    pool = replace(answer.pools[0], **values)
    return replace(answer, models=(model,), pools=(pool,), periods={"day": 24.0})


def placement(number: int, nodes: dict[int, int], **changes: Any) -> Placement:
    first = placed().models[0].placements[0]
    shares = tuple(
        NodeShare(f"own-{k}", f"own-r{k % 2}", count, count * changes.get("devices_each", 1.0))
        for k, count in nodes.items()
    )
    return replace(
        first, replicas={"day": number}, nodes=shares, **{"devices_each": 1.0, **changes}
    )


def test_every_period_is_drawn_as_the_answer_counts_it():
    answer = placed()
    for period in answer.periods:
        for use in answer.pools:
            drawn = fill_racks(answer, use, period)
            assert all(len(node.devices) == use.per_node for node in drawn.nodes)
            owners = Counter(
                piece.owner
                for node in drawn.nodes
                for device in node.devices
                for piece in device
                if piece.owner
            )
            expected: Counter[str] = Counter()
            for name, part in answer.placements():
                if part.pool == use.name:
                    expected[name] += round(part.replicas[period] * part.devices_each)
            assert owners == +expected
            assert len({node.rack for node in drawn.nodes}) == min(use.racks, len(drawn.nodes))


def test_fewer_replicas_of_another_period_are_spread_as_all_of_them():
    """Else one node that fails would take all of a model whose headroom spans nodes."""
    night = fill_racks(placed(), placed().pools[0], "night")
    owners = [{piece.owner for device in node.devices for piece in device} for node in night.nodes]
    assert all({"chat", "search"} <= names for names in owners)


def test_a_replica_keeps_its_node_and_one_that_the_period_adds_stands_where_there_is_room():
    answer = with_placements(
        placement(1, {1: 1}, devices_each=4.0),
        placement(2, {}, devices_each=8.0),
        nodes=3,
        used={"day": 20.0},
        paid={"day": 24.0},
    )
    assert cells(fill_racks(answer, answer.pools[0], "day")) == [
        " ".join(["chat"] * 8),
        " ".join(["chat"] * 8),
        " ".join(["chat"] * 4 + ["."] * 4),
    ]


def test_slices_fill_devices_that_are_cut_and_the_rest_of_them_is_paid_for_and_idle():
    cut = CutDevices(
        2, {"3g.40gb": 1, "1g.10gb": 2}, {"3g.40gb": 1, "1g.10gb": 3}, {"pool-0": 1, "pool-1": 1}
    )
    answer = with_placements(
        placement(1, {0: 1}, slice="3g.40gb", devices_each=0.5),
        placement(3, {0: 1, 1: 2}, slice="1g.10gb", devices_each=0.14),
        cuts=(cut,),
        used={"day": 2.0},
        paid={"day": 2.0},
    )
    drawn = fill_racks(answer, answer.pools[0], "day")
    assert [text.split()[0] for text in cells(drawn)] == ["chatchat.", ".chatchat"]
    assert [text.split()[1:] for text in cells(drawn)] == [["-"] * 7] * 2
    picture = rack_picture(answer, "day")
    shares = {part.name: part.share for part in list_slices("h100-sxm")}
    (width,) = set(re.findall(r'class="fleet-cut" style="width: (\d+)px"', picture))
    drawn_shares = [float(text) for text in re.findall(r'<b style="flex-grow: ([\d.]+)"', picture)]
    expected = [shares[name] for name in ("3g.40gb", "1g.10gb", "1g.10gb")] * 2
    assert drawn_shares == pytest.approx(expected, abs=1e-4)
    assert min(drawn_shares) * int(width) == pytest.approx(16, abs=0.1)  # room for a letter


def test_models_that_sleep_share_a_device_and_padding_of_a_node_is_no_free_device():
    first = with_placements(
        placement(1, {0: 1}, shared=True),
        placement(1, {0: 1}, devices_each=3.0),
        used={"day": 5.0},
        paid={"day": 5.0},
    )
    blocked = replace(first.models[0].placements[1], nodes=(NodeShare("own-0", "own-r0", 1, 4.0),))
    sleeper = first.models[0].placements[0]
    models = (
        replace(first.models[0], placements=(sleeper, blocked)),
        replace(first.models[0], name="code", placements=(sleeper,)),
    )
    answer = replace(first, models=models)
    assert cells(fill_racks(answer, answer.pools[0], "day"))[0] == (
        "chat chat chat chatcode . - - -"
    )
    parts = re.findall(
        r'<b style="flex-grow: ([\d.]+)" class="fleet-m\d" title="([^"]*)">(\w)</b>',
        rack_picture(answer, "day"),
    )
    text = "own-0: chat, code: they sleep and wake in turn"
    assert parts == [("0.5000", text, "A"), ("0.5000", text, "B")]


def test_large_pools_are_folded_and_no_text_of_a_user_is_markup():
    answer = with_placements(placement(1, {3: 1}), nodes=4000, used={"day": 1.0}, paid={"day": 1.0})
    drawn = fill_racks(answer, answer.pools[0], "day")
    assert len(drawn.nodes) < MOST_SINGLE
    assert sum(node.count for node in drawn.nodes) + drawn.undrawn == 4000
    evil = replace(answer, models=(replace(answer.models[0], name="<b>&"),))
    picture = rack_picture(evil, "day")
    assert "<b>&" not in picture
    assert "&lt;b&gt;&amp;" in picture
    assert len(picture) < 20_000


def test_colours_of_cells_have_texts_that_are_read_and_letters_tell_models_apart():
    for dark in (False, True):
        style = rack_style(dark=dark)
        pairs = re.findall(r"background: (#\w{6}); color: (#\w{6})", style)
        assert len(pairs) == 8
        for ground, ink in pairs:
            assert contrast(ground, ink) >= 4.5
    picture = rack_picture(placed(), "day")
    assert set(re.findall(r'title="[^"]*: (\w+): TP[^"]*">(\w)<', picture)) == {
        ("chat", "A"),
        ("search", "B"),
    }
    used = trimmed(placed().pools[0].used["day"])
    assert f'aria-label="Devices of own: 2 × 8 H100 SXM5, owned, {used} in use"' in picture


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        shares = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_bars_of_teams_are_the_charges_and_what_nobody_uses_is_said():
    idle = Charge(None, None, None, 2.0, 1460.0, 1.0, ())
    bars = team_costs((*placed().charges, idle)).data
    assert [list(bar.y) for bar in bars] == [["assistants", "retrieval"], ["paid for, and idle"]]
    assert sum(sum(bar.x) for bar in bars) == pytest.approx(placed().usd_per_month + 1460.0)


def test_a_change_that_is_taken_touches_only_what_differs():
    values = example()
    changes = {
        "lose_nodes": {"own": 1},
        "prices": {"cloud": 3.5},
        "loads": {"chat": 1.25},
    }
    out = changed_document(values, FleetChanges.parse(changes))
    assert values == example()
    expected = example()
    expected["pools"][0]["nodes"] = 1
    expected["pools"][1]["usd_per_device_hour"] = 3.5
    expected["models"][0]["workload"]["request_rate"] = 30
    assert out == expected


def test_suggested_changes_are_of_what_the_fleet_has():
    chips = suggest_changes(placed())
    assert list(chips) == [
        "Lose a node of own",
        "Lose a node of cloud",
        "+25 % load of chat",
        "+25 % load of search",
        "+20 % price of own",
        "+20 % price of cloud",
        "3 months of growth",
    ]
    for changes in chips.values():
        changes.apply(placed().request)
    no_growth = {name: part for name, part in example().items() if name != "growth"}
    racks = {**no_growth, "pools": [{**no_growth["pools"][0], "nodes": 4}]}
    labels = list(suggest_changes(rb.fleet(racks)))
    assert labels[1] == "Lose a rack of own"
    assert "3 months of growth" not in labels
