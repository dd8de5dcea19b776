"""What a buyer is shown unless a switch lets more in, and how it is ranked."""

import pytest

from recipe_core.hardware.cluster import cluster, device_names, device_profile
from recipe_core.hardware.market_places import is_on_market_place, market_places
from recipe_core.hardware.prices import all_offers, offers_of
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.open_hardware import market_of
from recipe_core.request.size import Market, SizeRequest
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.market import iter_device_choices, left_out_devices
from recipe_core.sizing.size import size_devices
from tests.corpus.world import DAY

OPEN = {"mode": "open", "input_tokens": 1024, "output_tokens": 256, "request_rate": 5}


def request(model="Qwen/Qwen3-8B", limits=None, workload=None, **market):
    values = {"model": model, "hardware": {"any": market}, "workload": workload or OPEN}
    return SizeRequest.parse(values | {"objective": {"limits": limits or {}}})


def choices(**market):
    return {choice.profile.name: choice for choice in iter_device_choices(request(**market))}


def offers_in(choice):
    named = {offer.name: offer for offer in offers_of(choice.profile)}
    return [named[m.hardware.offer] for m in choice.machines if m.hardware.offer]


def answer(*args, **parts):
    return Answer(size_devices(request(*args, **parts)), DAY).to_json()


def test_devices_for_data_centres_are_chosen_from_unless_others_are_let_in_or_named():
    found = choices()
    assert {choice.profile.segment for choice in found.values()} == {"data-centre"}
    left = {device.name: switch for device, switch in left_out_devices(request())}
    others = ("rtx-3090", "rtx-5090", "rtx-a6000", "jetson-agx-thor")
    assert {left[name] for name in others} == {"consumer_cards"}
    assert {left[name] for name in ("h20", "trainium2")} == {"unpriced"}
    assert not set(left) & set(found)
    processors = {name for name in device_names() if device_profile(name).vendor == "cpu"}
    everything = {"consumer_cards": True, "unpriced": True}
    assert set(choices(**everything)) == set(device_names()) - processors
    assert not left_out_devices(request(**everything))
    assert set(choices(devices=["rtx-5090", "h100-sxm"])) == {"rtx-5090", "h100-sxm"}
    apple = choices(vendors=["apple"], unpriced=True)  # a vendor of no other devices
    assert apple
    assert {choice.profile.vendor for choice in apple.values()} == {"apple"}
    assert "rtx-5090" not in choices(vendors=["nvidia"])


def test_market_places_rent_machines_of_others_and_count_where_let_in_or_named():
    providers = {offer.provider for offer in all_offers()}
    assert set(market_places()) <= providers
    community = [offer for offer in all_offers() if offer.provider == "RunPod"]
    assert {is_on_market_place(offer) for offer in community} == {True, False}
    for choice in choices().values():
        assert not any(map(is_on_market_place, offers_in(choice)))
    shown = [
        offer for choice in choices(market_places=True).values() for offer in offers_in(choice)
    ]
    assert any(map(is_on_market_place, shown))
    only = choices(providers=["Vast"])
    vast = [offer for choice in only.values() for offer in offers_in(choice)]
    assert vast
    assert all(map(is_on_market_place, vast))
    barred = choices(vendors=["nvidia"], consumer_cards=True)["rtx-3090"]
    assert not any(map(is_on_market_place, offers_in(barred)))


def test_prices_are_verified_and_new_or_the_device_is_marked_and_ranks_behind():
    found = choices()
    for choice in found.values():
        trusted = [offer.is_trusted() for offer in offers_in(choice)]
        assert choice.doubted == (bool(trusted) and not any(trusted))
        assert all(trusted) or not any(trusted)
    doubted = {name for name, choice in found.items() if choice.doubted}
    assert "a10g" in doubted
    older = choices(older_prices=True)
    assert not older["a10g"].doubted
    both = {"model": "meta-llama/Llama-3.3-70B-Instruct", "providers": ["TensorWave", "AWS"]}
    both["devices"] = ["mi300x", "h100-sxm"]
    first, second = answer(**both)["devices"]
    assert (first["device"], first["doubted"]) == ("h100-sxm", False)
    assert (second["device"], second["doubted"]) == ("mi300x", True)
    assert second["usd_per_month"] < first["usd_per_month"]  # by a price to doubt
    assert second["beats_best"] is None
    assert answer(**both, older_prices=True)["best"]["device"] == "mi300x"
    alone = answer(devices=["a10g"])
    assert alone["best"]["device"] == "a10g"
    assert alone["best"]["offer"]["marks"]


def test_hardware_that_was_found_costs_the_same_when_it_is_chosen():
    found = choices(consumer_cards=True)
    priced = {name for name in device_names() if offers_of(device_profile(name))}
    assert {name for name, choice in found.items() if choice.priced} == priced
    for name, choice in found.items():
        offered = offers_in(choice)
        for machine, offer in zip(choice.machines, offered, strict=bool(offered)):
            node = HardwareRequest(device=name, per_node=machine.hardware.per_node)
            holding = [each for each in offered if each.largest >= node.per_node]
            prices = {
                each.usd_per_device_hour * max(each.devices_per_node, node.per_node)
                for each in holding
            }
            chosen = cluster(node)
            paid = chosen.usd_per_device_hour * max(chosen.unit, node.per_node)
            assert (paid, chosen.offer in offered) == (min(prices), True), (name, offer.name)
    rows = answer(consumer_cards=True)["devices"]
    assert len(rows) > 20
    for row in rows:
        nodes = -(-row["count"] // row["per_node"])
        per_node = min(row["count"], row["per_node"])
        place = HardwareRequest(device=row["device"], per_node=per_node, nodes=nodes)
        assert cluster(place).offer.name == row["offer"]["name"], row["device"]


def test_replicas_stay_on_one_machine_unless_none_holds_there_or_they_may_span():
    model = "deepseek-ai/DeepSeek-V3"
    found = answer(model)
    rows = [rung for row in found["devices"] for rung in row["ladder"]]
    assert rows
    assert not any(row["spans"] for row in rows)
    assert "h100-sxm" in {row["device"] for row in found["refused"]}
    spanning = answer(model, several_machines=True, memory_bytes_at_least=80e9, vendors=["nvidia"])
    by_device = {row["device"]: row for row in spanning["devices"]}
    assert by_device["h100-sxm"]["spans"]
    assert by_device["h100-sxm"]["count"] > 8
    named = answer(model, devices=["h100-sxm", "mi300x"])["devices"]
    assert [(row["device"], row["spans"]) for row in named] == [
        ("mi300x", False),
        ("h100-sxm", True),
    ]
    nowhere = {"vendors": ["nvidia"], "largest_node": 2, "memory_bytes_at_least": 90e9}
    forced = answer(model, **nowhere)["devices"]
    assert forced
    assert all(row["spans"] for row in forced)


def test_devices_rank_by_the_money_of_a_month_that_headline_and_table_show():
    closed = {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64}
    for workload in (OPEN, closed):
        found = answer("meta-llama/Llama-3.3-70B-Instruct", {"tpot_ms": 50}, workload)
        trusted = [row for row in found["devices"] if not row["doubted"]]
        months = [row["usd_per_month"] for row in trusted]
        assert len(months) > 5
        assert months == sorted(months)
        for row in trusted:
            dearer = [rung for rung in row["ladder"] if rung["holds"]]
            assert row["usd_per_month"] == min(rung["usd_per_month"] for rung in dearer)


def test_machines_that_are_paid_whole_are_used_or_say_what_is_idle():
    """A machine of eight costs the same whatever of it works."""
    [row] = answer("Qwen/Qwen3-32B", {"tpot_ms": 30}, devices=["mi355x"])["devices"]
    assert row["unit_devices"] == 8
    assert (row["count"], row["idle"]) == (8, 0)
    hour = 8 * row["offer"]["usd_per_device_hour"]
    assert row["usd_per_month"] == pytest.approx(hour * 730)


def test_the_opening_answer_without_limits_can_be_rented():
    best = answer("Qwen/Qwen3-235B-A22B")["best"]
    assert device_profile(best["device"]).segment == "data-centre"
    assert not best["spans"]
    assert best["offer"]["marks"] == []
    assert best["confidence"] is None


def test_links_that_know_no_switch_are_read_as_before():
    market, ignored = market_of({"any": '{"vendors":["amd"],"unverified":false}'})
    assert (market, ignored) == (Market(vendors=("amd",), unverified=False), [])
    market, ignored = market_of({"any": '{"consumer_cards":true,"several_machines":true}'})
    assert (market.consumer_cards, market.several_machines, ignored) == (True, True, [])
