"""The envelope of every device over all loads."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.explain.frontier import INTERACTIVITIES, Frontier, frontier
from recipe_core.hardware.request import HardwareRequest
from recipe_core.present import charts
from recipe_core.present.charts.frontier import frontier_lines, frontier_table
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.serving_plan import ServingPlan
from tests.conftest import LLAMA_70B

BESIDE = {"options.hardware": (HardwareRequest(device="mi300x", per_node=8),)}
LIMITED = BESIDE | {"objective.limits.tpot_ms": 40.0}


def planned(**changes: Any) -> ServingPlan:
    return plan(change(DEFAULT, {"model": LLAMA_70B} | changes))


@cache
def both() -> Frontier:
    return frontier(planned(**LIMITED))


@cache
def free() -> Frontier:
    return frontier(planned())


def test_each_device_has_an_envelope_that_only_falls_and_nothing_lies_beyond_it() -> None:
    wide = both()
    assert [one.title for one in wide.envelopes] == ["H100 SXM5", "MI300X"]
    assert (wide.loads.min(), wide.loads.max()) == (1.0, 1024.0)
    for number, envelope in enumerate(wide.envelopes):
        assert (np.diff(envelope.interactivity) > 0).all()
        assert (np.diff(envelope.per_gpu) < 0).all()
        assert not wide.plan.queues[envelope.rows].any()
        own = wide.plan.runs & ~wide.plan.queues & (wide.plan.clusters_of_rows == number)
        for row in np.flatnonzero(own):
            place = envelope.at(float(wide.plan.raw("interactivity")[row]))
            assert envelope.per_gpu[place] >= wide.plan.raw("per_gpu")[row]


@pytest.mark.parametrize(
    ("mode", "load"),
    [
        ("closed", {"workload.concurrency": 64}),
        ("open", {"workload.request_rate": 2.0, "workload.concurrency": None}),
        ("static", {"workload.batch": 64, "workload.concurrency": None}),
    ],
)
def test_points_agree_with_estimates_of_one_split(mode: str, load: dict[str, Any]) -> None:
    wide = frontier(planned(**{"workload.mode": mode}, **load, **BESIDE))
    assert wide.envelopes
    for envelope in wide.envelopes:
        for place in range(0, len(envelope.rows), 5):
            alone, only = plan_candidate(wide.plan.request_of(int(envelope.rows[place])))
            serving = alone.estimate(only).serving
            assert 1 / serving.tpot_s == pytest.approx(envelope.interactivity[place])
            assert serving.output_tokens_per_s_per_gpu == pytest.approx(envelope.per_gpu[place])


def test_limits_on_time_leave_splits_in_and_large_plans_have_fewer_loads() -> None:
    timed = frontier(planned(**{"objective.limits.tpot_ms": 5.0}))
    assert timed.envelopes[0].per_gpu.tolist() == free().envelopes[0].per_gpu.tolist()
    few = frontier(planned(**{"objective.limits.gpus": 4}))
    assert few.plan.raw("gpus")[few.envelopes[0].rows].max() <= 4
    queue = {"workload.mode": "offline", "workload.requests": 1000, "workload.concurrency": None}
    with pytest.raises(InputError, match="no load to vary"):
        frontier(planned(**queue))
    wide = frontier(planned(**{"hardware.nodes": 16, "options.engines": ("vllm", "sglang")}))
    assert 5 < len(wide.loads) < len(both().loads)
    assert wide.loads.max() == 1024


@pytest.mark.nightly
def test_percentiles_are_not_simulated_for_it() -> None:
    limits = {"objective.limits.tpot_ms": 60.0, "objective.limits.percentile": 95.0}
    wide = frontier(planned(**limits))
    assert all(block.simulation is None for block in wide.plan.blocks)
    assert wide.envelopes[0].per_gpu.tolist() == free().envelopes[0].per_gpu.tolist()


def test_devices_are_compared_at_round_interactivities() -> None:
    wide = both()
    table = frontier_table(wide)
    assert table.head[-1] == "MI300X over H100 SXM5"
    first, second = wide.envelopes
    for row in table.rows:
        interactivity = float(row[0].split()[0])
        assert interactivity in INTERACTIVITIES
        one, other = first.at(interactivity), second.at(interactivity)
        if one is None or other is None:
            assert row[-1] == "–"
            continue
        gain = second.per_gpu[other] / first.per_gpu[one] - 1
        assert float(row[-1].rstrip("%")) == pytest.approx(gain * 100, abs=0.51)
    assert "in flight" in table.rows[0][1]


def test_the_chart_has_a_line_a_device_the_limit_and_the_split() -> None:
    splits = planned(**LIMITED)
    figure = frontier_lines(both(), splits, splits.best_row)
    names = [trace.name for trace in figure.data]
    assert names == ["H100 SXM5", "MI300X", "This split at its load"]
    assert figure.layout.shapes[0]["x0"] == 25.0
    assert {trace.line.shape for trace in figure.data[:2]} == {"vh"}
    assert figure.data[0].line.color == charts.palette(dark=False).groups[0]
    assert "in flight" in figure.data[0].customdata[0][0]
