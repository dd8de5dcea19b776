"""A training run is planned over several clusters, within limits on its time and its cost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe.build import make_recipe
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.limits import LIMITS
from recipe_core.search.plan import Plan
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.training_plan import TrainingPlan
from tests.conftest import request_values
from tests.fixtures.refusals import refusal

RUN = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9},
}
BESIDE = ({"device": "mi300x", "per_node": 8}, {"device": "h100-sxm", "per_node": 4})


def request(*beside: dict[str, Any], **edits: Any) -> PlanRequest:
    """The run with clusters beside; ``objective__optimize`` is ``objective.optimize``."""
    fields = {name.replace("__", "."): value for name, value in edits.items()}
    options = {"options.hardware": beside} if beside else {}
    return change(PlanRequest.parse(RUN), {**options, **fields})


@cache
def several() -> Plan:
    return plan(request(*BESIDE))


def figures(table: Plan, rows: Any) -> list[tuple[Any, ...]]:
    names = ("tp", "pp", "dp", "zero_stage", "micro_batch", "step_s", "peak_memory_bytes", "usd")
    return [tuple(float(table.columns[name][row]) for name in names) for row in rows]


def test_a_plan_over_several_clusters_is_that_of_each() -> None:
    table = several()
    numbers = np.array([table.cluster_number(row) for row in range(len(table))])
    places = (RUN["hardware"], *BESIDE)
    for k, place in enumerate(places):
        alone = plan(request(hardware=place))
        rows = np.flatnonzero(numbers == k)
        assert len(rows) == len(alone)
        ours = [row for row in table.order.tolist() if numbers[row] == k]
        np.testing.assert_array_equal(figures(table, ours), figures(alone, alone.order))
        assert {table.setting(int(row)).cluster.devices for row in rows} == {
            alone.problem.cluster.devices
        }


def test_rows_know_their_cluster() -> None:
    table = several()
    keys = [table.key(row) for row in range(len(table))]
    assert len(set(keys)) == len(table)
    for row in range(0, len(table), 97):
        assert table.find(keys[row]) == row
    for k, device in enumerate(("8 × H100 SXM", "8 × MI300X", "4 × H100 SXM")):
        row = next(row for row in table.order.tolist() if table.cluster_number(row) == k)
        assert keys[row].endswith(f".on{k}") == bool(k)
        assert device in table.label(row)
        alone = table.request_of(row)
        assert alone.options.hardware == ()
        assert alone.hardware == table.setting(row).cluster.asked
        exact, only = plan_candidate(alone)
        assert exact.estimate(only) == table.estimate(row)
        place = (RUN["hardware"], *BESIDE)[k]
        chosen = change(table.request, select_split(table.request, keys[row]))
        assert place.items() <= chosen.hardware.model_dump().items()
        assert len(chosen.options.hardware) == len(BESIDE)
    assert set(table.to_frame()["device"]) == {"h100-sxm", "mi300x"}
    assert len({table.identity(int(row))[0] for row in table.order}) == 2
    values = table.to_json(20, 5)
    for case in (*values["candidates"], *values["refused"]):
        assert case["hardware"]["device"] in ("h100-sxm", "mi300x")
    assert "hardware" not in plan(request()).to_json(1)["candidates"][0]


def test_a_price_may_move_the_choice_and_a_recipe_is_of_the_cluster_that_won(tmp_path: Any) -> None:
    moves = [name for name, _ in several().moves()]
    assert moves[:2] == ["price -20%", "price +20%"]
    assert not any("price" in name for name, _ in plan(request()).moves())
    flips = plan(request(*BESIDE, objective__optimize="cost")).sensitivity()
    assert {flip.what for flip in flips} >= set(moves[:2])
    asked = request(*BESIDE)
    best = several().best
    recipe = make_recipe(asked)
    assert recipe.request["hardware"]["device"] == best.request.hardware.device
    assert recipe.request["options"]["hardware"] == []
    devices = {fall.device for fall in recipe.fallbacks if fall.kind == "other-device"}
    assert devices <= {"h100-sxm", "mi300x"}
    assert write_bundle(recipe, tmp_path / "bundle")


def test_several_problems_are_one_plan_travel_in_a_link_and_name_an_unknown_device() -> None:
    problems = [resolve(request()), resolve(request(workload__sequence_length=2048))]
    table = TrainingPlan.together(problems)
    assert np.bincount(table.sources).tolist() == [len(plan(p.request)) for p in problems]
    assert table.label(len(table) - 1)
    unknown = PlanRequest.parse(RUN | {"options": {"hardware": [{"device": "h1000"}]}})
    assert refusal(plan, unknown).field == "options.hardware.0.device"
    asked = request(*BESIDE, objective__limits__wall_hours=36.5, objective__limits__usd=25_000.0)
    assert from_query(to_query(asked)) == (asked, [])


def limited(name: str, bound: float, *beside: dict[str, Any]) -> PlanRequest:
    return request(*beside, **{f"objective__limits__{name}": bound})


def test_a_limit_on_a_run_keeps_what_is_below_it() -> None:
    free = plan(request())
    for name, column, unit, shown in (
        ("wall_hours", "wall_s", 3600, "wall"),
        ("usd", "usd", 1, "usd_run"),
    ):
        values = free.columns[column][free.order] / unit
        bound = float(f"{np.median(values):.3g}")
        table = plan(limited(name, bound))
        assert (table.columns[column][table.order] <= bound * unit).all()
        assert len(table.order) == (values <= bound).sum()
        assert table.limit(shown) == pytest.approx(bound * unit * table.measures[shown].factor)
        code = next(code for code, rule in LIMITS.items() if rule.name == name)
        assert not LIMITS[code].timed
        assert table.title([code]).startswith("Over the limit on")


@pytest.mark.parametrize("name", ["wall_hours", "usd"])
def test_a_limit_on_a_run_needs_its_tokens_and_serving_has_none(name: str) -> None:
    limit = {"objective": {"limits": {name: 10}}}
    workload = {key: value for key, value in RUN["workload"].items() if key != "tokens"}
    error = refusal(lambda: plan(PlanRequest.parse(RUN | {"workload": workload} | limit)))
    assert error.field == f"objective.limits.{name}"
    assert "workload.tokens" in (error.hint or "")
    without = change(limited(name, 10), {"workload.tokens": None})
    assert getattr(without.objective.limits, name) is None
    error = refusal(lambda: plan(PlanRequest.parse(request_values(**limit))))
    assert error.field == f"objective.limits.{name}"
    assert all(other in (error.hint or "") for other in ("ttft_ms", "percentile"))
    served = change(limited(name, 10, *BESIDE), {"workload.kind": "serving"})
    assert getattr(served.objective.limits, name) is None
    assert len(served.options.hardware) == len(BESIDE)
