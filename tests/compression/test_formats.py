"""What techniques of compression do to one plan."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import recipe_core as rb
from recipe_core.accuracy.lookup import support_of
from recipe_core.accuracy.technique import techniques
from recipe_core.base.documents import finite
from recipe_core.compression.advisor.advise import advise
from recipe_core.compression.advisor.changed_model import FILE, estimated_entry
from recipe_core.compression.advisor.result import FIGURES, CompressAnswer
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.views import formats as view
from recipe_core.views.columns import cell_texts
from recipe_core.views.formats import format_advice_text
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_request

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
VALUES = {
    "model": LLAMA_70B,
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 32},
    "options": {"engines": ["vllm"]},
}


@cache
def advice(device: str, *names: str, model: str = LLAMA_70B, **objective: Any) -> CompressAnswer:
    changes = {
        "model": model,
        "hardware": {"device": device, "per_node": 8},
        "objective": {"optimize": "cost", "limits": objective},
    }
    return advise(PlanRequest.parse(VALUES | changes), names=names or None)


def ratio(given: CompressAnswer, name: str, figure: str) -> float:
    """A figure of a technique over the base's on the same split."""
    return float(given.row(name).same_split.ratio(figure))


@over("device name figure low high", table("formats", "ratios"))
def test_a_technique_saves_what_its_format_does(device, name, figure, low, high) -> None:
    assert low < ratio(advice(device, name), name, figure) < high


@over("device name verdict", table("formats", "verdicts"))
def test_formats_without_units_are_kernels_of_weights_only(device, name, verdict) -> None:
    assert advice(device, name).row(name).support.verdict == verdict


def test_zeros_save_nothing_in_no_pattern_and_a_sibling_keeps_less() -> None:
    for device in ("h100-sxm", "a100-80gb-sxm", "mi300x", "b200-sxm"):
        row = advice(device, "sparse_unstructured", model=LLAMA_8B).row("sparse_unstructured")
        assert (row.same_split, row.best_split) == (None, None)
        assert row.why
    for device in ("mi300x", "mi250"):
        row = advice(device, "sparse_2_4", model=LLAMA_8B).row("sparse_2_4")
        assert row.state in ("refused", "void", "unknown")
        assert row.same_split is None
    sibling = advice("h100-sxm", "distilled_sibling").row("distilled_sibling")
    assert sibling.set is not None
    assert sibling.accuracy.retained.value < 0.85
    assert sibling.accuracy.retained.low < 0.7


LLAMA_33 = "meta-llama/Llama-3.3-70B-Instruct"


def test_what_is_recommended_is_measured_keeps_its_accuracy_and_ends_in_a_bundle() -> None:
    """INT8 stood first on H100, where nobody measured it, and its recipe could not be built."""
    given = advice("h100-sxm", model=LLAMA_33, tpot_ms=40.0)
    best = given.best
    assert best is not None
    assert best.recommended
    assert [row.technique for row in given.formats if row.recommended] == [best.technique]
    assert (best.speed, best.checkpoint) == ("fitted", "exists")
    assert best.accuracy.retained.value >= given.accuracy_floor == 0.98
    int8 = given.row("int8_w8a8")
    assert int8.rank < best.rank
    assert (int8.speed, int8.best_at) == ("prior", [])
    answer = finite(given.to_json())
    shown = view.usable_formats(answer)
    assert shown[0]["technique"] == best.technique
    assert "INT8 weights and activations may cost less" in view.formats_verdict(answer)
    assert not any(view.is_smaller_model(row) for row in shown)
    smaller = [row for row in view.smaller_models(answer) if row["accuracy"]["retained"]]
    siblings = [view.technique_title(row) for row in smaller]
    assert siblings[0].startswith("Llama-3.1-8B-Instruct, ")
    first = answer["formats"][0]
    assert first["best_split"]["split"] != answer["base"]["best_split"]["split"]
    assert first["best_split"]["split"] in view.weights_text(first, answer)


def test_the_recommended_row_is_first_and_marked_and_the_others_have_their_places() -> None:
    answer = finite(advice("h100-sxm", model=LLAMA_33, tpot_ms=40.0).to_json())
    rows = view.usable_formats(answer)
    places = cell_texts(rows, view.technique_columns()[:1])
    assert rows[0]["rank"] > 1
    assert [place for [place] in places].count("★") == 1
    assert places[0] == ["★"]
    assert all(place.isdigit() for [place] in places[1:])


def test_rows_and_base_are_said_in_words() -> None:
    answer = finite(every().to_json())
    assert "H100 SXM" in view.base_sentence(answer)
    assert "h100-sxm" not in view.base_sentence(answer)
    rows = answer["formats"]
    said = [text(row) for row in rows for text in (view.reason_text, view.support_text)]
    classes = re.compile(r"[a-z0-9](Backend|Config|Enum|Error|Format|Kernel|Loader|Method)\b")
    quoted = [row for row in rows if classes.search(row["support"]["words"])]
    assert len(quoted) > 3
    assert [text for text in said if classes.search(text)] == []
    assert all(view.reason_text(row) for row in rows if row["why"])
    why = "vLLM does not load fp8 weights (“ValueError: no kernel”)."
    refused = {"why": why, "support": {"words": "FP8 needs 8.9", "note": ""}}
    assert view.reason_text(refused) == "vLLM does not load fp8 weights."


@over("device", ["h100-sxm", "a100-80gb-sxm", "b200-sxm", "mi300x", "l40s"])
def test_fp8_and_int4_are_among_the_first_rows_wherever_a_bundle_has_them(device: str) -> None:
    shown = view.usable_formats(finite(advice(device, model=LLAMA_33).to_json()))
    places = {row["technique"]: place for place, row in enumerate(shown)}
    asked_for = [name for name in view.ASKED_FOR if name in places]
    assert "int4_weight_only" in asked_for
    assert all(places[name] < view.FIRST_ROWS for name in asked_for)


def test_a_speed_that_nobody_measured_has_a_wider_band() -> None:
    """Profiles of H100 have fits of fp8, those of A100 of int8."""

    def width(device: str, name: str) -> tuple[str, float]:
        row = advice(device, "int8_w8a8", "fp8_w8a8", "w4a8_fp8").row(name)
        figure = row.same_split.figures["tpot_s"]
        return row.speed, figure.high / figure.low

    (fitted, narrow), (guessed, wide) = (
        width("h100-sxm", "fp8_w8a8"),
        width("h100-sxm", "int8_w8a8"),
    )
    assert (fitted, guessed) == ("fitted", "prior")
    assert wide > 1.3 * narrow
    assumed, same = width("h100-sxm", "w4a8_fp8")
    assert assumed == "prior"
    assert same > 1.3 * narrow
    assert width("a100-80gb-sxm", "int8_w8a8")[0] == "fitted"


def test_each_row_says_what_it_takes_and_its_request_builds(tmp_path: Path) -> None:
    names = ("int8_w8a8", "fp8_w8a8", "kv_fp8")
    given = advice("h100-sxm", *names, model=LLAMA_33)
    answer = finite(given.to_json())
    rows = {row["technique"]: row for row in answer["formats"]}
    assert [rows[name]["checkpoint"] for name in names] == ["to be made", "exists", "on load"]
    made = rows["int8_w8a8"]["making"]
    assert made["low"] < made["seconds"] < made["high"]
    assert re.fullmatch(
        r"to be made \(about [\d.]+ (min|h) on 1 GPU\)", view.checkpoint_text(rows["int8_w8a8"])
    )
    asked = PlanRequest.parse(VALUES | {"model": LLAMA_33, "objective": {"optimize": "cost"}})
    for name, compresses in zip(names, (True, False, False), strict=True):
        rb.write(rb.build(change(asked, rows[name]["set"]).to_json()), tmp_path / name)
        assert (tmp_path / name / "compress.py").exists() is compresses, name


def every() -> CompressAnswer:
    return advice("h100-sxm", model=LLAMA_8B, accuracy_recovery=0.98)


def test_what_does_not_run_has_words_and_no_figures() -> None:
    refused = [row for row in every().formats if row.state == "refused"]
    assert len(refused) > 5
    for row in refused:
        assert row.same_split is None
        assert row.support.words in row.why or row.support.note in row.why
    # emulated formats have memory and say why no times
    for row in every().formats:
        if row.state == "memory only":
            assert row.same_split.value("weights_bytes") is not None
            assert row.same_split.value("tpot_s") is None
            assert row.why


def test_rows_within_the_limit_come_first_and_weights_and_cache_multiply() -> None:
    ranked = [row for row in every().formats if row.rank is not None]
    assert [row.rank for row in ranked] == list(range(1, len(ranked) + 1))
    inside = [row for row in ranked if row.accuracy.within_limit]
    assert ranked[: len(inside)] == inside
    costs = [row.best_split.value("usd_per_million_output_tokens") for row in inside]
    assert costs[0] == min(costs)
    assert any("cost" in row.best_at for row in inside)
    # weights and cache multiply as both are planned
    names = ("fp8_w8a8", "kv_fp8")
    [pair] = [pair for pair in every().combinations if tuple(pair.techniques) == names]
    assert pair.effect == "multiply"
    assert pair.estimated["tpot_s"] == pytest.approx(ratio(every(), "fp8_w8a8_kv_fp8", "tpot_s"))
    assert pair.estimated["cache_tokens"] == pytest.approx(pair.product["cache_tokens"], rel=0.01)


def test_without_a_limit_what_may_lose_much_is_not_first() -> None:
    """A sibling of a tenth of the cost that keeps 49 to 106 % was first."""
    names = ("distilled_sibling", "fp8_w8a8", "layer_pruning", "int4_weight_only")
    given = advice("h100-sxm", *names)
    ranked = [row for row in given.formats if row.rank is not None]
    assert [row.technique for row in ranked][:2] == ["int4_weight_only", "fp8_w8a8"]
    assert all(row.accuracy.retained.value >= 0.98 for row in ranked[:2])
    assert all(row.accuracy.retained.value < 0.98 for row in ranked[2:])
    costs = [row.best_split.value("usd_per_million_output_tokens") for row in ranked]
    assert min(costs) < costs[0]
    assert not any(row.best_at for row in ranked[2:])
    assert "what keeps less than 98 % comes after" in format_advice_text(finite(given.to_json()))
    weighed = PlanRequest.parse(VALUES | {"objective": {"weights": {"cost": 1, "accuracy": 1e-3}}})
    assert advise(weighed, names=names).formats[0].technique == "distilled_sibling"


def test_published_checkpoints_are_taken_and_quantised_requests_compared_with_theirs() -> None:
    row = advice("h100-sxm", "int4_weight_only", model="Qwen/Qwen3-32B").row("int4_weight_only")
    assert "Qwen/Qwen3-32B-AWQ" in row.checkpoints
    assert row.set["model"] in row.checkpoints
    row = advice("b200-sxm", "nvfp4_w4a4").row("nvfp4_w4a4")
    assert not row.checkpoints
    made = {"options.compression": {"technique": "nvfp4_w4a4"}}
    assert row.set == {"options.weight_dtypes": ["nvfp4"]} | made
    given = advice("h100-sxm", "fp8_w8a8", model="Qwen/Qwen3-32B-FP8")
    assert given.model == "Qwen/Qwen3-32B"
    assert "Qwen/Qwen3-32B" in given.base.notes[0]
    # a model published small is not made smaller by guess
    given = advice("h100-sxm", "mxfp4_weight_only", "int4_weight_only", model="openai/gpt-oss-20b")
    assert given.row("mxfp4_weight_only").state == "already"
    assert given.row("int4_weight_only").state == "void"
    assert "published in mxfp4 only" in given.row("int4_weight_only").why


def test_training_is_refused_and_the_matrix_says_what_support_says() -> None:
    assert "served" in str(refusal(advise, training_request()))
    matrix = every().matrix
    cell, support = matrix.by_engine["fp8_w8a8"]["vllm"], support_of("fp8_w8a8", "vllm", "hopper")
    assert (cell.verdict, cell.source, cell.url) == (support.verdict, support.source, support.url)
    assert matrix.by_hardware["nvfp4_w4a4"]["blackwell"].verdict == "native"
    assert next(iter(matrix.by_engine["fp8_w8a8"])) == "vllm"
    assert set(FILE.read()["techniques"]) - {"gguf"} <= set(techniques())
    assert estimated_entry("gguf_q4_k_m").whole


@over("device model", [("h100-sxm", LLAMA_8B), ("mi300x", LLAMA_8B), ("l4", "BAAI/bge-m3")])
def test_the_answer_is_what_its_schema_says(device: str, model: str) -> None:
    values = {
        "model": model,
        "hardware": {"device": device, "per_node": 1},
        "workload": {"concurrency": 8},
        "objective": {"limits": {"accuracy_recovery": 0.97}} if model == LLAMA_8B else {},
    }
    plain = finite(advise(PlanRequest.parse(values)).to_json())
    answer = CompressAnswer.model_validate(plain)
    assert answer.model_dump(mode="json") == plain
    for row in answer.formats:
        for split in filter(None, (row.same_split, row.best_split)):
            assert set(split.figures) == set(FIGURES)
