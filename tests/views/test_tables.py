"""Splits in tables for people, what tables keep, and tables and charts as files."""

import io

import numpy as np
import pandas as pd
import pytest

from recipe_core.plans.plan_json import cluster_title, held_text, measure_text
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.rank import front_of_measures
from recipe_core.plans.splits import find_row
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.views import exports, tables
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.columns import csv_bytes, parquet_bytes
from recipe_core.views.plans import HOLDS, QUEUES, UNCERTAIN, split_columns, state_text
from tests.fixtures.plans import BESIDE, LONG, planned

REQUEST = change(DEFAULT, {"model": "Qwen/Qwen3-32B", "objective.limits.tpot_ms": 60.0})


def devices_and_loads():
    return planned(BESIDE, ("options.loads", (16, 512)), LONG)


@pytest.mark.parametrize("changes", [(), (("workload.kind", "training"), ("hardware.nodes", 2))])
def test_tables_are_in_units_for_people(changes):
    splits = planned(*changes)
    frame = tables.splits_frame(splits, [int(row) for row in splits.order[:50]])
    assert frame["memory"][0] == pytest.approx(splits.values("memory")[splits.best_row], rel=5e-3)
    assert (frame["front"] == "◆").sum() == front_of_measures(splits, *splits.shown.axes)[
        splits.order[:50]
    ].sum()
    refused = tables.refused_frame(splits, at_most=3)
    assert len(refused) == 3
    assert (refused["why"] != "").all()
    assert sum(tables.refusal_counts(splits).values()) >= int((~splits.feasible).sum())


def test_tables_have_columns_for_what_differs_and_states_and_digits_of_sentences():
    assert list(tables.differing(planned())) == []
    splits = devices_and_loads()
    assert list(tables.differing(splits)) == ["device", "load"]
    frame = tables.splits_frame(splits, splits.order, ranges=True)
    assert set(frame["device"]) == {"H100 SXM5", "MI300X"}
    assert set(frame["load"]) == {16, 64, 512}
    assert "H100" not in "".join(frame["split"])
    assert ((frame["tpot_low"] < frame["tpot"]) & (frame["tpot"] < frame["tpot_high"])).all()
    assert frame["tpot_likely"].str.contains(" to ").all()
    splits = planned(("workload.concurrency", 512), LONG)
    states = tables.splits_frame(splits, splits.order)["state"]
    assert (states[splits.queues[splits.order]].str.startswith("queues: ")).all()
    assert set(states[splits.holds[splits.order]]) <= {"holds"}
    four, two = (find_row(splits, f"vllm.bf16.bf16.tp{tp}.pp1.dp1.ep1") for tp in (4, 2))
    assert state_text(splits, four) == f"queues: {held_text(splits, four)}"
    assert state_text(splits, two).startswith("uncertain: starts with ")
    splits = planned()
    texts = {column.key: column.show for column in split_columns(splits)}
    assert (texts["usd"](1.0), texts["gpus"](8.0)) == ("1.00", "8")
    row = splits.best_row
    frame = tables.splits_frame(splits, [row])
    assert f"{texts['output'](frame['output'][0])} tok/s" == measure_text(splits, "output", row)


def test_filters_keep_what_they_name():
    splits = devices_and_loads()

    def filtered(**names):
        return tables.filtered(splits, tables.Filters(**names))

    assert filtered().tolist() == splits.order.tolist()
    mine = filtered(by=(("device", ("MI300X",)),))
    assert {cluster_title(splits, int(row)) for row in mine} == {"MI300X"}
    queueing = filtered(states=(QUEUES,))
    assert splits.queues[queueing].all()
    assert len(queueing) == splits.queues[splits.order].sum()
    four = filtered(devices=(4,), states=(HOLDS,))
    assert set(splits.raw("gpus")[four]) == {4}
    assert not splits.queues[four].any()
    assert set(splits.clusters_of_rows[filtered(front=splits.shown.axes)]) == {0, 1}
    loads = {f"{load} users at once" for load in (16, 64, 512)}
    assert set(tables.group_titles(splits, "load")) == loads
    assert tables.states_of(splits) == [HOLDS, QUEUES, UNCERTAIN]
    doubtful = filtered(states=(UNCERTAIN,))
    assert len(doubtful)
    assert splits.uncertain[doubtful].all()
    assert 4 in tables.device_counts(splits)


def test_a_table_reads_back_as_it_was_written():
    splits = plan_splits(REQUEST)
    frame = tables.export_frame(splits, splits.order, ["tpot", "usd", "gpus"])
    tpot, cost = "Time per output token (ms)", "Cost per million output tokens ($)"
    measured = [f"{title}{end}" for title in (tpot, cost) for end in ("", ", low", ", high")]
    said = ["Key", "Layout", "State", "Keeps the limits (%)"]
    assert list(frame.columns) == [*said, *measured, "Device count"]
    assert len(frame) == len(splits.order)
    written = csv_bytes(frame)
    assert written.startswith(b"\xef\xbb\xbfKey,")
    stored = io.BytesIO(parquet_bytes(frame))
    for read in (pd.read_csv(io.BytesIO(written)), pd.read_parquet(stored)):
        assert read["Layout"].tolist() == frame["Layout"].tolist()
        for name in frame.columns[3:]:
            np.testing.assert_allclose(read[name], frame[name])
    np.testing.assert_allclose(frame[tpot], splits.values("tpot", splits.order), rtol=1e-3)


def test_files_are_named_after_the_request_and_a_chart_is_one_file_without_a_network():
    two = {"hardware.nodes": 2, "hardware.device": "mi300x"}
    for model, changes, name in (
        (REQUEST.model, {}, "qwen3-32b-8x-h100-sxm"),
        (REQUEST.model, two, "qwen3-32b-16x-mi300x"),
        ({"model_type": "llama"}, {}, "model-8x-h100-sxm"),
    ):
        request = change(REQUEST, changes).model_copy(update={"model": model})
        assert exports.file_name(request, "tradeoff") == f"{name}-tradeoff"
    request = REQUEST.model_copy(update={"model": "../../Etc/<b>pass wd" + "x" * 300})
    name = exports.file_name(request, "splits")
    assert name.startswith("b-pass-wdxxx")
    assert len(name) <= exports.LONGEST_NAME + len("-splits")
    for asked, known in (("svg", "svg"), ("../exe", "png")):
        assert exports.picture_config("a", asked)["toImageButtonOptions"]["format"] == known
    splits = plan_splits(REQUEST)
    page = exports.chart_page(tradeoff(splits, *splits.shown.axes), "chart").decode()
    assert page.startswith("<!doctype html>")
    assert "Time per output token (ms)" in page
    assert "<script src=" not in page
