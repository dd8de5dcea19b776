"""The longest request beside the typical one: what engines are told, and what it costs."""

import numpy as np
import pytest

from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.remedies import advice_text
from recipe_core.plans.serving_settings import served_context
from recipe_core.plans.splits import row_reasons
from recipe_core.recipe import make_recipe
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.presets import preset_changes
from recipe_core.views.overview import option_origins
from tests.conftest import make_request
from tests.fixtures.rows import over

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
CHAT = {"input_tokens": 1024, "output_tokens": 256}
TIMES = ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s", "held_requests")


def told(model, **workload):
    problem = resolve_problem(make_request(model, workload={"concurrency": None} | workload))
    return served_context(problem.workload, problem.model)


@over(
    "workload longest",
    [
        (CHAT | {"concurrency": 8}, 8192),
        (CHAT | {"mode": "open", "request_rate": 1.0}, 8192),
        # four times 4,352 tokens, in steps of 1,024
        ({"input_tokens": 4096, "output_tokens": 256, "concurrency": 8}, 17_408),
        # all that the model has positions for
        ({"input_tokens": 40_000, "output_tokens": 256, "concurrency": 8}, 131_072),
        # exact lengths, and queues in which nobody waits, need what they hold
        (CHAT | {"mode": "static", "batch": 8}, 2048),
        (CHAT | {"mode": "offline", "requests": 100}, 2048),
        (CHAT | {"max_context": 3000, "concurrency": 8}, 3000),
    ],
)
def test_users_who_wait_may_send_four_times_the_mean_request(workload, longest):
    assert told(LLAMA, **workload) == longest


def test_a_vector_has_no_tail_and_presets_state_theirs_within_the_models_positions():
    assert (
        told("BAAI/bge-m3", task="embed", output_tokens=1, input_tokens=500, concurrency=4) == 1024
    )
    stated = {name: preset_changes(DEFAULT, name) for name in ("chat", "rag", "batch")}
    longest = {name: edit["workload.max_context"] for name, edit in stated.items()}
    assert longest == {"chat": 16_384, "rag": 32_768, "batch": None}
    short = change(DEFAULT, {"model": "google/gemma-2-9b-it"})
    assert preset_changes(short, "rag")["workload.max_context"] == 8192


@pytest.mark.parametrize("model", [LLAMA, "openai/gpt-oss-120b"])
def test_the_longest_request_changes_no_time_but_what_an_engine_needs_to_start(model):
    """Windows of gpt-oss cost the less a token the longer a request is."""
    candidate = {"engine": "vllm", "tp": 2, "pp": 1, "dp": 1}
    lengths = {"input_tokens": 7373, "output_tokens": 922, "concurrency": 512}
    parts = {"per_node": 2, "candidate": candidate}
    left, _ = plan_candidate(make_request(model, workload=lengths, **parts))
    exact, _ = plan_candidate(
        make_request(model, workload=lengths | {"max_context": 9216}, **parts)
    )
    for name in TIMES:
        assert left.columns[name][0] == exact.columns[name][0], name
    starts = [table.blocks[0].detail(0)[0].memory.start_bytes[0] for table in (left, exact)]
    assert starts[0] > starts[1]


def test_who_cannot_hold_the_longest_request_says_so_and_which_field_to_lower():
    """16 GiB of weights and 10 GiB of cache for 81,920 tokens, on 24 GiB."""
    work = {"input_tokens": 16_384, "output_tokens": 4096, "concurrency": 1}
    request = make_request(LLAMA, "rtx-4090", per_node=1, workload=work)
    table = plan_splits(request)
    assert not table.feasible.any()
    (reason,) = [r for r in row_reasons(table, 0) if "81,920" in r]
    assert reason.endswith("tokens: lower max_context")
    fields = [edit.fields for edit in table.changes() if "workload.max_context" in edit.fields]
    (longest,) = [edit["workload.max_context"] for edit in fields]
    assert 20_480 < longest < 81_920
    assert "workload.max_context" in advice_text(table.changes(), table.candidate(0))
    assert plan_splits(change(request, fields[0])).feasible.any()


def test_slots_that_have_room_for_the_longest_request_are_those_of_the_estimate():
    candidate = {"engine": "llama-cpp", "tp": 1, "pp": 1, "dp": 1}
    request = make_request(
        LLAMA, per_node=1, workload=CHAT | {"concurrency": 64}, candidate=candidate
    )
    table, row = plan_candidate(request)
    recipe = make_recipe(request)
    slots = recipe.engine.options["parallel"]
    assert recipe.engine.options["ctx_size"] == slots * recipe.max_context == slots * 8192
    assert slots == int(table.columns["held_requests"][row]) < 64
    served = table.blocks[0].detail(0)[0].serving
    assert np.isclose(served.resident[0], slots, atol=1)


def test_the_option_says_which_traffic_its_longest_request_is_of():
    reasons = {
        name: next(o for o in option_origins(make_recipe(request)) if o.name == "--max-model-len")
        for name, request in (
            ("left", DEFAULT),
            ("rag", change(DEFAULT, preset_changes(DEFAULT, "rag"))),
        )
    }
    assert (reasons["left"].layer, reasons["left"].why) == (
        "traffic",
        "longest request of chat traffic",
    )
    assert reasons["rag"].value == "32768"
    assert reasons["rag"].why == "longest request of RAG traffic, stated in your request"
