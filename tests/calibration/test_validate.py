"""Measured runs as tables, estimates held against them, and the tables that are shipped."""

import ast
import json
from itertools import chain

import numpy as np
import pandas as pd
import pytest

from recipe_core.base.documents import read_document
from recipe_core.base.resources import PACKAGE
from recipe_core.calibration.validation import comparison, validate
from recipe_core.estimates.measured.runs import (
    FIGURES,
    KNOWN_RUNS,
    PUBLISHED,
    SOURCES,
    TRAINING_RUNS,
    Run,
    TrainingRun,
    listing_ids,
    published_runs,
    published_training_runs,
    read_runs,
    read_training_runs,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_ids
from recipe_core.plans.plans import estimate_batch
from recipe_core.request.schema import PlanRequest
from scripts.publish_runs import as_runs
from scripts.publish_runs import published_serving_runs as truth_runs
from tests.conftest import LLAMA_70B
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

SAME, _, ANY_GPUS = validate.PAIRINGS
TITAN = next(run for run in published_training_runs() if run.source == "torchtitan")
COLUMNS = "id,model,device,per_node,engine,tp,mode,input_tokens,output_tokens,load,tpot_ms"
GOOD = f"a,{LLAMA_70B},h100-sxm,8,vllm,8,closed,1024,256,16,20"
PROSE = {"title", "titles", "note", "notes", "source", "sources", "url", "command", "description"}
PROSE |= {"reason"}


def run(**values):
    plain = {"id": "one", "model": LLAMA_70B, "device": "h100-sxm", "per_node": 8, "tp": 8}
    plain |= {"engine": "vllm", "mode": "closed", "input_tokens": 1024, "output_tokens": 256}
    return Run.model_validate(plain | {"load": 16, "tpot_ms": 20.0} | values)


def measured_as(factor, **values):
    """A run whose every figure is ``factor`` times the estimate."""
    served = estimate_batch([run(**values).request()])[0]["serving"]
    times = ("ttft", "tpot", "request_latency")
    figures = {f"{name}_ms": served[f"{name}_s"] * 1e3 * factor for name in times}
    rate = served["output_tokens_per_s"] * factor
    figures |= {"output_tokens_per_s": rate, "total_tokens_per_s": rate * (1024 + 256) / 256}
    return run(**values, **figures)


def written(path, *rows, header=COLUMNS):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_errors_are_those_of_known_ratios_and_what_has_no_estimate_is_named():
    half = measured_as(0.5, id="half", source="x")
    found = comparison.compare_with_estimates(
        [half, measured_as(2.0, id="double", source="y", load=32)]
    )
    assert (found.figures.id.nunique(), found.not_covered) == (2, {})
    by_source = validate.group_errors(found.figures, ["source"]).set_index("source")
    assert by_source.loc["x", ["n", "cells"]].tolist() == [5, 1]
    shares = by_source[["median", "mean", "p90", "bias"]].astype(float)
    np.testing.assert_allclose(shares.loc["x", ["median", "mean", "bias"]], [1.0, 1.0, 2.0])
    np.testing.assert_allclose(shares.loc["y", ["median", "p90", "bias"]], [0.5, 0.5, 0.5])
    tpot = validate.group_errors(found.figures, ["figure"]).set_index("figure").loc["tpot_ms"]
    assert (tpot.n, tpot.cells, tpot["mean"]) == (2, 2, pytest.approx(0.75))
    for factor, inside in ((1.0, 1.0), (1e3, 0.0)):
        frame = comparison.compare_with_estimates([measured_as(factor)]).figures
        assert validate.group_errors(frame, ["vendor"]).inside.tolist() == [inside]
    # Nine right runs of one source, one of another off by half: the cells' mean is between.
    frame = comparison.compare_with_estimates(
        [measured_as(1.0, id=f"r{n}", source="large") for n in range(9)]
        + [measured_as(2.0, source="small")]
    ).figures
    all_runs = validate.group_errors(frame[frame.figure == "tpot_ms"], ["figure"])
    assert all_runs.loc[0, ["n", "cells"]].tolist() == [10, 2]
    assert all_runs["median"][0] == pytest.approx(0)
    assert all_runs.cell_mean[0] == pytest.approx(0.25)
    unknown = [run(id="a", model="no/such"), run(id="b", engine="nothing")]
    found = comparison.compare_with_estimates(
        [*unknown, run(id="c", per_node=1, tp=1), run(id="d")]
    )
    assert sorted(found.not_covered.values()) == [1, 1]
    assert [(refused.id, "short" in reason) for refused, reason in found.refused] == [("c", True)]
    assert found.figures.id.unique().tolist() == ["d"]
    text = validate.validation_text(found, "device")
    for said in ("unknown model 'no/such'", "refused though measured: 1\n  c: "):
        assert said in text
    view = validate.validation_view(found, "device")
    assert (view["runs"], view["estimated"], view["by_device"][0]["n"]) == (4, 1, 1)
    nothing = comparison.compare_with_estimates(unknown[:1])  # is an answer too
    assert "1 runs, 0 estimated" in validate.validation_text(nothing, "model")
    assert validate.validation_view(nothing)["figures"] == []


def split_run(name, tp, measured, estimated, changes):
    """A figure of a run as ``compare`` would give it; the numbers are invented."""
    values = {"id": name, "tp": tp, "pp": 1, "measured": measured, "estimated": estimated} | changes
    return table("calibration", "split_run") | {"per_node": tp * values["pp"]} | values


def test_the_primary_score_is_that_of_a_table_worked_out_by_hand():
    plain = {"source": "s", "device": "h100-sxm", "model": "m", "mode": "closed", "scenario": ""}
    plain |= {"figure": "tpot_ms", "exclude": ""}
    rows = [
        plain | values | {"error": error}
        for errors, values in table("calibration", "cells")
        for error in errors
    ]
    frame = pd.DataFrame(rows).replace({"source": {"LISTING": next(iter(listing_ids()))}})
    scores = validate.primary_score(frame).set_index(["runs", "mode", "figure"])
    # 0.2 + 0.8 · (0.3 - 0.2); of 12 figures the sixth and seventh are 0.3 and 0.3
    score = {"cells": 3, "cell_median": 0.2, "cell_p90": 0.28}
    score |= {"n": 12, "median": 0.3, "within_20": 5 / 12}
    assert scores.loc[(validate.SCORED, "closed", "tpot_ms")].to_dict() == pytest.approx(score)
    # with all runs the first cell's median is that of 0.1, 0.1, 3, 3, 3, 5
    everything = scores.loc[(validate.ALL, "closed", "tpot_ms")]
    assert everything[["cells", "n"]].tolist() == [4, 18]
    assert everything.cell_median == pytest.approx((0.3 + 0.9) / 2)
    assert everything.cell_p90 == pytest.approx(0.9 + 0.7 * (3.0 - 0.9))
    for mode, median in (("offline", 0.6), ("offline, data set", 0.4)):
        assert scores.loc[(validate.SCORED, mode, "tpot_ms"), "cell_median"] == median
    assert (validate.ALL, "closed", "ttft_ms") in scores.index
    assert (validate.SCORED, "closed", "ttft_ms") not in scores.index
    assert "static" not in scores.index.get_level_values("mode")
    found = comparison.compare_with_estimates(
        [measured_as(0.5, id=f"r{n}", load=n + 1) for n in range(3)]
    )
    assert next(iter(validate.validation_sections(found))) == "primary"
    text = validate.validation_text(found)
    assert text.index("Primary score") < text.index("By figure")
    best = validate.validation_view(found)["primary"][0]
    assert (best["runs"], best["cells"], best["n"]) == (validate.ALL, 1, 3)
    assert best["cell_median"] == pytest.approx(1.0)


def test_pairs_of_splits_are_counted_by_hand_and_ties_are_not_right():
    frame = pd.DataFrame([split_run(*row) for row in table("calibration", "splits")])
    same, any_version, any_gpus = (
        validate.split_pairs(frame, pairing) for pairing in validate.PAIRINGS
    )
    assert len(same) == 4  # a-b, b-c, b-d, c-d
    assert same.right.tolist().count(True) == 1
    assert (len(any_version), any_version.tied.sum()) == (4 + 4, 1)  # and g with a, b, c, d
    assert len(any_gpus) == 4 + 4  # and f with a, b, c, d
    shares = validate.split_ranking(frame).set_index(["compared", "figure"])
    assert shares.loc[(SAME.title, "tpot_ms"), ["pairs", "right"]].tolist() == [4, 0.25]

    def paired(first, second, pairing=SAME):
        return validate.split_pairs(pd.DataFrame([split_run(*first), split_run(*second)]), pairing)

    first, limited = ("a", 8, 10.0, 12.0), {"max_num_seqs": 64}
    assert paired((*first, {}), ("b", 4, 20.0, 24.0, {"pp": 2} | limited)).empty
    assert len(paired((*first, limited), ("b", 4, 20.0, 24.0, {"pp": 2} | limited))) == 1
    rate = {"figure": "output_tokens_per_s"}  # 100 and 112, 150 and 150 a GPU
    rows = ("a", 8, 800.0, 900.0, rate), ("b", 2, 300.0, 300.0, rate)
    assert paired(*rows, ANY_GPUS).right.tolist() == [True]
    assert paired(*rows).empty
    ties = paired(("a", 8, 10.0, 7.0, {}), ("b", 4, 20.0, 7.0, {"pp": 2}))
    assert ties[["right", "tied"]].values.tolist() == [[False, True]]


def test_a_table_is_read_and_what_is_wrong_with_it_is_named(tmp_path):
    other = GOOD.replace("a,", "b,", 1).replace(",8,closed", ",,closed")
    path = written(tmp_path / "runs.csv", GOOD, "", other)
    first, second = read_runs(path)
    assert (first.tp, second.tp, first.kv_dtype, first.source) == (8, 1, "auto", "")
    assert first.load == 16.0
    assert not {"max_num_seqs", "memory_fraction"} & set(first.request()["candidate"])
    path.write_text("\ufeff" + path.read_text())  # as spreadsheets write it
    assert [each.id for each in read_runs(path)] == ["a", "b"]
    header = f"{COLUMNS},max_num_seqs,memory_fraction,exclude"
    written(path, f"{GOOD},64,0.85,a copy", f"b{GOOD},,,", header=header)
    first, second = read_runs(path)
    asked = PlanRequest.parse(first.request()).candidate
    assert (asked.max_num_seqs, asked.memory_fraction) == (64, 0.85)
    assert (first.exclude, second.exclude) == ("a copy", "")
    said = str(refusal(read_runs, written(path, f"{GOOD},64,85,", header=header)))
    assert "line 2, column memory_fraction: " in said
    assert "less than or equal" in said
    rows = [GOOD.replace("a,", f"r{n},", 1).replace("vllm", "") for n in range(12)]
    said = str(refusal(read_runs, written(path, *rows)))
    assert "line 9, column engine: is empty" in said
    assert "and 4 more" in said
    for header, part in table("calibration", "columns").items():
        assert part in str(refusal(read_runs, written(path, header=header)))
    assert "cannot read" in str(refusal(read_runs, tmp_path / "none.csv"))
    path = str(written(path, GOOD))
    answer = json.loads(recipe("validate", path, "--json", "--by", "engine").stdout)
    assert (answer["runs"], answer["by_engine"][0]["engine"], answer["ranking"]) == (1, "vllm", [])
    assert "tpot_ms" in recipe("validate", path).stdout
    assert recipe("validate", path, "--by", "colour").returncode == 2


@over("before after parts", ((*row[:2], row[2:]) for row in table("calibration", "rows")))
def test_bad_rows_are_named(tmp_path, before, after, parts):
    first, row = GOOD.replace("a,", "first,", 1), GOOD.replace(before, after, 1)
    said = str(refusal(read_runs, written(tmp_path / "runs.csv", first, row)))
    assert [part for part in parts if part not in said] == [], said


def test_shipped_runs_are_many_and_from_many_known_sources():
    runs, known = published_runs(), read_document(SOURCES)
    devices, sources = {each.device for each in runs}, {each.source for each in runs}
    assert 300 <= len(runs) <= 600
    assert PUBLISHED.stat().st_size < 120_000
    assert len({each.id for each in runs}) == len(runs)
    assert len(devices) >= 15
    assert {device_profile(name).vendor for name in devices} == {"nvidia", "amd"}
    assert {each.mode for each in runs} >= {"closed", "static", "offline"}
    assert all(any(getattr(each, figure) for each in runs) for figure in FIGURES)
    assert sources == set(known)
    assert len(sources) >= 10
    assert all(each.reference for each in runs)
    for source in known.values():
        assert set(source) - {"listing", "asked_as", "layouts_in_doubt"} == {"title", "url", "how"}
        assert source["url"].startswith("https://")
    assert listing_ids() < set(known)
    assert any(each.exclude for each in runs)
    # every row is a valid request; one that has no estimate has an uncovered model or engine
    for each in runs:
        PlanRequest.parse(each.request())
    found = comparison.compare_with_estimates(runs)
    uncovered = ("unknown model", "unknown engine")
    assert all(reason.startswith(uncovered) for reason in found.not_covered)
    assert found.figures.id.nunique() >= 0.8 * len(runs)
    assert set(found.figures.vendor) == {"nvidia", "amd"}


def test_truth_tables_become_runs(tmp_path):
    """What the source states of queue, limits and attention reaches the request."""
    plain = table("calibration", "truth")
    rows = [plain | changes for changes in table("calibration", "truths")]
    pd.DataFrame(rows).to_csv(tmp_path / "serving_calibration.csv.gz", index=False)
    queue, stated, apart, excluded, arriving = as_runs(truth_runs(tmp_path))
    assert [each.load for each in (queue, stated)] == [10_000, 3200]
    assert (queue.tp, queue.dp, queue.ep, queue.max_num_seqs) == (4, 2, 1, None)
    assert stated.max_num_seqs == 256
    assert (apart.tp, apart.dp, apart.ep, apart.memory_fraction) == (1, 8, 8, 0.8)
    assert (excluded.mode, excluded.scenario, excluded.exclude) == ("offline", "data set", "a copy")
    # a figure that does not count leaves those of its run that do
    assert (arriving.exclude, arriving.ttft_ms, arriving.output_tokens_per_s) == ("", None, 900.0)
    workload, candidate = (arriving.request()[name] for name in ("workload", "candidate"))
    assert (workload["mode"], workload["request_rate"]) == ("open", 2.5)
    assert (workload["input_spread"], candidate["max_batched_tokens"]) == (0.0, 512)


def words_of_data(value, key=""):
    """Keys and texts of a data file that are not prose about where a number is from."""
    if key in PROSE:
        return []
    if isinstance(value, dict):
        parts = ([str(name), *words_of_data(part, str(name))] for name, part in value.items())
        return list(chain.from_iterable(parts))
    if isinstance(value, list):
        return list(chain.from_iterable(map(words_of_data, value)))
    return [value] if isinstance(value, str) else []


def words_of_code(text):
    """Names and texts of a module but for its docstrings; comments are no part of the tree."""
    nodes, documented = list(ast.walk(ast.parse(text))), (ast.Module, ast.ClassDef, ast.FunctionDef)
    owners = [node for node in nodes if isinstance(node, documented) and ast.get_docstring(node)]
    prose = {node.body[0].value for node in owners}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in prose]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return [word for word in [*texts, *names] if isinstance(word, str)]


def test_no_number_is_keyed_by_a_model():
    """No model of the catalog is named where numbers of the estimate live, but in prose."""
    names = {
        word.casefold()
        for model in catalog_ids()
        for word in (model, model.split("/")[-1], model.replace("/", "--"))
    }
    registries = {"titan_models", "megatron"}  # of models and of their families
    folders = [PACKAGE / "physics", PACKAGE / "space", PACKAGE / "engines", ROOT / "hw_profiles"]
    files = [
        path
        for path in chain.from_iterable(folder.rglob("*") for folder in folders)
        # options are flags and what they take: an engine's parsers have models' names
        if path.suffix in {".yaml", ".py"}
        and path.parent.name != "options"
        and path.stem not in registries
    ]
    assert len(files) > 50
    for path in files:
        text = path.read_text()
        folded = text.casefold()
        near = [name for name in names if name in folded]
        if near:
            data = path.suffix == ".yaml"
            words = words_of_data(read_document(path)) if data else words_of_code(text)
            assert [word for word in words if any(name in word.casefold() for name in near)] == []


def test_shipped_runs_of_training_are_met_and_say_whose_they_are():
    known = read_document(TRAINING_RUNS.with_name("training_sources.yaml"))
    runs = (*published_training_runs(), *read_training_runs(KNOWN_RUNS))
    assert {run.source for run in runs} <= set(known)
    assert all(run.reference for run in runs)
    few = published_training_runs()[:20]
    found = comparison.compare_training(few)
    assert few[0].source in validate.validation_text(found)
    assert "unknown column" in str(refusal(validate.validation_sections, found, by="colour"))
    # What the accuracy page says of all data holds of the shipped share of it, with some room.
    found = comparison.compare_training(published_training_runs())
    figures = validate.validation_sections(found)["figures"].set_index("figure")
    assert figures.loc["step_s", "median"] < 0.14
    assert figures.loc["peak_memory_gib", "median"] < 0.12
    assert len(found.refused) < 0.05 * found.runs
    # Llama 3 405B, DeepSeek-V3, Megatron's weak scaling: docs/reference/accuracy.md has each.
    runs = read_training_runs(KNOWN_RUNS)
    found = comparison.compare_training(runs)
    # Meta's schedule has fewer micro-batches in flight than an interleaved one: 2 % too much here
    assert {run.id for run, _ in found.refused} <= {"llama3-405b-1"}
    assert {run.model.partition(" ")[0] for run in runs} == {
        "Llama",
        "DeepSeek-V3",
        "GPT",
        "SmolLM3",
    }
    assert found.figures.error.max() < 0.2, found.figures.set_index("id").ratio


def test_a_run_is_asked_for_as_it_ran():
    request = TITAN.request()
    assert request["candidate"]["dp"] == TITAN.dp
    assert request["model"]["intermediate_size"] == TITAN.ffn
    tokens = TITAN.global_batch * TITAN.sequence_length
    rate = TITAN.tokens_per_s_per_gpu * TITAN.nodes * TITAN.per_node
    assert TITAN.measured_step_s == pytest.approx(tokens / rate)
    # what the driver shows is more than what is allocated
    run = TITAN.model_copy(update={"peak_memory_gib": 50.0})
    plain, driver = (
        comparison.compare_training([run.model_copy(update={"memory_of": name})]).figures
        for name in ("fullest", "driver")
    )
    estimated = [rows.set_index("figure").estimated["peak_memory_gib"] for rows in (plain, driver)]
    assert 0.5 < estimated[1] - estimated[0] < 4
    # a run that does not say what it recomputed gets the least that fits
    full = TITAN.model_copy(update={"micro_batch": 16, "global_batch": 16 * TITAN.dp})
    none, least, all_ = (
        comparison.compare_training([full.model_copy(update={"recompute": name})])
        for name in ("none", None, "full")
    )
    assert (len(none.refused), len(least.refused), len(all_.refused)) == (1, 0, 0)
    peaks = least.figures.estimated.tolist(), all_.figures.estimated.tolist()
    assert peaks[0] == peaks[1]


def test_a_table_of_ones_own(tmp_path):
    row = {name: value for name, value in TITAN.model_dump().items() if value is not None}
    path = tmp_path / "runs.csv"
    written(path, ",".join(f'"{value}"' for value in row.values()), header=",".join(row))
    assert read_training_runs(path) == [TITAN]
    assert json.loads(recipe("validate", "--training", str(path), "--json").stdout)["runs"] == 1
    written(path, "1,x", header="id,model")
    assert "columns are missing" in str(refusal(read_training_runs, path))
    nothing = dict.fromkeys(("step_s", "tokens_per_s_per_gpu", "peak_memory_gib"))
    with pytest.raises(ValueError, match="nothing was measured"):
        TrainingRun.model_validate(TITAN.model_dump() | nothing)
