"""Measured runs as tables, estimates held against them, and the table that is shipped."""

from __future__ import annotations

import ast
import json
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recipe_core.base.documents import read_document
from recipe_core.base.resources import PACKAGE
from recipe_core.calibration.validate import (
    ALL,
    PAIRINGS,
    SCORED,
    compare,
    errors,
    pairs,
    primary,
    ranking,
    sections,
    validation_text,
    validation_view,
)
from recipe_core.hardware.cluster import device
from recipe_core.measured.serving_runs import (
    FIGURES,
    PUBLISHED,
    SOURCES,
    Run,
    listings,
    published_runs,
    read_runs,
)
from recipe_core.model.catalog import catalog_ids
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import estimate_batch
from scripts.publish_runs import as_runs
from scripts.publish_runs import runs as truth_runs
from tests.conftest import LLAMA_70B
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

SAME, ANY_VERSION, ANY_GPUS = PAIRINGS


def run(**values) -> Run:
    plain = {"id": "one", "model": LLAMA_70B, "device": "h100-sxm", "per_node": 8, "tp": 8}
    plain |= {"engine": "vllm", "mode": "closed", "input_tokens": 1024, "output_tokens": 256}
    return Run.model_validate(plain | {"load": 16, "tpot_ms": 20.0} | values)


def measured_as(factor: float, **values) -> Run:
    """A run whose every figure is ``factor`` times the estimate."""
    served = estimate_batch([run(**values).request()])[0]["serving"]
    times = ("ttft", "tpot", "request_latency")
    figures = {f"{name}_ms": served[f"{name}_s"] * 1e3 * factor for name in times}
    rate = served["output_tokens_per_s"] * factor
    figures |= {"output_tokens_per_s": rate, "total_tokens_per_s": rate * (1024 + 256) / 256}
    return run(**values, **figures)


COLUMNS = "id,model,device,per_node,engine,tp,mode,input_tokens,output_tokens,load,tpot_ms"


def written(path: Path, *rows: str, header: str = COLUMNS) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


GOOD = f"a,{LLAMA_70B},h100-sxm,8,vllm,8,closed,1024,256,16,20"


def test_errors_are_those_of_known_ratios():
    half = measured_as(0.5, id="half", source="x")
    found = compare([half, measured_as(2.0, id="double", source="y", load=32)])
    assert found.figures.id.nunique() == 2
    assert not found.not_covered
    by_source = errors(found.figures, ["source"]).set_index("source")
    assert by_source.loc["x", ["n", "cells"]].tolist() == [5, 1]
    shares = by_source[["median", "mean", "p90", "bias"]].astype(float)
    np.testing.assert_allclose(shares.loc["x", ["median", "mean", "bias"]], [1.0, 1.0, 2.0])
    np.testing.assert_allclose(shares.loc["y", ["median", "p90", "bias"]], [0.5, 0.5, 0.5])
    tpot = errors(found.figures, ["figure"]).set_index("figure").loc["tpot_ms"]
    assert (tpot.n, tpot.cells) == (2, 2)
    assert tpot["mean"] == pytest.approx(0.75)


def test_a_measurement_at_the_estimate_is_inside_and_cells_count_alike():
    (row,) = errors(compare([measured_as(1.0)]).figures, ["vendor"]).itertuples()
    assert (row.median, row.inside) == (pytest.approx(0), 1.0)
    assert errors(compare([measured_as(1e3)]).figures, ["vendor"]).inside.tolist() == [0.0]
    # Nine right runs of one source, one of another off by half: the cells' mean is between.
    frame = compare(
        [measured_as(1.0, id=f"r{n}", source="large") for n in range(9)]
        + [measured_as(2.0, source="small")]
    ).figures
    all_runs = errors(frame[frame.figure == "tpot_ms"], ["figure"])
    assert all_runs.loc[0, ["n", "cells"]].tolist() == [10, 2]
    assert all_runs["median"][0] == pytest.approx(0)
    assert all_runs.cell_mean[0] == pytest.approx(0.25)


def test_what_has_no_estimate_is_counted_and_named():
    unknown = [run(id="a", model="no/such"), run(id="b", engine="nothing")]
    found = compare([*unknown, run(id="c", per_node=1, tp=1), run(id="d")])
    assert sorted(found.not_covered.values()) == [1, 1]
    assert [(refused.id, "short" in reason) for refused, reason in found.refused] == [("c", True)]
    assert found.figures.id.unique().tolist() == ["d"]
    text = validation_text(found, "device")
    assert "unknown model 'no/such'" in text
    assert "refused though measured: 1\n  c: " in text
    view = validation_view(found, "device")
    assert (view["runs"], view["estimated"], view["by_device"][0]["n"]) == (4, 1, 1)
    nothing = compare(unknown[:1])  # is an answer too
    assert "1 runs, 0 estimated" in validation_text(nothing, "model")
    assert validation_view(nothing)["figures"] == []


def split_run(name: str, tp: int, measured: float, estimated: float, **values) -> dict:
    """A figure of a run as ``compare`` would give it; the numbers are invented."""
    pp = values.pop("pp", 1)
    plain = {"id": name, "source": "s", "device": "h100-sxm", "vendor": "nvidia", "model": "m"}
    plain |= {"engine": "vllm", "version": "1", "nodes": 1, "per_node": tp * pp, "tp": tp, "pp": pp}
    plain |= {"dp": 1, "ep": 1, "weight_dtype": "auto", "kv_dtype": "auto", "mode": "closed"}
    plain |= {"max_num_seqs": None, "memory_fraction": None, "input_tokens": 1, "output_tokens": 1}
    plain |= {"load": 8.0, "figure": "tpot_ms", "measured": measured, "estimated": estimated}
    return plain | values


def cell(errors: list[float], **values) -> list[dict]:
    """Figures of one cell as ``compare`` would give them, with the errors stated."""
    plain = {"source": "s", "device": "h100-sxm", "model": "m", "mode": "closed", "scenario": ""}
    plain |= {"figure": "tpot_ms", "exclude": ""} | values
    return [plain | {"error": error} for error in errors]


def test_the_primary_score_is_that_of_a_table_worked_out_by_hand():
    """Three figures make a cell; medians of four cells: 0.1, 0.2, 0.3 and 0.9."""
    cells = [
        cell([0.1, 0.1, 5.0]),
        cell([0.2, 0.1, 0.3], model="n"),
        cell([0.0, 0.3, 0.4, 0.3], device="mi300x"),
        cell([0.9, 0.9, 0.9], source=next(iter(listings()))),
        cell([0.7, 0.7], source="of two runs"),
        cell([3.0, 3.0, 3.0], exclude="prompts from a cache"),
        cell([0.5, 0.5, 0.5], figure="ttft_ms", exclude="an experiment"),
        cell([0.4, 0.4, 0.4], mode="offline", scenario="data set"),
        cell([0.6, 0.6, 0.6], mode="offline"),
        cell([0.8, 0.8], mode="static"),
    ]
    scores = primary(pd.DataFrame(chain.from_iterable(cells))).set_index(["runs", "mode", "figure"])
    # 0.2 + 0.8 · (0.3 - 0.2); of 12 figures the sixth and seventh are 0.3 and 0.3
    score = {"cells": 3, "cell_median": 0.2, "cell_p90": 0.28}
    score |= {"n": 12, "median": 0.3, "within_20": 5 / 12}
    assert scores.loc[(SCORED, "closed", "tpot_ms")].to_dict() == pytest.approx(score)
    # with all runs the first cell's median is that of 0.1, 0.1, 3, 3, 3, 5
    everything = scores.loc[(ALL, "closed", "tpot_ms")]
    assert everything[["cells", "n"]].tolist() == [4, 18]
    assert everything.cell_median == pytest.approx((0.3 + 0.9) / 2)
    assert everything.cell_p90 == pytest.approx(0.9 + 0.7 * (3.0 - 0.9))
    assert scores.loc[(SCORED, "offline", "tpot_ms"), "cell_median"] == 0.6
    assert scores.loc[(SCORED, "offline, data set", "tpot_ms"), "cell_median"] == 0.4
    assert (ALL, "closed", "ttft_ms") in scores.index
    assert (SCORED, "closed", "ttft_ms") not in scores.index
    assert "static" not in scores.index.get_level_values("mode")


def test_the_primary_score_comes_first():
    found = compare([measured_as(0.5, id=f"r{n}", load=n + 1) for n in range(3)])
    assert next(iter(sections(found))) == "primary"
    text = validation_text(found)
    assert text.index("Primary score") < text.index("By figure")
    best = validation_view(found)["primary"][0]
    assert (best["runs"], best["cells"], best["n"]) == (ALL, 1, 3)
    assert best["cell_median"] == pytest.approx(1.0)


def test_pairs_of_splits_are_counted_by_hand():
    frame = pd.DataFrame(
        [
            split_run("a", 8, 10.0, 12.0),
            split_run("b", 4, 20.0, 24.0, pp=2),  # a better than b, and known
            # within 10 % of a: no pair; better than b, which is not known
            split_run("c", 2, 10.5, 30.0, pp=4),
            split_run("d", 8, 90.0, 1.0),  # the split of a: a pair with b and c only
            split_run("e", 8, 5.0, 5.0, load=9.0),  # another load
            split_run("f", 4, 50.0, 99.0),  # other GPUs
            # another version; the estimate ties with a
            split_run("g", 1, 30.0, 12.06, pp=8, version="2"),
        ]
    )
    same = pairs(frame, SAME)
    assert len(same) == 4  # a-b, b-c, b-d, c-d
    assert same.right.tolist().count(True) == 1
    assert len(pairs(frame, ANY_VERSION)) == 4 + 4  # and g with a, b, c, d
    assert pairs(frame, ANY_VERSION).tied.sum() == 1
    assert len(pairs(frame, ANY_GPUS)) == 4 + 4  # and f with a, b, c, d
    shares = ranking(frame).set_index(["compared", "figure"])
    assert shares.loc[(SAME.title, "tpot_ms"), ["pairs", "right"]].tolist() == [4, 0.25]


def test_pairs_have_limits_in_common_are_compared_per_gpu_and_ties_are_not_right():
    rows = [split_run("a", 8, 10.0, 12.0), split_run("b", 4, 20.0, 24.0, pp=2, max_num_seqs=64)]
    assert pairs(pd.DataFrame(rows), SAME).empty
    assert len(pairs(pd.DataFrame([row | {"max_num_seqs": 64} for row in rows]), SAME)) == 1
    throughput = {"figure": "output_tokens_per_s"}
    rows = [split_run("a", 8, 800.0, 900.0, **throughput)]  # 100 and 112 a GPU
    rows += [split_run("b", 2, 300.0, 300.0, **throughput)]  # 150 and 150
    assert pairs(pd.DataFrame(rows), ANY_GPUS).right.tolist() == [True]
    assert pairs(pd.DataFrame(rows), SAME).empty
    rows = [split_run("a", 8, 10.0, 7.0), split_run("b", 4, 20.0, 7.0, pp=2)]
    assert pairs(pd.DataFrame(rows), SAME)[["right", "tied"]].values.tolist() == [[False, True]]


def test_a_table_is_read(tmp_path):
    other = GOOD.replace("a,", "b,", 1).replace(",8,closed", ",,closed")
    path = written(tmp_path / "runs.csv", GOOD, "", other)
    first, second = read_runs(path)
    assert (first.tp, second.tp, first.kv_dtype, first.source) == (8, 1, "auto", "")
    assert first.load == 16.0
    assert not {"max_num_seqs", "memory_fraction"} & set(first.request()["candidate"])
    path.write_text("\ufeff" + path.read_text())  # as spreadsheets write it
    assert [each.id for each in read_runs(path)] == ["a", "b"]


def test_limits_of_a_run_are_asked_for(tmp_path):
    header = f"{COLUMNS},max_num_seqs,memory_fraction,exclude"
    path = written(tmp_path / "runs.csv", f"{GOOD},64,0.85,a copy", f"b{GOOD},,,", header=header)
    first, second = read_runs(path)
    asked = PlanRequest.parse(first.request()).candidate
    assert (asked.max_num_seqs, asked.memory_fraction) == (64, 0.85)
    assert (first.exclude, second.exclude) == ("a copy", "")
    written(path, f"{GOOD},64,85,", header=header)
    said = str(refusal(read_runs, path))
    assert "line 2, column memory_fraction: " in said
    assert "less than or equal" in said


@over("before after parts", ((*row[:2], row[2:]) for row in table("calibration", "rows")))
def test_bad_rows_are_named(tmp_path, before, after, parts):
    first, row = GOOD.replace("a,", "first,", 1), GOOD.replace(before, after, 1)
    said = str(refusal(read_runs, written(tmp_path / "runs.csv", first, row)))
    assert [part for part in parts if part not in said] == [], said


def test_bad_columns_and_all_bad_rows_are_named(tmp_path):
    path = tmp_path / "runs.csv"
    rows = [GOOD.replace("a,", f"r{n},", 1).replace("vllm", "") for n in range(12)]
    said = str(refusal(read_runs, written(path, *rows)))
    assert "line 9, column engine: is empty" in said
    assert "and 4 more" in said
    for header, part in table("calibration", "columns").items():
        assert part in str(refusal(read_runs, written(path, header=header)))
    assert "cannot read" in str(refusal(read_runs, tmp_path / "none.csv"))


def test_the_command_answers_and_refuses(tmp_path):
    path = str(written(tmp_path / "runs.csv", GOOD))
    answer = json.loads(recipe("validate", path, "--json", "--by", "engine").stdout)
    assert (answer["runs"], answer["by_engine"][0]["engine"], answer["ranking"]) == (1, "vllm", [])
    assert "tpot_ms" in recipe("validate", path).stdout
    assert recipe("validate", path, "--by", "colour").returncode == 2


def test_shipped_runs_are_many_and_from_many_known_sources():
    runs = published_runs()
    assert 300 <= len(runs) <= 600
    assert PUBLISHED.stat().st_size < 120_000
    assert max(Counter(each.id for each in runs).values()) == 1
    assert len({each.device for each in runs}) >= 15
    assert len({each.source for each in runs}) >= 10
    assert {device(each.device).vendor for each in runs} == {"nvidia", "amd"}
    assert {each.mode for each in runs} >= {"closed", "static", "offline"}
    assert all(any(getattr(each, figure) for each in runs) for figure in FIGURES)
    known = read_document(SOURCES)
    runs = published_runs()
    assert {each.source for each in runs} == set(known)
    assert all(each.reference for each in runs)
    for source in known.values():
        assert set(source) - {"listing", "asked_as"} == {"title", "url", "how"}
        assert source["url"].startswith("https://")
    assert listings() < set(known)
    assert any(each.exclude for each in runs)


def test_truth_tables_become_runs(tmp_path):
    """What the source states of queue, limits and attention reaches the request."""
    plain = {"model_hf_id": LLAMA_70B, "gpu": "H100-SXM-80GB", "num_gpus": 8, "num_nodes": 1}
    plain |= {"tp": 4.0, "pp": 1.0, "dp": 2.0, "ep": 1.0, "engine": "vLLM"}
    plain |= {"engine_version": "0.9.1", "weight_dtype": "fp8", "kv_dtype": "fp8"}
    plain |= {"isl_eff": 1000.4, "osl_eff": 100.0, "date_version": "2026-01", "src_key": "s"}
    plain |= {"metric": "output_tokens_per_s_total", "value": 900.0, "source": "page"}
    plain |= {"spec_decode": "none", "quality": "A", "mode": "max_throughput"}
    unknown = ("requests", "max_num_seqs", "memory_fraction", "attention_dp", "exclude")
    plain |= dict.fromkeys((*unknown, "concurrency_or_batch"))
    rows = [
        plain | {"group_id": "a"},
        plain | {"group_id": "b", "requests": 3200.0, "max_num_seqs": 256.0},
        plain | {"group_id": "c", "attention_dp": 1.0, "memory_fraction": 0.8},
        plain | {"group_id": "d", "mode": "offline", "exclude": "a copy"},
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "serving_calibration.csv.gz", index=False)
    queue, stated, apart, excluded = as_runs(truth_runs(tmp_path))
    assert [each.load for each in (queue, stated)] == [10_000, 3200]
    assert (queue.tp, queue.dp, queue.ep, queue.max_num_seqs) == (4, 2, 1, None)
    assert stated.max_num_seqs == 256
    assert (apart.tp, apart.dp, apart.ep, apart.memory_fraction) == (1, 8, 8, 0.8)
    assert (excluded.mode, excluded.scenario, excluded.exclude) == ("offline", "data set", "a copy")


def test_shipped_runs_are_requests_that_can_be_answered():
    """Every row is a valid request; one that has no estimate has an uncovered model or engine."""
    runs = published_runs()
    for each in runs:
        PlanRequest.parse(each.request())
    found = compare(runs)
    uncovered = ("unknown model", "unknown engine")
    assert all(reason.startswith(uncovered) for reason in found.not_covered)
    assert found.figures.id.nunique() >= 0.8 * len(runs)
    assert {"nvidia", "amd"} == set(found.figures.vendor)


PROSE = {"title", "titles", "note", "notes", "source", "sources", "url", "command"}
PROSE |= {"description", "reason"}


def words_of_data(value, key: str = "") -> list[str]:
    """Keys and texts of a data file that are not prose about where a number is from."""
    if key in PROSE:
        return []
    if isinstance(value, dict):
        parts = ([str(name), *words_of_data(part, str(name))] for name, part in value.items())
        return list(chain.from_iterable(parts))
    if isinstance(value, list):
        return list(chain.from_iterable(map(words_of_data, value)))
    return [value] if isinstance(value, str) else []


def words_of_code(text: str) -> list[str]:
    """Names and texts of a module but for its docstrings; comments are no part of the tree."""
    nodes = list(ast.walk(ast.parse(text)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    prose = {
        node.body[0].value
        for node in nodes
        if isinstance(node, documented) and ast.get_docstring(node)
    }
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in prose]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return [word for word in [*texts, *names] if isinstance(word, str)]


PROFILES = ROOT / "hw_profiles"


def test_no_number_is_keyed_by_a_model():
    """No model of the catalog is named where numbers of the estimate live, but in prose."""
    names = {
        word.casefold()
        for model in catalog_ids()
        for word in (model, model.split("/")[-1], model.replace("/", "--"))
    }
    registries = {"titan_models", "megatron"}  # of models and of their families
    files = [
        path
        for folder in (*(PACKAGE / name for name in ("physics", "space", "engines")), PROFILES)
        for path in folder.rglob("*")
        # options are flags and what they take: an engine's parsers have models' names
        if path.suffix in {".yaml", ".py"} and path.parent.name != "options"
    ]
    assert len(files) > 50
    found = {}
    for path in files:
        text, data = path.read_text(), path.suffix == ".yaml"
        folded = text.casefold()
        near = [name for name in names if name in folded]
        if near and path.stem not in registries:
            words = words_of_data(read_document(path)) if data else words_of_code(text)
            found[path] = {word for word in words for name in near if name in word.casefold()}
    found = {path: words for path, words in found.items() if words}
    assert found == {}
    # the search finds them
    assert "gpt-j-6b" in words_of_data({"overheads": {"gpt-j-6b": 2, "note": "as for gpt-2"}})
    assert "gpt-2" not in " ".join(words_of_data({"overheads": {"note": "as for gpt-2"}}))
    assert words_of_code('"""gpt-2"""\nx = {"gpt-j-6b": 2}  # gpt-2\n') == ["gpt-j-6b", "x"]
