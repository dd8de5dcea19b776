"""The page of a fleet: its document, what is placed, and changes that are tried."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import recipe_core as rb
from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.resources import PACKAGE
from recipe_core.doors.fleets import AnsweredFleet, FleetQuestion
from recipe_core.request.shelf import keep_choice
from tests.fixtures.opening import LLAMA_70B, TP8, chosen, figure, opened, press, put, shown, words
from tests.pages.test_markdown import assert_verbatim
from tests.pages.test_plain_words import cells_of, identifiers, texts_of

EXAMPLE = (PACKAGE / "fleets" / "example.yaml").read_text(encoding="utf-8")
CHIPS = [
    "Lose a node of own",
    "Lose a node of cloud",
    "+25 % load of chat",
    "+25 % load of search",
    "+20 % price of own",
    "+20 % price of cloud",
    "3 months of growth",
]
OPEN = {"fleet-document": True}
"""Opens the document, as a click on it does."""


def example(**changes: Any) -> str:
    """The example with other values of its parts, by their names."""
    values = parse_yaml(EXAMPLE, "example.yaml")
    for part in (*values["models"], *values["pools"]):
        part |= changes.get(part["name"], {})
    return to_yaml(values)


def picture(app: AppTest) -> str:
    (html,) = [
        part.proto.body for part in app.get("html") if 'class="fleet-node"' in part.proto.body
    ]
    return str(html)


def document(app: AppTest) -> dict[str, Any]:
    values: dict[str, Any] = parse_yaml(app.session_state["fleet-text"], "fleet.yaml")
    return values


def errors(app: AppTest) -> list[str]:
    return [error.value.replace("\\", "") for error in app.error]


def test_an_example_is_placed_at_once_with_its_figures_racks_money_and_tables() -> None:
    app = opened("fleet.py")
    answer = rb.fleet(parse_yaml(EXAMPLE, "example.yaml"))
    assert "2 models are served within all limits, on " in app.success[0].value
    tiles = {tile.label: tile.value.replace("\\", "") for tile in app.metric}
    assert list(tiles) == ["Per hour", "Per month", "All limits hold", "Power", "CO₂", "Gap"]
    assert tiles["Per month"] == f"${answer.usd_per_month:,.0f}"
    placements, pools, charges = (table.value for table in app.dataframe)
    assert len(placements) == sum(1 for _ in answer.placements())
    assert list(pools["Pool"]) == ["own", "cloud"]
    assert sum(charges["Per month"]) == pytest.approx(answer.usd_per_month)
    bars = figure(app, "fleet-charges")["data"][0]
    assert bars["y"] == ["assistants", "retrieval"]
    assert "This is an example." in words(app)
    day = picture(app)
    assert picture(put(app, "fleet-period", "night")).count(">A<") < day.count(">A<")
    for text in (*texts_of(app._tree), *cells_of(app)):
        assert not identifiers(text), text


def test_a_chip_says_what_it_changes_and_is_taken_or_put_away() -> None:
    app = opened("fleet.py")
    assert list(app.get_by_key("fleet-what-if").options) == CHIPS
    put(app, "fleet-what-if", [CHIPS[0], CHIPS[2]])
    (first, _) = (table.value for table in app.table if "Figure" in table.value)
    assert [cell.replace("\\", "") for cell in first["Figure"]][:2] == [
        "Per hour",
        "All limits hold",
    ]
    assert "an hour more." in words(app)
    assert re.search(r"- \w+ on (own|cloud), TP \d: \d+ → \d+ replica", words(app))
    put(app, "fleet-what-if", CHIPS[:1])
    assert [button.key for button in app.button if "take-" in button.key] == [
        f"fleet-take-{CHIPS[0]}"
    ]
    then = first["Then"].iloc[0]
    press(app, f"fleet-take-{CHIPS[0]}")
    assert document(app)["pools"][0]["nodes"] == 1
    assert app.metric[0].value == then
    assert app.get_by_key("fleet-what-if").value == []
    press(app, "fleet-undo")
    assert "This is an example." in words(app)


@pytest.mark.nightly
def test_growth_that_is_taken_moves_the_month_and_what_a_change_leaves_unserved_is_said() -> None:
    app = put(opened("fleet.py"), "fleet-what-if", CHIPS[-1:])
    press(app, f"fleet-take-{CHIPS[-1]}")
    assert "Placed for the load in 3 months." in words(app)
    press(app, "fleet-undo")
    assert "Placed for the load" not in words(app)
    small = example(chat={"where": {"pools": ["own"]}}, own={"nodes": 1})
    shown(app, **OPEN)
    put(app, "fleet-editor", small.replace("failures: 1", "failures: 0"))
    assert not app.error
    put(app, "fleet-what-if", CHIPS[2:3])
    assert any("Not all of it can be served." in error for error in errors(app))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [", "is not valid YAML"),
        (EXAMPLE.replace("Qwen/Qwen3-32B", "Qwen/Qwen3-33B"), "models.0.model** unknown model"),
        *(
            pytest.param(text, said, marks=pytest.mark.nightly)
            for text, said in (
                ("- chat", "this is a list"),
                (EXAMPLE.replace("h100-sxm", "h100-smx"), "pools.0.device** unknown device"),
                (EXAMPLE.replace("nodes: 2", "nodes: -2", 1), "pools.0.nodes** "),
                (EXAMPLE.replace("usd_per_device_hour", "price"), "usd_per_device_hour"),
            )
        ),
    ],
)
def test_what_is_wrong_is_said_beside_the_editor_and_the_fleet_before_stays(text, said) -> None:
    app = shown(opened("fleet.py"), **OPEN)
    hour = app.metric[0].value
    put(app, "fleet-editor", text)
    assert said in errors(app)[0]
    assert "The fleet before stays in effect." in words(app)
    assert (app.text_area(key="fleet-editor").value, app.metric[0].value) == (text, hour)
    put(app, "fleet-editor", example(own={"usd_per_device_hour": 9.0}))
    assert not app.error
    assert app.metric[0].value != hour


def test_a_file_is_read_and_what_is_not_served_comes_first_with_the_conflict() -> None:
    text = example(chat={"where": {"pools": ["own"]}}, own={"nodes": 1})
    app = shown(opened("fleet.py"), **OPEN)
    put(app, "fleet-upload", ("mine.yaml", text.encode(), "application/yaml"))
    (said,) = errors(app)
    assert "not served in full" in said
    assert "chat: " in said
    assert "These do not go together: " in said
    assert not app.success
    assert "A cell is a device" in words(app)
    put(app, "fleet-upload", ("mine.yaml", b"\xff\xfe", "application/yaml"))
    assert "is not UTF-8 text" in errors(app)[0]


def test_a_fleet_starts_from_the_plan_and_takes_on_what_is_kept() -> None:
    fields = {"workload.concurrency": 20, "objective.limits.tpot_ms": 40}
    link = {name: str(value) for name, value in fields.items()}
    app = opened("fleet.py", model="Qwen/Qwen3-8B", **link)
    kept = keep_choice((), chosen(TP8, {"model": LLAMA_70B, "hardware.device": "h200-sxm"}), "big")
    shown(app, kept=kept)
    press(app, "fleet-start")
    values = document(app)
    assert values["models"] == [
        {
            "name": "qwen3-8b",
            "model": "Qwen/Qwen3-8B",
            "workload": {"kind": "serving", "concurrency": 20},
            "objective": {"limits": {"tpot_ms": 40.0}},
        }
    ]
    pool = {"name": "h100-sxm", "device": "h100-sxm", "nodes": 1, "per_node": 8}
    assert values["pools"] == [{**pool, "term": "on-demand"}]
    assert "1 model is served" in app.success[0].value
    shown(app, **OPEN)
    press(put(app, "fleet-add", "big"), "fleet-add-it")
    press(put(app, "fleet-add", "This plan"), "fleet-add-it")
    values = document(app)
    names = [part["name"] for part in values["models"]]
    assert names == ["qwen3-8b", "llama-3-1-70b-instruct", "qwen3-8b-2"]
    assert [pool["device"] for pool in values["pools"]] == ["h100-sxm", "h200-sxm"]
    press(app, "fleet-undo")
    assert [part["name"] for part in document(app)["models"]] == names[:2]


@pytest.mark.nightly
def test_a_run_that_ends_joins_a_fleet_as_a_job() -> None:
    app = opened("fleet.py", **{"workload.kind": "training", "workload.tokens": "1e9"})
    assert app.button(key="fleet-start").disabled
    press(shown(app, **OPEN), "fleet-add-it")
    (job,) = document(app)["jobs"]
    assert (job["workload"]["kind"], job["workload"]["tokens"]) == ("training", 1_000_000_000)
    assert job["name"] in list(app.dataframe[0].value["Model"])


class Searching:
    """A calculation that has found a first fleet, and goes on until it is cancelled."""

    is_over, share, stage = False, 1.0, "placing: gap 2.1 %, 3 s"

    def wait(self) -> None: ...

    def cancel(self) -> None: ...


def test_a_search_says_its_gap_and_can_be_cancelled(monkeypatch) -> None:
    app = shown(opened("fleet.py"), **OPEN)
    monkeypatch.setattr(sys.modules["_fleet_answer"], "_begin", lambda _: Searching())
    put(app, "fleet-editor", example(own={"usd_per_device_hour": 3.21}))
    (bar,) = app.get("progress")
    assert bar.proto.text == "Placing the fleet: gap 2.1 %, 3 s; the page stays usable meanwhile"
    assert not app.metric
    press(app, "fleet-cancel-Placing the fleet")
    assert not app.get("progress")
    assert app.button(key="fleet-again-")


@pytest.mark.nightly
def test_what_ended_without_an_answer_says_why_and_is_placed_again(monkeypatch) -> None:
    text = example(own={"usd_per_device_hour": 3.21})

    def end(*_: object, **__: object) -> AnsweredFleet:
        raise NoAnswer("ended while its page was away.", hint="Ask again.")

    app = shown(opened("fleet.py"), **OPEN)
    with monkeypatch.context() as patched:
        patched.setattr(FleetQuestion, "answer", end)
        put(app, "fleet-editor", text)
        assert "ended while its page was away" in errors(app)[0]
        assert not app.metric
        assert app.run().button(key="fleet-again-")  # and not begun anew by every edit
    press(app, "fleet-again-")
    assert not app.error
    assert app.metric


@pytest.mark.nightly
def test_no_text_of_a_fleet_is_markdown() -> None:
    team = {"team": "**payload** $payload$ :red[payload]", "project": "[payload](http://x)"}
    text = example(chat=team)
    app = put(shown(opened("fleet.py"), **OPEN), "fleet-editor", text)
    assert_verbatim(app)
    assert "payload" in str(figure(app, "fleet-charges")["data"][0]["y"])
    assert assert_verbatim(put(app, "fleet-editor", text.replace("nodes", "'**payload**'", 1))) > 0


MACHINES = """device,nodes,per_node,rack,price
H100,1,8,r0,1.5
H100,1,8,r1,1.5
l40s,1,4,r1,
abacus,1,1,,
"""


def test_an_inventory_becomes_the_pools_and_another_file_says_what_is_read() -> None:
    app = shown(opened("fleet.py"), **OPEN)
    put(app, "fleet-upload", ("machines.csv", MACHINES.encode(), "text/csv"))
    assert {pool["device"]: pool["nodes"] for pool in document(app)["pools"]} == {
        "h100-sxm": 2,
        "l40s": 1,
    }
    assert "'abacus' is no known device" in words(app)
    assert "own" not in list(app.dataframe[1].value["Pool"])
    put(app, "fleet-upload", ("x.json", b"{}", "application/json"))
    assert "is no inventory that is known" in errors(app)[0]
    assert len(document(app)["pools"]) == 2


@pytest.mark.nightly
def test_moves_from_today_are_listed_and_all_files_are_made_when_asked() -> None:
    today = {"today": [{"model": "chat", "pool": "own", "replicas": 2}]}
    text = to_yaml(parse_yaml(EXAMPLE, "example.yaml") | today)
    app = put(shown(opened("fleet.py"), **OPEN), "fleet-editor", text)
    assert "Moves from today" in words(app)
    (moves,) = (table.value for table in app.dataframe if "Move" in table.value)
    assert moves["Move"].str.contains("search").any()
    assert not app.get("download_button")[-1].proto.label.startswith("Download all")
    press(app, "fleet-make")
    made = sys.modules["_fleet_answer"].find_answer(app.session_state["fleet-folder-wanted"])
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert {"fleet.yaml", "answer.json", "report.html"} <= set(archive.namelist())
        written = parse_yaml(archive.read("fleet.yaml").decode(), "fleet.yaml")
    assert written["today"] == [{**today["today"][0]}]
    assert app.get_by_key("fleet-folder")
    put(app, "fleet-period", "night")
    put(app, "fleet-editor", EXAMPLE.replace("night", "evening"))
    assert app.selectbox(key="fleet-period").value == "day"
    assert app.button(key="fleet-make")
