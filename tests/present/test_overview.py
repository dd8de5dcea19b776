"""A recipe as tables, the same split on other engines, and a bundle's files as a list."""

from __future__ import annotations

import json

import pytest

from recipe_core.base import labels
from recipe_core.base.units import gib
from recipe_core.bundle import browse
from recipe_core.present import overview
from recipe_core.recipe import make_recipe, recipe_request
from recipe_core.recipe.other_engines import other_engines
from recipe_core.recipe.provenance import LAYERS
from recipe_core.recipe.schema import Recipe
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import change
from recipe_core.request.link import from_query
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request, recipe_for_request, recipe_of
from tests.present.test_report import QUERIES


def recipe(name: str) -> Recipe:
    return recipe_for_request(from_query(QUERIES[name])[0])


def test_every_option_has_its_flag_value_and_layer() -> None:
    built = recipe_of()
    rows = {row.name: row for row in overview.origins(built)}
    assert rows["--tensor-parallel-size"].value == str(built.candidate["tp"])
    assert rows["--tensor-parallel-size"].layer == "objective"
    assert len(rows) == len(built.candidate) + len(built.engine.options) + len(built.environment)
    assert set(overview.LAYER_TEXTS) == set(LAYERS)
    stated = overview.origins(recipe_of(candidate={"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}))
    assert stated[0].layer == "user"  # what a person stated comes first
    order = [LAYERS.index(row.layer) for row in stated]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("name", QUERIES)
def test_memory_adds_up_and_figures_have_a_basis(name: str) -> None:
    built = recipe(name)
    memory = overview.memory(built)
    beside = ("Total", "Cache capacity", "Prefill pool")
    parts = [float(memory[label].split()[0]) for label in memory if label not in beside]
    total = built.estimate["memory"]["total_bytes"]
    assert sum(parts) == pytest.approx(total / 2**30, abs=0.05 * len(parts))
    assert memory["Total"].startswith(gib(total))
    assert all(row.basis and row.value for row in overview.expected(built))


def test_cost_per_token_has_the_range_of_output_and_pools_are_said() -> None:
    rows = {row.label: row for row in overview.expected(recipe("serving"))}
    cost, output = rows["Cost per million output tokens"], rows["Output per device"]
    low, value, high = (float(text.lstrip("$")) for text in (cost.low, cost.value, cost.high))
    assert low < value < high
    least, most = (float(text.split()[0]) for text in (output.low, output.high))
    assert high / low == pytest.approx(most / least, rel=0.02)
    built = recipe("pools")
    assert overview.facts(built)["Split"] == "tp 4, prefill on tp 4"
    assert "Prefill pool" in overview.memory(built)
    pools = {"replicas": 2, "prefill": built.candidate["prefill"] | {"replicas": 3}}
    name = labels.split_name(built.candidate | pools)
    assert name == "2 × (tp 4), prefill on 3 × tp 4"
    assert overview.stated(CandidateRequest(tp=2)) == "tp 2"
    assert overview.stated(CandidateRequest(tp=2, pp=1, dp=4)) == "tp 2 · dp 4"


def test_fallbacks_say_what_changes() -> None:
    rows = overview.fallback_rows(recipe("serving"))
    kinds = [row["Instead"] for row in rows]
    assert {"Next best", "Fewer devices", "Other devices"} <= set(kinds)
    assert all(row["Figures"] for row in rows)
    assert "weights in fp8" in {row["Change"] for row in rows if row["Instead"] == "Other formats"}
    assert "tokens" in next(row["Change"] for row in rows if row["Instead"] == "Shorter context")


def test_the_same_split_elsewhere_is_estimated_or_refused_and_can_be_taken() -> None:
    request = make_request()
    built = recipe_for_request(request)
    engines = {other.name: other for other in other_engines(recipe_request(built), built.candidate)}
    assert "vllm" not in engines
    sglang = engines["sglang"]
    assert sglang.reasons == ()
    assert sglang.figures[0].value
    assert any("tensor parallel" in reason for reason in engines["transformers"].reasons)
    assert list(engines.values()) == sorted(engines.values(), key=lambda other: bool(other.reasons))
    changed = change(request, sglang.changes)
    assert changed.options.engines == ("vllm", "sglang")
    other = make_recipe(changed)
    assert other.engine.name == "sglang"
    for name in ("tp", "pp", "dp", "ep"):
        assert other.candidate[name] == built.candidate[name]
    assert other.estimate["serving"]["tpot_s"] > 0


def test_a_training_split_is_tried_on_every_framework() -> None:
    request = change(
        from_query({"workload.kind": "training", "workload.tokens": "1e9"})[0],
        {"workload.sequence_length": 1024},
    )
    built = recipe_for_request(request)
    engines = other_engines(recipe_request(built), built.candidate)
    assert {other.name for other in engines} >= {"torch", "deepspeed", "accelerate", "megatron"}
    assert built.engine.name not in {other.name for other in engines}
    assert all(bool(other.reasons) != bool(other.figures) for other in engines)
    for other in (other for other in engines if not other.reasons):
        assert make_recipe(change(request, other.changes)).engine.name == other.name


def test_files_are_listed_searched_and_cut() -> None:
    files = bundle_for_request(make_request()).files
    every = browse.listing(files)
    assert [other.path for other in every[:2]] == ["README.md", "recipe.yaml"]
    assert {other.path for other in every} == set(files)
    assert every[0].size == len(files["README.md"])
    engines = [other.path for other in browse.listing(files, "SBATCH slurm")]
    assert "targets/slurm/job.sbatch" in engines
    assert len(engines) < len(files)
    assert browse.listing(files, "recipe zebrawood") == []
    cut = ("\ufffd" + "a" * (browse.PREVIEWED - 1), False)
    assert browse.preview(b"\xff" + b"a" * 70_000) == cut
    assert json.loads(browse.preview(files["launch.json"])[0])["schema_version"] == 1
