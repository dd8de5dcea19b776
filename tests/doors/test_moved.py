"""Links to pages of earlier builds: each leads to its place, and means there what it did."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from recipe_core.base.resources import shipped_path
from recipe_core.doors.moved import MOVED, USUAL_DEVICE, moved_routes
from recipe_core.request.link import DEFAULT, from_query
from tests.fixtures.opening import opened
from tests.fixtures.rows import over

USUAL = {"hardware.device": USUAL_DEVICE}
PLACES = {
    "objective": ("/traffic", {}),
    "compare": ("/plan", {}),
    "recipe": ("/ship", {}),
    "size": ("/plan", {"lens": "hardware"}),
    "formats": ("/plan", {"lens": "formats"}),
    "over_time": ("/plan", {"lens": "over-time"}),
    "measured": ("/evidence", {}),
}


@pytest.fixture(scope="module")
def client():
    return TestClient(Starlette(routes=moved_routes()), follow_redirects=False)


def led_to(client, link):
    answer = client.get(link)
    assert answer.is_redirect
    place = urlsplit(answer.headers["location"])
    assert place.netloc == place.scheme == ""  # no link leads to another server
    return place.path, dict(parse_qsl(place.query, keep_blank_values=True))


def test_every_earlier_page_has_a_place_that_is_there():
    assert MOVED.keys() == PLACES.keys()
    for name, _ in PLACES.values():
        assert shipped_path("pages").joinpath(f"{name.strip('/')}.py").is_file()


@over("name", PLACES)
def test_a_link_leads_to_its_place_with_what_it_says(client, name):
    place, lens = PLACES[name]
    usual = {} if name == "size" else USUAL  # that page asked which hardware it is
    assert led_to(client, f"/{name}") == (place, lens | usual)
    query = "v=1&model=Qwen%2FQwen3-8B&objective.limits.tpot_ms=40&pins=a%2Cb&kept=~1.x"
    said = dict(parse_qsl(query))
    assert led_to(client, f"/{name}?{query}") == (place, said | lens | usual)
    for field, text in (
        ("hardware.device", "mi300x"),
        ("hardware.nodes", "2"),
        ("options.hardware", '[{"device":"mi300x","per_node":8}]'),
    ):
        stated = {field: text}
        assert led_to(client, f"/{name}?{query}&{field}={text}") == (place, said | lens | stated)


def test_a_link_without_hardware_still_means_the_usual_node(client):
    assert DEFAULT.hardware.device == USUAL_DEVICE
    _, query = led_to(client, "/compare?model=Qwen%2FQwen3-8B")
    assert from_query(query) == from_query({"model": "Qwen/Qwen3-8B"})


@pytest.mark.usefixtures("no_workers")
def test_a_page_opens_at_the_place_that_a_link_leads_to(client):
    _, query = led_to(client, "/recipe?model=Qwen%2FQwen3-8B")
    app = opened("ship.py", hardware_chosen=False, **query)
    assert app.session_state["hardware-open"] is False
    assert app.get_by_key("download")
    _, query = led_to(client, '/size?any=%7B"devices"%3A%5B"h100-sxm"%5D%7D')
    app = opened("plan.py", hardware_chosen=False, **query)
    assert (app.session_state["hardware-open"], app.session_state["lens"]) == (True, "hardware")
    assert app.dataframe[0].value["key"].tolist() == ["h100-sxm"]
