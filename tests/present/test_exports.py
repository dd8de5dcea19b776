"""Tables and charts as files."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

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
    assert list(frame.columns) == [
        "Key",
        "Split",
        "State",
        "Keeps the limits (%)",
        "Time per output token (ms)",
        "Time per output token (ms), low",
        "Time per output token (ms), high",
        "Cost per million output tokens ($)",
        "Cost per million output tokens ($), low",
        "Cost per million output tokens ($), high",
        "Devices",
    ]
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
    values = frame["Time per output token (ms)"]
    np.testing.assert_allclose(values, splits.values("tpot", splits.order), rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "qwen3-32b-8x-h100-sxm-tradeoff"),
        ({"hardware.nodes": 2, "hardware.device": "mi300x"}, "qwen3-32b-16x-mi300x-tradeoff"),
        ({"model": {"model_type": "llama"}}, "model-8x-h100-sxm-tradeoff"),
    ],
)
def test_files_are_named_after_the_request(changes: dict[str, object], name: str) -> None:
    request = REQUEST.model_copy(update={"model": changes.pop("model", REQUEST.model)})
    assert exports.file_name(change(request, changes) if changes else request, "tradeoff") == name


def test_names_of_files_hold_nothing_but_letters_digits_and_dashes() -> None:
    request = REQUEST.model_copy(update={"model": "../../Etc/<b>pass wd" + "x" * 300})
    name = exports.file_name(request, "splits")
    assert name.startswith("b-pass-wdxxx")
    assert len(name) <= exports.LONGEST_NAME + len("-splits")


def test_a_picture_is_of_a_known_format() -> None:
    assert exports.picture_config("a", "svg")["toImageButtonOptions"]["format"] == "svg"
    assert exports.picture_config("a", "../exe")["toImageButtonOptions"]["format"] == "png"


def test_a_chart_is_one_file_without_a_network() -> None:
    splits = plan(REQUEST)
    page = exports.chart_page(charts.tradeoff(splits, *splits.axes), "chart").decode()
    assert page.startswith("<!doctype html>")
    assert "Time per output token (ms)" in page
    assert "<script src=" not in page
