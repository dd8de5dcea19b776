"""Estimates against published figures and each other, refusals, and memory traps."""

from itertools import zip_longest

import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import GIB
from recipe_core.search.plans import plan_candidate
from tests.conftest import make_request
from tests.fixtures.catalogues import Catalogue, table
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

PUBLISHED, RELATIONS, REFUSED = map(Catalogue, ("published.yaml", "relations.yaml", "refused.yaml"))
ROWS = [(PUBLISHED, row) for row in PUBLISHED.rows["figures"]]
ROWS += [(RELATIONS, row) for row in RELATIONS.rows["relations"]]


def figure(answer, path):
    """A figure by its path, where a number is a place in a list."""
    for name in path.split("."):
        answer = answer[int(name) if name.isdigit() else name]
    return answer


@over("catalogue row", ROWS)
def test_estimates_are_near_what_was_published_and_stand_to_others_as_they_must(catalogue, row):
    base, changes = row["request"]
    answer = catalogue.answer(base, changes)
    before = catalogue.answer(base, row["beside"]) if "beside" in row else None
    assert answer["feasible"] is ("refused" not in row)
    assert row.get("refused", "") in "; ".join(answer.get("reasons", []))
    notes = "; ".join(answer["notes"])
    assert all(words in notes for words in row.get("notes", []))
    assert "silent" not in row or row["silent"] not in notes
    for path, published in row.items():
        if "." not in path:
            continue
        unit = {"GiB": GIB}.get(published.get("unit"), published.get("unit", 1))
        found = figure(answer, path) / (figure(before, path) if before else unit)
        if "measured" in published:
            tolerance = {name: published[name] for name in ("rel", "abs") if name in published}
            assert found == pytest.approx(published["measured"], **tolerance), path
        else:
            assert published["low"] < found < published["high"], path
        if "band" in published:
            low, high = answer["bands"][path.rpartition(".")[2]]
            assert low < published["measured"] < high
    if "kv_tiers" in row:
        for expected, tier in zip_longest(row["kv_tiers"], answer["kv_tiers"]):
            assert expected.items() <= tier.items()


@over("base changes field says", REFUSED.rows["errors"])
def test_errors_name_their_field(base, changes, field, says) -> None:
    error = refusal(REFUSED.planned, base, changes, kind=RecipeError)
    assert error.field == field
    assert says in str(error)


@over("base changes says", REFUSED.rows["reasons"])
def test_splits_that_cannot_run_say_why(base, changes, says) -> None:
    table, row = REFUSED.planned(base, changes)
    assert not table.feasible[row]
    assert says in "; ".join(table.reasons(row))


LLAMA_8B, GPT_OSS = "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b"


def memory_of(model, device="h100-sxm", workload=None, **candidate):
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1} | candidate
    request = make_request(model, device, 8, workload=workload or {}, candidate=split)
    found, row = plan_candidate(request)
    return found.estimate(row).to_json()["memory"]


@over("quantization tp rows", table("small_models.yaml", "padded_rows"))
def test_vllm_pads_rows_of_fp8_weights_on_rocm(quantization, tp, rows):
    """256 bytes on rows that are multiples of 512 bytes, by the loader that reads the checkpoint;
    never on NVIDIA devices.
    """
    config = table("small_models.yaml", "fp8") | {"quantization_config": quantization}
    rocm, cuda = (
        memory_of(config, chip, tp=tp)["weights_bytes"] for chip in ("mi300x", "h100-sxm")
    )
    assert rocm - cuda == 2 * rows * 256


def test_the_fullest_stage_counts_and_the_longest_context_is_where_one_more_fails():
    memory = memory_of("meta-llama/Llama-3.1-70B-Instruct", tp=2, pp=4)
    stages = memory["stages"]
    assert len(stages) == 4
    assert max(stage["total_bytes"] for stage in stages) == memory["total_bytes"]
    assert stages[0]["weights_bytes"] > stages[1]["weights_bytes"]  # the embedding
    # the longest context at a load is where one more token does not fit
    load = {"concurrency": 32, "input_tokens": 1000, "output_tokens": 24}
    memory = memory_of(LLAMA_8B, workload=load)
    longest = memory["max_context_at_load"]
    assert longest * 32 * 131_072 <= memory["kv_cache_bytes"] < (longest + 16) * 32 * 131_072
    assert memory["max_context"] > longest
    assert memory["largest_part"] == "weights"


def test_hybrid_layers_keep_a_state_and_no_cache():
    """One attention layer in four: pages of its cache only, plus pages of states per request.

    A state has 71,680 values of 16 bit, which pages of 144 tokens hold; three groups of states have
    two of them each.
    """
    config, needs = table("small_models.yaml", "hybrid"), {}
    for length in (1024, 2048):
        work = {"input_tokens": length - 16, "output_tokens": 16, "concurrency": 1}
        needs[length] = memory_of(config, workload=work)["kv_needed_bytes"]
    page = 144 * 2 * 256 * 2  # one layer: 2 KV heads of 128 + 128, 16 bit
    assert needs == {1024: (8 + 6) * page, 2048: (15 + 6) * page}


@over("device tp hidden width", table("small_models.yaml", "widths"))
def test_kernels_round_up_the_widths_of_4_bit_experts(device, tp, hidden, width):
    """2,880 is no multiple of the tiles of Marlin (A100) or of ROCm's Triton kernels; under tp each
    rank's share is rounded.
    """
    padded = memory_of(GPT_OSS, device, tp=tp)["weights_bytes"]
    plain = memory_of(GPT_OSS, tp=tp, engine="tensorrt-llm")["weights_bytes"]
    experts = 24 * 32 * 3 * 2880 * 2880 * (0.5 + 1 / 32)
    more = experts / tp * (hidden * width / 2880**2 - 1)
    assert padded - plain == pytest.approx(more, rel=1e-6, abs=1)
