"""Requests: refused by the field, edited by field name, offered by pages, kept side by side."""

import itertools
import math
from functools import reduce
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.estimates.measured.support import device_support
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.prices import OwnershipCost
from recipe_core.hardware.request import HardwareRequest
from recipe_core.hardware.upload import profile_template, uploaded_profile
from recipe_core.plans.plans import count_keeping, plan_splits
from recipe_core.recipe.build import make_recipe, rebuild_recipe, redecide
from recipe_core.request import shelf as shelves
from recipe_core.request.describe import lengths_text, request_summary, training_steps_text
from recipe_core.request.edit import TRAINING_TOKENS, change, select_split
from recipe_core.request.link import DEFAULT, START_LOADS, from_query, to_query
from recipe_core.request.metrics import limits_by_name
from recipe_core.request.objective import Limits
from recipe_core.request.packed import pack_values
from recipe_core.request.presets import aims, preset_changes, preset_of, presets, request_aim
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS, SIDES
from recipe_core.request.shelf import keep_choice, shelf_of, shelf_query
from recipe_core.request.split_key import (
    candidate_key,
    key_cluster,
    key_split,
    split_key,
    split_short_name,
)
from recipe_core.request.supervision import Supervision
from recipe_core.request.variation import offered_variations, variation_changes, variation_name
from tests.conftest import LLAMA_70B, make_request, request_values
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

FIELD = "options.supervision"
PARTS = ("spread", "lengths")
FOREVER = {"options": {"supervision": {"backoff_s": math.inf}}}
REFUSED = [*table("request", "requests"), (FOREVER, f"{FIELD}.backoff_s", "finite number")]


@over("changes field said", REFUSED)
def test_bad_requests_name_the_field_the_value_and_the_fix(changes, field, said):
    workload = request_values(workload=changes.get("workload", {}))["workload"]
    values = request_values() | changes | {"workload": workload}
    error = refusal(PlanRequest.parse, {name: values[name] for name in values if values[name]})
    assert error.field == field
    assert said in str(error)


def test_a_request_is_an_object_of_serving_unless_it_says_otherwise_and_json_keeps_it():
    assert PlanRequest.parse(request_values()).workload.kind == "serving"
    run = {"kind": "training", "sequence_length": 8192, "global_batch": 512, "tokens": "15e9"}
    assert PlanRequest.parse(request_values() | {"workload": run}).workload.kind == "training"
    objective = {"optimize": "cost", "limits": {"tpot_ms": 30}}
    split = {"tp": 8, "pp": 1, "dp": 1}
    request = PlanRequest.parse(request_values(objective=objective, candidate=split))
    assert PlanRequest.parse(request.to_json()) == request
    assert "mapping" in str(refusal(PlanRequest.parse, []))


def test_supervision_is_kept_by_training_without_replicas_and_by_a_recipe_but_changes_no_plan():
    for least, replicas, kept in table("request", "available"):
        assert Supervision(min_available=least).available_of(replicas) == kept
    request = change(DEFAULT, {f"{FIELD}.crash_budget": 9, f"{FIELD}.min_available": 0})
    run = change(request, {"workload.kind": "training"})
    assert run.options.supervision == Supervision(crash_budget=9)
    kept = change(run, {f"{FIELD}.min_available": 1})
    assert refusal(plan_splits, kept).field == f"{FIELD}.min_available"
    stated = {"hang_s": 20, "crash_budget": 1}
    changed = make_request(options={"supervision": stated})
    before, after = plan_splits(make_request()), plan_splits(changed)
    assert [split.key for split in after.ranked] == [split.key for split in before.ranked]
    recipe = make_recipe(changed)
    assert redecide(recipe).request.options.supervision == Supervision(**stated)
    assert rebuild_recipe(recipe).digest == recipe.digest
    options = {k: v for k, v in recipe.request["options"].items() if k != "supervision"}
    older = recipe.model_copy(update={"request": {**recipe.request, "options": options}})
    assert redecide(older).request.options.supervision == Supervision()


TRAINING = change(DEFAULT, {"workload.kind": "training"})


@pytest.mark.parametrize("request_", [DEFAULT, TRAINING], ids=["serving", "training"])
def test_presets_fit_and_presets_and_aims_are_recognised(request_):
    for name in presets(request_):
        after = change(request_, preset_changes(request_, name))
        assert preset_of(after) == name
        assert plan_splits(after).best_row is not None
    for name, aim in aims(request_).items():
        assert request_aim(change(request_, aim.changes)) == name
    assert request_aim(change(request_, {"objective.weights.cost": 2.0})) is None
    assert preset_of(DEFAULT) == "chat"
    for changes in ({"workload.input_tokens": 1000}, {"workload.input_spread": 0.3}):
        assert preset_of(change(DEFAULT, changes)) is None


@pytest.mark.parametrize("name", ["tpot", "ttft", "usd", "usd_hour", "gpus", "output"])
def test_the_count_of_a_step_is_what_the_plan_then_has(name):
    request = change(DEFAULT, {"model": LLAMA_70B, "objective.limits.ttft_ms": 400.0})
    board = plan_splits(request)
    measure = board.measures[name]
    steps = limits_by_name()[measure.limit].steps_up_to(8)
    assert list(steps) == sorted(steps)
    steps = [int(step) if name == "gpus" else step for step in steps[:: max(1, len(steps) // 5)]]
    counts = [count_keeping(board, name, step) for step in steps]
    assert counts == sorted(counts, reverse=measure.more_is_better)
    for step in (*steps, None):
        after = plan_splits(change(request, {f"objective.limits.{measure.limit}": step}))
        assert count_keeping(board, name, step) == len(after.order)


def test_steps_of_a_limit_are_round_its_own_and_the_stated_one_and_any_measure_is_counted():
    board = plan_splits(change(DEFAULT, {"objective.limits.tpot_ms": 7.777}))
    assert 7.777 in limits_by_name()["tpot_ms"].steps_up_to(8, stated_step=7.777)
    assert (
        count_keeping(board, "tpot", 7.777) == len(board.order) < count_keeping(board, "tpot", None)
    )
    for name in Limits.model_fields.keys() - {"percentile"}:
        steps = limits_by_name()[name].steps_up_to(12)
        assert 4 <= len(steps) <= 90, name
        digits = 3 if name == "accuracy_recovery" else 2  # of shares close to 1
        assert all(float(f"{step:.{digits}g}") == step for step in steps), name
    assert limits_by_name()["gpus"].steps_up_to(12) == (1, 2, 4, 8, 12)
    cpu = {"hardware.device": "cpu", "hardware.per_node": 1}
    board = plan_splits(change(DEFAULT, cpu | {"model": "Qwen/Qwen3-0.6B"}))
    assert not np.isfinite(board.raw("usd")).any()
    assert count_keeping(board, "usd", 1e9) == 0
    board = plan_splits(TRAINING)
    most = board.raw("gpus")[board.runs].max()
    assert (
        count_keeping(board, "gpus", most) == count_keeping(board, "gpus", None) == len(board.order)
    )


def test_devices_say_how_well_they_are_known_owning_what_makes_no_sense_and_requests_a_line():
    levels = {name: device_support(device_profile(name)).level for name in device_names()}
    assert (levels["h100-sxm"], levels["rtx-5090"]) == ("measured", "computed")
    assert set(levels.values()) <= {"measured", "calibrated", "computed", "unsupported"}
    assert device_support(device_profile("h100-sxm")).runs > 10
    assert "vllm" in device_support(device_profile("mi300x")).engines
    bad = {"years": 0, "pue": 0.9, "use": 0, "capex_usd": float("nan"), "wheels": 4}
    for name, value in bad.items():  # its sums: tests/sizing/test_buying.py
        assert name in str(refusal(OwnershipCost.of, **{name: value}))
    said = "Llama-3.1-8B-Instruct · 8 × H100 SXM5 · 64 users at once, 1,024 → 256 tokens"
    assert request_summary(DEFAULT) == f"{said} · throughput"
    beside = (HardwareRequest(device="mi300x", per_node=8, nodes=2),)
    several = request_summary(change(DEFAULT, {"options.hardware": beside}))
    assert "8 × H100 SXM5 or 16 × MI300X in 2 nodes" in several
    run = "pre-train, 256 × 4,096 tokens per step, 10.0 B tokens · time to finish"
    assert request_summary(TRAINING).endswith(run)
    assert (
        training_steps_text(TRAINING.workload) == "10.0 B tokens in steps of 1.05 M: 9,537 steps."
    )
    said = request_summary(change(DEFAULT, {"workload.mode": "open"}))
    assert said.count("requests a second") == 1


def test_steps_are_counted_once_and_without_padding():
    grpo = change(TRAINING, {"workload.method": "grpo", "workload.tokens": 10e9})
    assert training_steps_text(grpo.workload).endswith("in steps of 1.57 M: 6,358 steps.")
    short = {"workload.document_tokens": 1024, "workload.packed": False}
    runs = {"grpo": grpo, "padded": change(TRAINING, short), "plain": TRAINING}
    for name, run in runs.items():
        table_ = plan_splits(run)
        counted = table_.estimates([int(table_.order[0])])[0].run.steps
        assert counted == run.workload.steps, name


@over(
    "method tokens sequence_length global_batch",
    [
        ("lora", 1e8, 2048, 64),
        ("qlora", 1e8, 2048, 64),
        ("finetune", 1e8, 2048, 64),
        ("dpo", 5e7, 2048, 64),
        ("grpo", 5e8, 3072, 1024),
        ("ppo", 5e8, 3072, 1024),
        ("pretrain", TRAINING_TOKENS, 4096, 256),
    ],
)
def test_a_method_brings_its_usual_run_and_keeps_what_is_ones_own(
    method, tokens, sequence_length, global_batch
):
    run = change(change(TRAINING, {"workload.method": "lora"}), {"workload.method": method})
    found = run.workload.tokens, run.workload.sequence_length, run.workload.global_batch
    assert found == (tokens, sequence_length, global_batch)
    own = change(TRAINING, {"workload.tokens": 3e9})
    assert change(own, {"workload.method": method}).workload.tokens == 3e9
    assert (run.workload.rollout is not None) == (method in ("grpo", "ppo"))


def test_length_and_batch_of_a_step_follow_its_answers_unless_they_are_ones_own():
    run = change(TRAINING, {"workload.method": "grpo"})
    field = "workload.rollout"
    for changes, sizes in (
        ({f"{field}.prompts": 64}, (3072, 512)),
        ({f"{field}.samples": 4}, (3072, 512)),
        ({f"{field}.max_response_tokens": 3072}, (4096, 1024)),
        ({f"{field}.prompt_tokens": 1024}, (4096, 1024)),
        ({f"{field}.prompts": 64, "workload.global_batch": 256}, (3072, 256)),
    ):
        found = change(run, changes).workload
        assert (found.sequence_length, found.global_batch) == sizes
    own = change(run, {"workload.sequence_length": 8192, "workload.global_batch": 256})
    more = change(own, {f"{field}.prompts": 64, f"{field}.max_response_tokens": 3072}).workload
    assert (more.sequence_length, more.global_batch) == (8192, 256)


@over(
    "method device framework",
    [
        ("lora", "rtx-4090", "trl"),
        ("qlora", "rtx-4090", "trl"),
        ("lora", "h100-sxm", "torch"),
        ("finetune", "rtx-4090", "torchtitan"),
        ("grpo", "h100-sxm", "verl"),
    ],
)
def test_adapters_on_small_cards_are_trained_by_what_their_users_run(method, device, framework):
    run = change(TRAINING, {"workload.method": method, "hardware.device": device})
    assert plan_splits(run).blocks[0].setting.engine == framework


@over("edits then", table("request", "bought"))
def test_an_offer_a_commitment_and_a_price_replace_each_other(edits, then):
    after = reduce(change, edits, DEFAULT).hardware
    assert after.model_dump() == HardwareRequest(**then).model_dump()


def test_longer_lengths_leave_the_longest_request_open_and_a_load_or_candidate_is_set_as_a_whole():
    edits = ({"workload.max_context": 2048}, {"workload.input_tokens": 4000})
    assert reduce(change, edits[:1], DEFAULT).workload.max_context == 2048
    assert reduce(change, edits, DEFAULT).workload.max_context is None
    rag = change(DEFAULT, preset_changes(DEFAULT, "rag"))
    assert change(rag, {"workload.input_tokens": 20_000}).workload.max_context == 32_768
    # the spread counts: prompts of 33,000 are half as long again at their longest
    assert change(rag, {"workload.input_tokens": 22_000}).workload.max_context is None
    short = {"model": "google/gemma-2-9b-it"}
    assert change(rag, short).workload.max_context is None
    assert change(change(DEFAULT, preset_changes(DEFAULT, "chat")), short) == change(
        change(DEFAULT, short), {"workload.max_context": 8192}
    )
    # the longest of a preset is its own again where positions suffice, a stated one stays
    chat = change(DEFAULT, preset_changes(DEFAULT, "chat") | {"workload.concurrency": 7})
    again = {"model": DEFAULT.model}
    assert reduce(change, (short, again), chat) == chat
    assert reduce(change, ({"workload.max_context": 4096}, short, again), chat) == change(
        chat, {"workload.max_context": 4096}
    )
    assert "shorter than" in str(refusal(change, DEFAULT, {"workload.max_context": 10}))
    request = change(DEFAULT, {"candidate": {"tp": 8, "pp": 1, "dp": 1}})
    stated = {"candidate.tp": "8", "candidate.pp": "1", "candidate.dp": "1"}
    assert to_query(request) == {"v": "1"} | stated
    assert change(request, {"candidate": None}) == DEFAULT
    for mode, load in LOADS.items():
        other = change(change(DEFAULT, {"workload.concurrency": 7}), {"workload.mode": mode})
        stated = other.workload.model_dump(include={*LOADS.values()}, exclude_none=True)
        assert stated == {load: 7 if mode == "closed" else START_LOADS[mode]}


TRACED = {
    "workload.over_time": {
        "rates": [1.0],
        "lengths": [
            {"input_tokens": 100, "output_tokens": 50, "weight": 3},
            {"input_tokens": 3000, "output_tokens": 700, "weight": 1},
        ],
    }
}


def test_how_lengths_vary_is_a_name_that_links_keep():
    request, traced = DEFAULT, change(DEFAULT, TRACED)
    assert list(offered_variations(request.workload)) == ["usual", "exact", "chats"]
    assert list(offered_variations(traced.workload)) == ["usual", "exact", "chats", "trace"]
    for name in (*offered_variations(traced.workload), "chats", "exact", "trace", "usual"):
        traced = change(traced, variation_changes(name))
        assert variation_name(traced.workload) == name
        assert from_query(to_query(traced)) == (traced, [])
        assert traced.workload.exact == (name == "exact")
        relative = traced.workload.relative_lengths("output")
        assert bool(relative) == (name in ("chats", "trace"))
        if name == "trace":
            means = (traced.workload.input_tokens, traced.workload.output_tokens)
            assert means == (825, 212)
    assert change(change(DEFAULT, variation_changes("chats")), variation_changes("usual")) == (
        DEFAULT
    )
    wide = change(DEFAULT, variation_changes("chats"))
    assert plan_splits(wide).to_json(1)["candidates"]
    own = change(wide, {"workload.output_spread": 0.3})  # a spread replaces a shape
    assert (own.workload.output_lengths, own.workload.input_lengths is None) == (None, False)
    assert (variation_name(own.workload), next(iter(offered_variations(own.workload)))) == ("", "")
    assert lengths_text(own.workload).count("varied as stated") == 1
    assert "varied" not in lengths_text(DEFAULT.workload)
    shape = {"shape": "exponential"}
    assert change(own, {"workload.output_lengths": shape}).workload.output_spread is None
    for varied in (wide, own):
        static = change(varied, {"workload.mode": "static"}).workload
        stated = [getattr(static, f"{side}_{part}") for side in SIDES for part in PARTS]
        assert stated == [None] * 4


def test_lengths_with_means_of_their_own_give_way_to_a_stated_mean():
    quantiles = {"quantiles": {"p50": 900, "p90": 2000}}
    shaped = change(DEFAULT, {"workload.input_tokens": None, "workload.input_lengths": quantiles})
    assert shaped.workload.input_tokens == 1093
    assert change(shaped, {"workload.input_tokens": 300}).workload.input_lengths is None
    assert change(shaped, {"workload.output_tokens": 300}).workload.input_lengths is not None
    wide = change(DEFAULT, variation_changes("chats"))
    assert change(wide, {"workload.input_tokens": 300}).workload.input_lengths is not None
    traced = change(change(DEFAULT, TRACED), variation_changes("trace"))
    assert change(traced, {"workload.input_tokens": 300}).workload.input_lengths is None
    gone = change(traced, {"workload.over_time": None}).workload
    assert (gone.input_lengths, gone.output_lengths) == (None, None)


def test_training_starts_from_its_usual_run_and_keeps_model_and_hardware():
    limits = {"objective.limits.tpot_ms": 40.0, "objective.limits.gpus": 4}
    here = change(DEFAULT, {"hardware.device": "mi300x", "candidate": {"tp": 8}} | limits)
    there = change(here, {"workload.kind": "training"})
    assert (there.workload.kind, there.workload.tokens) == ("training", TRAINING_TOKENS)
    assert (there.model, there.hardware, there.candidate) == (here.model, here.hardware, None)
    assert there.objective.limits.model_dump(exclude_none=True) == {"gpus": 4}
    assert change(there, {"workload.kind": "serving"}).workload == DEFAULT.workload
    short = change(
        change(DEFAULT, {"model": "EleutherAI/pythia-12b"}), {"workload.kind": "training"}
    )
    assert short.workload.sequence_length == 2048  # all that the model has
    assert len(plan_splits(short))


def test_taking_a_split_swaps_clusters_and_its_key_is_read_back():
    other = HardwareRequest(device="mi300x", per_node=4)
    request = change(DEFAULT, {"options.hardware": (other,)})
    after = change(request, select_split(request, "vllm.bf16.bf16.tp4.pp1.dp1.ep1.on1"))
    assert (after.hardware, after.options.hardware) == (other, (DEFAULT.hardware,))
    assert after.candidate.tp == 4
    request = change(DEFAULT, {"options.disaggregated": True})
    key = "vllm.bf16.bf16.tp2.pp1.dp1.ep1.x2.pre4.tp1.pp1.dp1.ep1"
    candidate = change(request, select_split(request, key)).candidate
    pools = (candidate.tp, candidate.replicas, candidate.prefill.tp, candidate.prefill.replicas)
    assert pools == (2, 2, 1, 4)
    assert candidate_key(candidate.model_dump()) == key
    for key in table("request", "keys"):
        candidate = key_split(key)
        assert split_key(candidate, key_cluster(key)) == key
        assert candidate_key(candidate) == key.split(".on")[0]
    assert key_split("vllm.tp4") is None
    for open_split in ({"tp": 4, "pp": 1}, {"micro_batch": 4}):
        assert candidate_key(open_split) is None


def chosen(key, fields):
    request = change(DEFAULT, fields)
    return change(request, select_split(request, key))


SERVED, ON_MI300X, RUN = (chosen(*row) for row in table("request", "kept"))
FEW = keep_choice(keep_choice(keep_choice((), SERVED), ON_MI300X), RUN)


def kept_names(*choices):
    """The names of choices that the reader did not name."""
    shelf = reduce(keep_choice, itertools.starmap(chosen, choices), ())
    assert shelf_of(shelf_query(shelf)) == (shelf, [])
    return [kept.name for kept in shelf]


def test_a_name_says_what_tells_a_choice_from_others():
    for row in table("request", "names"):
        degrees = [split_short_name(key_split(key)) for key, _ in row["kept"]]
        said = [
            name.replace("LAYOUT", text) for name, text in zip(row["names"], degrees, strict=True)
        ]
        assert kept_names(*row["kept"]) == said
    shelf = shelves.rename_on_shelf(FEW, 1, "int8")
    named = shelf[1]
    rest = shelves.remove_from_shelf(shelf, 0)
    assert (rest[0], len({kept.name for kept in rest})) == (named, 2)  # the reader's own name stays
    alone = shelves.remove_from_shelf(rest, 0)
    assert alone == keep_choice((), RUN)
    taken = shelves.rename_on_shelf(FEW, 1, alone[0].name)
    assert shelves.remove_from_shelf(taken, 0)[1].name != alone[0].name


def test_nothing_is_kept_twice_or_beyond_the_most_and_renamed_in_its_place_as_is_allowed():
    assert keep_choice(FEW, SERVED, "again") == FEW
    assert shelves.shelf_holds(FEW, RUN)
    shelf = ()
    for load in range(1, shelves.MAX_KEPT + 1):
        shelf = keep_choice(shelf, change(SERVED, {"workload.concurrency": load}), "same name")
    assert len({kept.name for kept in shelf}) == shelves.MAX_KEPT
    assert "the most that may be" in str(refusal(keep_choice, shelf, SERVED))
    assert "whole layout" in str(refusal(keep_choice, (), DEFAULT))
    assert keep_choice(shelves.remove_from_shelf(shelf, 2), SERVED)[-1].request == SERVED
    shelf = shelves.rename_on_shelf(FEW, 1, "  ours,\tcheap ")
    assert [kept.name for kept in shelf] == [FEW[0].name, "ours, cheap", FEW[2].name]
    assert shelves.rename_on_shelf(shelf, 1, "ours, cheap") == shelf
    rows = [("x" * (shelves.MAX_NAME + 1), "not 81"), (FEW[1].name, "name of another choice")]
    for name, said in (*table("request", "bad_names"), *rows):
        assert said in str(refusal(shelves.rename_on_shelf, FEW, 0, name))


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=shelves.MAX_NAME)
requests = st.builds(
    lambda base, load: change(base, {"workload.concurrency": load}),
    st.sampled_from([SERVED, ON_MI300X]),
    st.integers(1, 5000),
) | st.just(RUN)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(names, requests), max_size=shelves.MAX_KEPT))
def test_what_is_kept_survives_its_link(choices):
    shelf = ()
    for name, request in choices:
        shelf = keep_choice(shelf, request, name[:70])
    assert shelf_of(shelf_query(shelf)) == (shelf, [])


def test_a_link_with_all_that_may_be_kept_stays_short():
    shelf = FEW
    for load in range(shelves.MAX_KEPT - len(FEW)):
        shelf = keep_choice(
            shelf, change(SERVED, {"workload.concurrency": 2**load}), f"load {load}"
        )
    assert len(urlencode(shelf_query(shelf))) < 1500
    own = {
        "hardware.device": uploaded_profile(
            profile_template(device_profile("h100-sxm")).encode(), "mine.yaml"
        )
    }
    ours = tuple(shelves.Kept(str(n), change(kept.request, own)) for n, kept in enumerate(shelf))
    assert len(urlencode(shelf_query(ours))) < 4000
    assert shelf_of(shelf_query(ours)) == (ours, [])


FIELDS = FEW[0].query
NO_NAME = "kept 1: is not a name with the fields"
UNREAD = [
    *(([choice], NO_NAME) for choice in table("request", "no_choice")),
    *(([["a", FIELDS | more]], said) for more, said in table("request", "unread")),
    ([["x" * 5000, FIELDS]], "kept 1: a name has 1 to 80"),
    ([["a", {}]], "does not state a whole layout"),
    ([["a", {**FIELDS, "hardware.device": pack_values([0])[:-4]}]], "cut off or changed"),
]


def test_what_cannot_be_read_of_a_link_or_is_too_much_is_left_out_and_said():
    """A choice with one bad field would be another choice under the same name."""
    for values, said in UNREAD:
        shelf, (ignored,) = shelf_of({"kept": pack_values([*values, ["good", FIELDS]])})
        assert [kept.name for kept in shelf] == ["good"]
        assert said in ignored
    no_list = pack_values({})
    for text in ("a", "~1.AAAA", "~7.AAAA", "[]", "~1." + "A" * 70_000, no_list):
        shelf, (ignored,) = shelf_of({"kept": text})
        assert (shelf, ignored[:4]) == ((), "kept")
        assert ("is not a list" in ignored) == (text == no_list)
    many = [[str(n), {**FIELDS, "workload.concurrency": str(n)}] for n in range(1, 2000)]
    shelf, ignored = shelf_of({"kept": pack_values(many)})
    assert len(shelf) == shelves.MAX_KEPT
    assert ignored == [
        f"kept: {len(many):,} choices are kept; the first {shelves.MAX_KEPT} are read."
    ]
