"""A measured checkpoint goes back as a measurement, and moves what is expected of its technique."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.errors import InputError
from recipe_core.compression.own import with_own
from recipe_core.compression.retained import Retained
from recipe_core.measured.compression import (
    MeasuredCompression,
    compression_of,
    own_figure,
    read_compression,
)

DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "kind": "compression",
    "created": "2026-11-20T10:00:00+00:00",
    "source": "owner/model",
    "technique": "int4_weight_only",
    "method": "GPTQ",
    "verification": {
        "retained": {"perplexity": 0.98, "agreement": 0.9},
        "tokens": 2048,
        "passed": True,
    },
}


def run(**changes: Any) -> MeasuredCompression:
    return compression_of(DOCUMENT | changes)


def test_a_bundle_without_one_has_none(tmp_path: Path) -> None:
    assert read_compression(tmp_path) is None
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "compression.json").write_text(json.dumps(DOCUMENT))
    measured = read_compression(tmp_path)
    assert measured is not None
    assert (measured.model, measured.retained, measured.tokens) == ("owner/model", 0.98, 2048)
    assert not measured.expired(datetime.date(2026, 12, 1))
    assert measured.expired(datetime.date(2027, 12, 1))


def test_another_file_is_refused_by_its_field() -> None:
    with pytest.raises(InputError, match="verification"):
        compression_of({**DOCUMENT, "verification": {}})
    with pytest.raises(InputError, match="is of serving"):
        compression_of({**DOCUMENT, "kind": "serving"})


def test_it_speaks_for_its_own_model_and_technique() -> None:
    runs = [run(), run(created="2026-11-25T10:00:00+00:00")]
    newest = own_figure(runs, "Owner/Model", "int4_weight_only")
    assert newest is not None
    assert newest.date == datetime.date(2026, 11, 25)
    assert own_figure(runs, "owner/other", "int4_weight_only") is None
    assert own_figure(runs, "owner/model", "int4_weight_only", "AWQ") is None


def test_it_raises_what_is_expected_and_stands_first() -> None:
    expected = Retained(0.97, 0.93, 0.99, "the model of published figures")
    moved = with_own(expected, [run()], "owner/model", "int4_weight_only")
    assert moved.value == 0.98
    assert 0.93 < moved.low <= moved.value <= moved.high
    assert moved.nearest[0].source == "measured here"
    assert moved.basis.startswith("measured here")
    assert with_own(expected, [], "owner/model", "int4_weight_only") is expected


def test_it_is_the_answer_where_nothing_was_known() -> None:
    unknown = Retained(float("nan"), float("nan"), float("nan"), "nothing near", known=False)
    answer = with_own(unknown, [run()], "owner/model", "int4_weight_only")
    assert answer.known
    assert answer.value == 0.98
