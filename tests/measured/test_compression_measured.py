"""A measured checkpoint goes back as a measurement, and moves what is expected of its technique."""

from __future__ import annotations

import datetime
import json
from typing import Any

from recipe_core.compression.own import with_own
from recipe_core.compression.retained import Retained
from recipe_core.measured.compression import compression_of, own_figure, read_compression
from tests.fixtures.refusals import refusal

DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "kind": "compression",
    "created": "2026-11-20T10:00:00+00:00",
    "source": "owner/model",
    "technique": "int4_weight_only",
    "method": "GPTQ",
    "verification": {"retained": {"perplexity": 0.98}, "tokens": 2048, "passed": True},
}


def test_a_bundle_without_one_has_none(tmp_path):
    assert read_compression(tmp_path) is None
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "compression.json").write_text(json.dumps(DOCUMENT))
    measured = read_compression(tmp_path)
    assert (measured.model, measured.retained, measured.tokens) == ("owner/model", 0.98, 2048)
    assert not measured.expired(datetime.date(2026, 12, 1))
    assert measured.expired(datetime.date(2027, 12, 1))
    # another file is refused by its field
    for changes, said in (({"verification": {}}, "verification"), ({"kind": "serving"}, "serving")):
        assert said in str(refusal(compression_of, {**DOCUMENT, **changes}))


def test_it_speaks_for_its_own_model_and_technique():
    newer = DOCUMENT | {"created": "2026-11-25T10:00:00+00:00"}
    runs = [compression_of(DOCUMENT), compression_of(newer)]
    newest = own_figure(runs, "Owner/Model", "int4_weight_only")
    assert newest.date == datetime.date(2026, 11, 25)
    assert own_figure(runs, "owner/other", "int4_weight_only") is None
    assert own_figure(runs, "owner/model", "int4_weight_only", "AWQ") is None


def test_it_raises_what_is_expected_and_stands_first():
    expected = Retained(0.97, 0.93, 0.99, "the model of published figures")
    moved = with_own(expected, [compression_of(DOCUMENT)], "owner/model", "int4_weight_only")
    assert moved.value == 0.98
    assert 0.93 < moved.low <= moved.value <= moved.high
    assert moved.nearest[0].source == "measured here"
    assert moved.basis.startswith("measured here")
    assert with_own(expected, [], "owner/model", "int4_weight_only") is expected
    # and is the answer where nothing was known
    unknown = Retained(float("nan"), float("nan"), float("nan"), "nothing near", known=False)
    answer = with_own(unknown, [compression_of(DOCUMENT)], "owner/model", "int4_weight_only")
    assert (answer.known, answer.value) == (True, 0.98)
