"""Tables and charts as files."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd

from recipe_core.present import charts, exports, tables
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan

REQUEST = change(
    DEFAULT, {"model": "Qwen/Qwen3-32B", "objective.limits.tpot_ms": 60.0, "hardware.per_node": 8}
)


def test_a_table_reads_back_as_it_was_written() -> None:
    splits = plan(REQUEST)
    frame = tables.export_frame(splits, splits.order, ["tpot", "usd", "gpus"])
    tpot, cost = "Time per output token (ms)", "Cost per million output tokens ($)"
    measured = [f"{title}{end}" for title in (tpot, cost) for end in ("", ", low", ", high")]
    said = ["Key", "Split", "State", "Keeps the limits (%)"]
    assert list(frame.columns) == [*said, *measured, "Devices"]
    assert len(frame) == len(splits.order)
    written = exports.csv_of(frame)
    assert written.startswith(b"\xef\xbb\xbfKey,")
    for read in (
        pd.read_csv(io.BytesIO(written)),
        pd.read_parquet(io.BytesIO(exports.parquet_of(frame))),
    ):
        assert read["Split"].tolist() == frame["Split"].tolist()
        for name in frame.columns[3:]:
            np.testing.assert_allclose(read[name], frame[name])
    np.testing.assert_allclose(frame[tpot], splits.values("tpot", splits.order), rtol=1e-3)


def test_files_are_named_after_the_request_in_letters_digits_and_dashes() -> None:
    for model, changes, name in (
        (REQUEST.model, {}, "qwen3-32b-8x-h100-sxm"),
        (
            REQUEST.model,
            {"hardware.nodes": 2, "hardware.device": "mi300x"},
            "qwen3-32b-16x-mi300x",
        ),
        ({"model_type": "llama"}, {}, "model-8x-h100-sxm"),
    ):
        request = change(REQUEST, changes).model_copy(update={"model": model})
        assert exports.file_name(request, "tradeoff") == f"{name}-tradeoff"
    request = REQUEST.model_copy(update={"model": "../../Etc/<b>pass wd" + "x" * 300})
    name = exports.file_name(request, "splits")
    assert name.startswith("b-pass-wdxxx")
    assert len(name) <= exports.LONGEST_NAME + len("-splits")


def test_a_picture_is_of_a_known_format_and_a_chart_one_file_without_a_network() -> None:
    assert exports.picture_config("a", "svg")["toImageButtonOptions"]["format"] == "svg"
    assert exports.picture_config("a", "../exe")["toImageButtonOptions"]["format"] == "png"
    splits = plan(REQUEST)
    page = exports.chart_page(charts.tradeoff(splits, *splits.axes), "chart").decode()
    assert page.startswith("<!doctype html>")
    assert "Time per output token (ms)" in page
    assert "<script src=" not in page
