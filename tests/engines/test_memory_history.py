"""Memory rules of vLLM's earlier releases, against what those logged when they started."""

import csv

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import GIB
from recipe_core.engines.history import Change, History, release_key
from recipe_core.engines.spec import engine
from recipe_core.recipe.decision import decide
from recipe_core.search.plans import estimate_batch, plan_candidate
from tests.conftest import make_request
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

with (DATA / "vllm-boots.csv").open(encoding="utf-8") as file:
    BOOTS = list(csv.DictReader(file))
"""Figures that vLLM logged, with release and source."""

UNEXPLAINED = {
    ("meta-llama/Llama-3.1-8B-Instruct", "35000"): "as if few sequences were allowed",
    ("meta-llama/Llama-3.1-8B-Instruct", "32768"): "as the release before it",
    ("Qwen/Qwen3-235B-A22B-FP8", "40960"): "release 0.9.2 took more than its neighbours",
}
"""Start-ups whose cache is more than a tenth off, and what they look like."""


def request(model, device, tp, release=None, **parts):
    candidate = {"engine": "vllm", "tp": tp, "pp": 1, "dp": 1, "engine_version": release}
    stated = {k: v for k, v in (candidate | parts.pop("candidate", {})).items() if v is not None}
    return make_request(model, device, tp, candidate=stated, **parts)


def figures(row, release):
    """Weights and cache in GiB and tokens of a logged start-up, with the rules of a release."""
    limits = {"memory_fraction": float(row["memory_fraction"])}
    if row["max_num_seqs"]:
        limits["max_num_seqs"] = int(row["max_num_seqs"])
    place = row["model"], row["device"], int(row["tp"]), release
    workload = {"max_context": int(row["max_context"]), "concurrency": 1}
    table, at = plan_candidate(request(*place, workload=workload, candidate=limits))
    memory = table.blocks[0].estimates.memory
    return {
        "weights": memory.weights_bytes[at] / GIB,
        "cache": memory.pool_bytes[at] / GIB,
        "tokens": memory.pool_tokens[at],
    }


@over("row", BOOTS)
def test_logged_figures(row):
    off = figures(row, row["release"])[row["quantity"]] / float(row["value"]) - 1
    if (row["model"], row["max_context"]) in UNEXPLAINED and row["quantity"] != "weights":
        assert 0.1 < abs(off) < 0.3
    else:
        assert abs(off) < (0.03 if row["quantity"] == "weights" else 0.1)


def test_rules_of_a_release_are_nearer_to_its_logs_than_todays():
    """Of the cache figures, 75 % are within a tenth with today's rules, 88 % with those of then."""
    rows = [row for row in BOOTS if row["quantity"] != "weights"]

    def near(release_of):
        offs = [figures(r, release_of(r))[r["quantity"]] / float(r["value"]) - 1 for r in rows]
        return sum(abs(off) <= 0.1 for off in offs) / len(rows)

    assert near(lambda row: None) < 0.8 < 0.85 < near(lambda row: row["release"])


@over("release, longest, tokens, seqs, chunked, fraction", table("memory_history", "limits"))
def test_default_limits(release, longest, tokens, seqs, chunked, fraction):
    """Of a B200, whose limits today are the largest."""
    then = engine("vllm").at(release, longest)
    limits = then.batch_limits(178 * GIB, "sm_100")
    assert (limits.max_batched_tokens, limits.max_num_seqs) == (tokens, seqs)
    assert (then.chunked_prefill, then.memory.fraction.value) == (chunked, fraction)


COUNTED = {"0.9.0", "0.8.0", "0.6.4"}
RELEASES = "0.32.0 0.16.0 0.9.1 0.9.0 0.8.0 0.7.3 0.6.5 0.6.4 0.6.3 0.2.0"


@over("release", RELEASES.split())
def test_context_counted(release):
    """0.6.4 logged 0.44 GiB outside torch (median of five logs), the releases after it 0.13."""
    now, then = engine("vllm").memory, engine("vllm").at(release, 4096).memory
    more = then.context_single_bytes.value - now.context_single_bytes.value
    assert more / GIB == pytest.approx(0.31 if release in COUNTED else 0)
    between = then.context_parallel_bytes.value - then.context_single_bytes.value
    assert between / GIB == pytest.approx(1.57 if release == "0.32.0" else 0.42, abs=0.01)


@over(
    "release, gib",
    [("0.16.0", 5.64), ("0.17.0", 2.23), ("0.28.0", 2.23), ("0.32.0", 0.59), ("0.33.0", 2.03)],
)
def test_what_a_sampler_takes(release, gib):
    """Of 1,024 sequences of Qwen3-14B: logged for 0.16 and 0.17, by the code since 0.29."""
    memory = engine("vllm").at(release, 8192).memory
    logits = 1024 * 151_936 / GIB
    state = memory.sampler_state_bytes_per_logit.value * logits
    assert state == pytest.approx(0.6 if release in ("0.32.0", "0.33.0") else 0, abs=0.01)
    assert memory.sampler_bytes_per_logit.value * logits == pytest.approx(gib, rel=0.02)


def test_the_pinned_release_is_the_engine_itself():
    vllm = engine("vllm")
    assert vllm.at(vllm.version, 8192) is vllm
    assert vllm.as_of is None
    assert vllm.at("0.11.0", 8192).as_of == "0.11.0"
    # changes stand newest first
    rest = {"fraction": 0.9, "source": "x", "status": "published"}
    changes = [Change(before=before, **rest) for before in ("0.9.0", "0.20.0")]
    with pytest.raises(ValueError, match="newest first"):
        History(oldest="0.2.0", changes=changes)
    assert History(oldest="0.2.0", changes=changes[::-1]).changes[0].before == "0.20.0"
    assert release_key("0.20") > release_key("0.9.2")


@over("name", ["sglang", "tensorrt-llm", "dynamo", "triton"])
def test_other_engines_have_no_history(name):
    spec = engine(name)
    assert spec.at(spec.version, 8192) is spec
    error = refusal(spec.at, "0.0.1", 8192)
    assert "are not known" in error.message
    assert spec.version in error.hint


def test_releases_without_rules_or_of_part_of_a_split_are_refused():
    for release in ("0.1.7", "0.33.1", "1.0", "latest", "v0.8.3", "0.8.3rc1"):
        asked = request("Qwen/Qwen3-32B", "h100-sxm", 1, release)
        error = refusal(plan_candidate, asked)
        assert error.field == "candidate.engine_version"
        assert error.hint == "Use 0.2.0 to 0.33.0, or leave it out."
    whole = ("Qwen/Qwen3-32B", "h100-sxm", 1, "0.8.3")
    error = refusal(lambda: plan_candidate(request(*whole, candidate={"tp": None})))
    assert "stated in full" in str(error)


def test_a_batch_keeps_releases_apart():
    """Each as if alone: prompts of one run whole, of the next in chunks, of the last as today."""
    model = "meta-llama/Llama-3.1-8B-Instruct"
    asked = [
        request(model, "rtx-3090", 1, release, workload={"max_context": context, "concurrency": 1})
        for release, context in [("0.6.4", 20_000), ("0.6.4", 33_000), (None, 20_000)]
    ]
    alone = [table.estimate(at).to_json() for table, at in map(plan_candidate, asked)]
    together = estimate_batch([each.model_dump(mode="json", exclude_none=True) for each in asked])
    assert together == alone
    assert len({answer["memory"]["kv_cache_bytes"] for answer in together}) == 3


def test_a_row_says_its_release_and_asks_for_it_again():
    table, at = plan_candidate(request("Qwen/Qwen3-32B", "h200-sxm", 1, "0.8.3"))
    assert table.candidate(at)["engine_version"] == "0.8.3"
    note = "Memory rules and default limits of vLLM 0.8.3; times of 0.32.0."
    assert note in table.estimate(at).to_json()["notes"]
    again, row = plan_candidate(table.request_of(at))
    assert again.estimate(row).to_json() == table.estimate(at).to_json()
    today, row = plan_candidate(request("Qwen/Qwen3-32B", "h200-sxm", 1))
    assert "engine_version" not in today.candidate(row)
    # only the pinned release is built
    older = request("Qwen/Qwen3-32B", "h200-sxm", 1, "0.8.3")
    error = refusal(decide, older, kind=NoAnswer)
    assert "bundles start vLLM 0.32.0, not 0.8.3" in str(error)
    assert error.field == "candidate.engine_version"
    assert decide(request("Qwen/Qwen3-32B", "h200-sxm", 1, "0.32.0")).version == "0.32.0"
