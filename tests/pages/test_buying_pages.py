"""The lenses that choose the hardware, and the number of replicas over time."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from recipe_core.base.errors import NoAnswer
from recipe_core.hardware.cluster import device_names
from recipe_core.hardware.offers import TODAY
from recipe_core.request.edit import change
from recipe_core.request.link import from_query
from recipe_core.request.open_hardware import size_request, sized_goal
from recipe_core.request.size import Market
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.size import size_devices
from recipe_core.views import over_time, size_view
from recipe_core.views.decision import runner_up
from tests.fixtures.opening import (
    LLAMA_70B,
    figure,
    opened,
    press,
    put,
    query_of,
    shown,
    states_hardware,
    tick,
    words,
)
from tests.fixtures.over_time import answer
from tests.fixtures.rows import table

FEW = json.dumps({"devices": ["h100-sxm", "mi300x", "b200-sxm", "a10g", "gh200-144gb"]})
SERVE = {"model": LLAMA_70B, "objective.limits.tpot_ms": "40", "any": FEW}
TRAIN = {
    "model": LLAMA_70B,
    "workload.kind": "training",
    "workload.tokens": "1e10",
    "objective.limits.wall_hours": "336",
    "any": FEW,
}


def sized(**query: str) -> AppTest:
    """The plan where the hardware is to be found, with the lens on it."""
    return opened("plan.py", hardware_chosen=False, lens="hardware", **query)


def core(query: dict[str, str]) -> dict[str, Any]:
    request, _ = from_query(query)
    market = Market(**json.loads(query["any"]))
    return Answer(size_devices(size_request(request, market, sized_goal(request)))).to_json()


@pytest.mark.parametrize(
    "query", [SERVE, pytest.param(TRAIN, marks=pytest.mark.nightly)], ids=["serving", "training"]
)
def test_the_lens_shows_what_the_core_answers(query: dict[str, str]) -> None:
    found = core(query)
    app = sized(**query)
    assert size_view.sentence(found["best"]) in words(app)
    shown_rows = app.dataframe[0].value
    assert shown_rows["key"].tolist() == [size_view.key(row) for row in found["devices"]]
    assert shown_rows["month"].tolist() == [row["usd_per_month"] for row in found["devices"]]


def test_parts_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recipe_core.sizing.answer.PART", 2)
    app = sized(**SERVE | {"objective.limits.ttft_ms": "1900"})
    assert (len(app.success), len(app.info)) == (1, 0)
    assert len(app.dataframe[0].value) >= 3


def test_prices_to_doubt_are_marked_and_every_chart_and_folded_part_is_drawn() -> None:
    asked = SERVE | {"any": json.dumps(json.loads(FEW) | {"older_prices": True})}
    app, found = sized(**asked), core(asked)
    doubtful = [row for row in found["devices"] if size_view.is_doubtful(row)]
    assert doubtful
    assert size_view.DOUBT_MEANS in words(app)
    if doubt := found["price_warning"]:
        assert doubt in words(app)
    marks = figure(app, "size-costs")["data"][-1]["text"]
    assert len([text for text in marks if size_view.DOUBT in text]) == len(doubtful)
    charts = {"Cost against a limit": "size-against", "Confidence": "size-confidence"}
    for title, chart in charts.items():
        assert figure(shown(app, **{"size-views": title}), chart)["data"]
    for part, said in (
        *(("growth", "today's size lasts"), ("availability", "Enough")),
        ("purchase", "pays within 36 months up to"),
    ):
        shown(app, **{f"size-open-{part}": True})
        assert said in words(app) + "\n".join(number.label for number in app.text_input)
    assert figure(app, "size-growth-chart")["data"]
    put(app, "_size_purchase_usd_per_device", "30k")
    assert "At your price it has paid after" in words(app)
    names = [trace["name"] for trace in figure(app, "size-purchase-chart")["data"]]
    assert names == ["Rented", "Owned, paid up front", "Owned, written off"]
    assert "Written off over" in put(app, "_size_purchase_years", "99").error[0].value


def test_the_plan_is_on_the_best_hardware_while_nobody_has_chosen_any() -> None:
    found = core(SERVE)
    best = found["best"]
    app = sized(**SERVE)
    card = app.header[0].value.replace("\\", "")
    assert card.startswith(f"{best['count']} × ")
    assert f"{best['usd_per_month']:,.0f}" in card
    second = runner_up(found)
    assert second is not None
    assert second["sentence"] in words(app)
    assert not states_hardware(query_of(app))
    asked = change(from_query(SERVE)[0], {"objective.optimize": "cost"})
    assert app.session_state["request"] == asked  # what was asked stays as it was
    app.switch_page("ship.py").run()
    assert app.header[0].value.replace("\\", "") == card
    assert not states_hardware(query_of(app))


def test_a_server_that_runs_on_counts_with_the_prices_of_its_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = opened("hardware.py", **{"hardware.device": "mi300x"})
    assert "runpod-mi300x" in words(app)
    plan = opened("plan.py", **query_of(app))
    before = words(plan)
    monkeypatch.setenv(TODAY, "2027-06-01")  # all offers are old: the cheapest verified one
    shown(plan)
    assert words(plan) != before
    assert "tensorwave-mi300x" in words(plan)


@pytest.mark.parametrize("page", ["hardware.py", "plan.py"])
def test_a_device_is_browsed_and_taken_as_the_box_takes_it(page: str) -> None:
    """A closed fold computes and asks nothing; a row says what the profile and the price say."""
    chosen = {"hardware.device": "h100-sxm", "hardware.per_node": "8"}
    app = opened(page, **chosen)
    app.session_state["chip-hardware"] = page == "plan.py"  # the popover of the plan's chip
    app.run()
    assert "devices" not in app.session_state
    shown(app, **{"browse-devices": True})
    listed = next(frame.value for frame in app.dataframe if "TB/s" in frame.value)
    assert len(listed) == len(device_names(announced=True))
    assert app.session_state["devices"]["selection"]["rows"] == [
        titles(listed).index("H100 SXM5 80 GB")
    ]
    row = titles(listed).index("Instinct MI300X 192 GB")
    tick(app, "devices", row)
    assert query_of(app)["hardware.device"] == "mi300x"
    assert app.session_state["devices"]["selection"]["rows"] == [row]
    assert app.selectbox(key="_hardware.device").value == "mi300x"
    by_box = opened(page, **chosen)
    shown(by_box, **{"chip-hardware": page == "plan.py"})
    put(by_box, "_hardware.device", "mi300x")
    assert query_of(by_box) == query_of(app)
    put(app, "_device-count", 16)
    asked = app.session_state["request"].hardware
    assert (asked.per_node, asked.nodes) == (8, 2)


def titles(listed: Any) -> list[str]:
    return [str(title) for title in listed["Device"]]


def test_the_hardware_is_taken_with_its_price_and_split_and_given_back() -> None:
    best = core(SERVE)["best"]
    app = sized(**SERVE)
    before = app.session_state["request"]
    press(app, "size-take")
    assert app.session_state["page"] == "plan.py"
    query = query_of(app)
    assert from_query(query)[0].hardware.device == best["device"]
    assert query["hardware.offer"] == best["offer"]["name"]
    assert query["candidate.tp"] == str(best["split"]["tp"])
    assert query["objective.optimize"] == "cost"
    assert "does not fit" not in words(app)
    assert app.header[0].value.startswith(f"{best['count']} × ")
    assert query["workload.concurrency"] == "64"  # that the hardware was chosen for
    assert json.loads(query["any"]) == json.loads(FEW)
    press(app, "undo")
    assert (query_of(app)["any"], states_hardware(query_of(app))) == (query["any"], False)
    assert app.session_state["request"] == before


def test_the_lens_also_looks_beside_chosen_hardware() -> None:
    app = opened("plan.py", lens="hardware", **SERVE)
    assert app.header[0].value.startswith("8 × H100")
    keys = [size_view.key(row) for row in core(SERVE)["devices"]]
    assert app.dataframe[0].value["key"].tolist() == keys
    assert query_of(app)["hardware.device"] == "h100-sxm"


def test_another_device_is_looked_at_kept_and_taken() -> None:
    app = sized(**SERVE)
    second = app.dataframe[0].value["key"][1]
    press(shown(app, **{"size-device": second}), "size-keep")
    (kept,) = app.session_state["kept"]
    assert kept.request.hardware.device == second
    assert kept.request.candidate is not None
    assert size_view.short(core(SERVE)["devices"][1]) in app.button(key="size-take").label
    press(app, "size-take")
    assert query_of(app)["hardware.device"] == second


def test_a_count_of_own_machines_is_typed_and_a_wrong_one_refused() -> None:
    app = opened("hardware.py", hardware_chosen=False, **SERVE)
    put(shown(app, **{"size-more": True}), "size-own-device", "h100-sxm")
    (error,) = put(app, "_size-own-count", "2.5").error
    assert error.value.startswith(
        r"How many\: '2.5' is not a whole number. Type a whole number from"
    )
    assert error.value.endswith(" 8 stays in effect.")
    press(put(app, "_size-own-count", "1k"), "size-own-add")
    assert json.loads(query_of(app)["any"])["owned"] == [{"device": "h100-sxm", "count": 1000}]


@pytest.mark.nightly
@pytest.mark.parametrize("state", table("sessions", "sizes"))
def test_every_state_is_drawn(state: str) -> None:
    link = f"plan.py?lens=hardware&{table('sessions', 'sizes')[state]}"
    app = opened(link, hardware_chosen=False)
    assert bool(app.success) != bool(app.error)


# Replicas over time

LIMITED = {"objective.limits.ttft_ms": "2000", "objective.limits.tpot_ms": "50"}
SHAPE = {"workload.over_time.shape": "azure-conversation", "workload.over_time.mean_rate": "8"}


class Simulated:
    """In place of a simulation: its answer at once, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], Any]] = []

    def __call__(self, request: dict[str, Any], *, policies: Any, folders: bool) -> Simulated:
        assert isinstance(folders, bool)
        self.asked.append((request, policies))
        return self

    def to_json(self) -> dict[str, Any]:
        return answer()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr("recipe_core.simulate", found, raising=False)
    return found


def page(**query: str) -> AppTest:
    return opened("plan.py", lens="over-time", **LIMITED | query)


def answered(**query: str) -> AppTest:
    app = page(**SHAPE | query)
    if not app.button(key="over-time-simulate").disabled:
        press(app, "over-time-simulate")
    return app


def test_the_answer_is_shown_with_every_policy_and_both_bounds(simulated: Simulated) -> None:
    app = answered()
    ((request, policies),) = simulated.asked
    assert policies is None
    assert request["workload"]["over_time"]["shape"] == "azure-conversation"
    assert request["workload"]["over_time"]["mean_rate"] == 8.0
    assert over_time.over_time_verdict(answer())[1] in words(app)
    rows = over_time.policies_and_bounds(answer())
    titles = [over_time.policy_title(row["name"]) for row in rows]
    assert app.dataframe[0].value["Policy"].tolist() == titles
    for chart in ("capacity", "replicas", "first", "share", "cost", "costs", "tradeoff"):
        assert figure(app, f"over-time-{chart}")["data"]
    drawn = figure(put(app, "over-time-day", "Tue"), "over-time-replicas")["data"][0]
    assert drawn["x"][0].startswith("2024-01-02T00:00")
    assert len(drawn["x"]) == 25


def test_an_answer_is_remembered_and_an_edit_asks_for_another(simulated: Simulated) -> None:
    answered(**{"workload.over_time.days": "2"})
    app = page(**SHAPE, **{"workload.over_time.days": "2"})
    assert over_time.over_time_verdict(answer())[1] in words(app)
    assert len(simulated.asked) == 1
    assert query_of(put(app, "_over-time-mean_rate", "16"))["workload.over_time.mean_rate"] == "16"
    assert over_time.over_time_verdict(answer())[1] not in words(app)
    press(put(app, "over-time-compared", ["keda", "hpa"]), "over-time-simulate")
    request, policies = simulated.asked[-1]
    assert (request["workload"]["over_time"]["mean_rate"], policies) == (16.0, ["keda", "hpa"])


def test_a_fault_of_the_simulation_is_told_and_another_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("secret")

    monkeypatch.setattr("recipe_core.simulate", fail, raising=False)
    app = answered(**{"workload.over_time.days": "3"})
    (told,) = [error.value for error in app.error]
    assert "not your fault" in told
    assert "secret" in caplog.text
    assert "secret" not in told
    assert not app.button(key="over-time-simulate").disabled


@pytest.mark.nightly
@pytest.mark.usefixtures("simulated")
def test_a_policy_is_looked_at_and_used() -> None:
    app = put(answered(**{"workload.over_time.days": "4"}), "_over-time-policy", "hpa")
    hpa = next(policy for policy in answer()["policies"] if policy["name"] == "hpa")
    assert over_time.policy_facts(hpa) in words(app)
    query = query_of(press(app, "over-time-use"))
    assert query["options.scaling.policy"] == "hpa"
    assert query["options.scaling.max_replicas"] == str(hpa["scaling"]["max_replicas"])
    assert query["candidate.tp"] == "2"
    assert app.button(key="over-time-use").disabled
    assert "options.scaling.policy" not in query_of(press(app, "over-time-none"))


def test_a_shape_becomes_rates_that_are_typed() -> None:
    app = page(**SHAPE)
    query = query_of(put(app, "_over-time-from", "rates"))
    assert query["workload.over_time.rates"].count(",") == 167
    assert "workload.over_time.shape" not in query
    assert query_of(put(app, "_over-time-rates", "1, 2\n3"))["workload.over_time.rates"] == "1,2,3"
    assert "3 rates: 3 h" in words(app)
    assert "many" in put(app, "_over-time-rates", "1, many").error[0].value
    assert query_of(put(app, "_over-time-from", "shape"))["workload.over_time.mean_rate"] == "2"


def test_figures_are_typed_and_impossible_ones_refused_beside_their_box() -> None:
    def sentence() -> str:
        return next(text for text in words(app).split("\n") if text.startswith("A replica answers"))

    app = page(**SHAPE)
    before = sentence()
    assert "Days" in put(app, "_over-time-days", "9999").error[0].value
    put(app, "_over-time-growth_per_month", "10")
    put(app, "_over-time-attainment", 0.999)
    query = query_of(put(app, "_options.start.node", "ready"))
    assert query["workload.over_time.growth_per_month"] == "0.1"
    assert query["workload.over_time.attainment"] == "0.999"
    assert query["options.start.node"] == "ready"
    assert sentence() != before
    assert not press(app, "over-time-saving-0").error
    starts = [name for name in query_of(app) if name.startswith("options.start.")]
    assert starts != ["options.start.node"]


def trace(lines: int = 240) -> bytes:
    """A trace in Mooncake's form: a request every other second, half of its blocks shared."""
    lengths = ({"input_length": 1024, "output_length": 100 + n % 50} for n in range(lines))
    rows = ({"timestamp": 2000 * n, "hash_ids": [0, 1 + n]} | row for n, row in enumerate(lengths))
    return "\n".join(map(json.dumps, rows)).encode()


def test_a_trace_is_described_and_used() -> None:
    app = put(page(), "_over-time-from", "trace")
    put(app, "over-time-file", ("x.csv", b"\x00\x01", "text/csv"))
    assert len(app.error) == 1
    for data in (trace(), gzip.compress(trace())):
        assert not put(app, "over-time-file", ("mine.jsonl", data, "text/plain")).error
    described = next(each for each in app.table if "trace holds" in each.proto.alt)
    assert "240 in" in described.value.to_string()
    assert figure(app, "over-time-trace-3")["data"]
    query = query_of(press(app, "over-time-use-trace"))
    assert query["workload.mode"] == "open"
    assert float(query["workload.request_rate"]) == pytest.approx(0.5, rel=0.02)
    assert query["workload.prefix_reuse"]
    assert query["workload.over_time.rates"]
    assert app.button(key="over-time-use-trace").disabled
    put(app, "over-time-trace-shape", "azure-code")
    assert query_of(press(app, "over-time-use-trace"))["workload.over_time.shape"] == "azure-code"


def test_what_cannot_be_simulated_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NoAnswer("no layout can run.", field="hardware")

    monkeypatch.setattr("recipe_core.simulate", refuse, raising=False)
    app = answered(**{"workload.over_time.days": "6"})
    assert "no layout can run" in app.error[0].value
