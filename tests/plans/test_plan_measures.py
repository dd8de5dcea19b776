"""Plans of serving and training as people compare them: measures, labels, causes, refusals."""

import re
from functools import cache

import numpy as np
import pytest

from recipe_core.base import units
from recipe_core.base.resources import PACKAGE
from recipe_core.estimates.rules.refusal import RULE_TITLES
from recipe_core.estimates.serving.results import TIME_TITLES
from recipe_core.estimates.training.results import STEP_TITLES
from recipe_core.hardware.request import HardwareRequest
from recipe_core.models.tensors import PART_TITLES
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.plan_json import cluster_title, measure_text, split_label, split_labels
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.rank import refused_rows
from recipe_core.plans.splits import (
    broken_rules,
    find_row,
    is_known,
    row_key,
    row_reasons,
    row_request,
)
from recipe_core.request import split_key
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.metrics import metrics_of
from recipe_core.views.estimates import estimate_text
from recipe_core.views.plan_words import objective_measures, rule_titles, used_devices_text
from recipe_core.views.plans import plan_text
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

BOARDS = table("search", "boards")
TRAINING = BOARDS["training"]


@cache
def planned(name):
    return made(BOARDS[name])


def made(changes):
    return plan_splits(change(DEFAULT, changes))


@pytest.mark.parametrize("name", ["serving", "training"])
def test_every_measure_is_read_in_its_unit_and_refused_rows_have_named_kinds(name):
    board = planned(name)
    for measure in board.measures:
        assert len(board.values(measure)) == len(board)
        assert board.measures[measure].title
        assert measure_text(board, measure, board.best_row) != "unknown" or not is_known(
            board, measure
        )
    rows = [int(row) for row in refused_rows(board)[:20]]
    assert rows
    for row in rows:
        assert all(row_reasons(board, row))
        assert rule_titles(broken_rules(board, row))
    assert set(board.rules) <= {*RULE_TITLES, *LIMITS}


@pytest.mark.parametrize("name", BOARDS)
def test_every_row_has_its_own_key_is_found_by_it_and_estimated_alike_alone(name):
    board = planned(name)
    keys = [row_key(board, row) for row in range(len(board))]
    assert len(set(keys)) == len(keys)
    some = range(0, len(board), max(1, len(board) // 200))
    assert [find_row(board, keys[row]) for row in some] == list(some)
    other = planned("serving" if "workload.kind" in BOARDS[name] else "training")
    for key in ("nonsense", "vllm.bf16.bf16.tp99.pp1.dp1.ep1", row_key(other, 0)):
        assert find_row(board, key) is None
    last_is_best = map(int, board.order[::-1])
    kinds = {(int(board.clusters_of_rows[row]), ".pre" in keys[row]): row for row in last_is_best}
    for row in kinds.values():  # the best of each cluster, also with pools
        alone, only = plan_candidate(row_request(board, row))
        assert alone.estimate(only) == board.estimate(row)
        second = int(board.clusters_of_rows[row]) == 1
        assert keys[row].endswith(".on1") == ("MI300X" in split_label(board, row)) == second


def test_labels_name_what_differs_devices_that_are_there_and_numbers_that_read_well():
    board = made(BOARDS["serving"] | {"options.weight_dtypes": ("bf16", "fp8")})
    assert len({split_label(board, row) for row in range(len(board))}) == len(board)
    degrees = {"tp": 4, "pp": 2, "dp": 2, "ep": 8, "cp": 2}
    assert split_key.split_degrees_text(degrees) == "TP 4 × PP 2 × DP 2 · EP 8 · CP 2"
    pool = {"replicas": 3, "tp": 2, "pp": 1, "dp": 2, "ep": 1}
    copies = {"replicas": 2, "tp": 4, "pp": 1, "dp": 2, "ep": 1, "prefill": pool}
    said = "2 × (TP 4 × DP 2), prefill on 3 × (TP 2 × DP 2)"
    assert split_key.serving_split(copies) == said
    pool |= {"replicas": 1}
    assert split_key.serving_split(copies | {"replicas": 1}) == (
        "TP 4 × DP 2, prefill on TP 2 × DP 2"
    )
    split = {"tp": 1, "pp": 4, "cp": 1, "dp": 8, "ep": 1, "virtual_stages": 2, "zero_stage": 1}
    split |= {"micro_batch": 2, "recompute": "full"}
    whole = split_key.training_split(split)
    assert whole == "DP 8 × PP 4 · 2 chunks a stage · ZeRO 1 · micro-batch 2 · full recompute"
    assert split_key.split_short_name(split) == whole.replace("micro-batch", "mb")
    assert split_key.split_degrees_text(split | {"cp": 2}) == "TP 1 × PP 4 × CP 2 × DP 8"
    experts = split | {"cp": 2, "ep": 4, "virtual_stages": 1, "shard": 4, "recompute": "none"}
    assert split_key.training_split(experts) == (
        "DP 8 × PP 4 × CP 2 · EP 4 · ZeRO 1 over 4 · micro-batch 2"
    )
    alone = experts | {"pp": 1, "cp": 1, "dp": 1, "ep": 1, "zero_stage": 0}
    assert split_key.training_split(alone) == "one device · micro-batch 2"
    board = planned("pooled")
    labelled = [split_label(board, int(row)) for row in board.order]
    assert len(set(labelled)) == len(labelled)
    assert any("prefill on" in label for label in labelled)
    some = next(int(row) for row in board.order if "prefill" in board.candidate(int(row)))
    short = split_label(board, some).replace(", prefill on ", " + ")
    assert split_key.split_short_name(board.candidate(some)) == short
    counts = {8.03e9: "8.03 B", 630e6: "630 M", 671e9: "671 B", 1500: "1.50 k", 12: "12.0"}
    assert {value: units.count_text(value) for value in counts} == counts
    assert units.per_second(3.35e12, "B") == "3.35 TB/s"
    assert units.per_second(989.4e12, "FLOP") == "989 TFLOP/s"
    rounded = units.round_significant([12345.0, 0.0, 0.012345, np.inf]).tolist()
    assert rounded == pytest.approx([12300.0, 0.0, 0.0123, np.inf])
    splits = planned("serving")
    eight, four = (find_row(splits, f"vllm.bf16.bf16.tp{tp}.pp1.dp1.ep1") for tp in (8, 4))
    assert used_devices_text(splits, eight) == "8 × H100 SXM5"
    assert used_devices_text(splits, four) == "4 of 8 × H100 SXM5"
    twice = (HardwareRequest(device="h100-sxm", per_node=4),) * 2
    splits = made(BOARDS["serving"] | {"options.hardware": twice})
    titles = {cluster_title(splits, row): None for row in range(len(splits))}
    assert list(titles) == ["8 × H100 SXM5", "4 × H100 SXM5 (1)", "4 × H100 SXM5 (2)"]


def test_every_cause_part_and_refusal_has_a_name():
    for model in (LLAMA_70B, "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B"):
        board = made({"model": model})
        for row in board.order[:10]:
            breakdown = board.estimate(int(row)).to_json()["breakdown_s"]
            assert set(breakdown["decode"]) | set(breakdown["prefill"]) <= set(TIME_TITLES)
        assert set(board.rules) <= {*RULE_TITLES, *LIMITS}
        assert set(board.problem.model.parameters_by_part) <= set(PART_TITLES)
    step = planned("training").estimate(planned("training").best_row).breakdown_s.step
    assert set(step) <= set(STEP_TITLES)
    for patterns in (
        ("estimates/rules/rules.py", "plans/limits.py", "estimates/serving/*.py"),
        ("estimates/rules/training_rules.py", "estimates/training/*.py"),
    ):
        source = "".join(path.read_text() for pattern in patterns for path in PACKAGE.glob(pattern))
        codes = set(re.findall(r'(?:Refusal|_indivisible)\(\s*"([a-z-]+)"', source))
        assert len(codes) > 5
        assert codes <= set(RULE_TITLES)


@cache
def run_of(tokens):
    return made(TRAINING | {"workload.tokens": tokens})


def test_mfu_is_a_measure_of_training_and_hfu_counts_what_is_computed_again():
    board = run_of(1e9)
    best = board.best_row
    training = board.estimate(best).training
    assert board.raw("mfu")[best] == pytest.approx(training.mfu, rel=1e-12)
    assert measure_text(board, "mfu", best) == f"{100 * training.mfu:.1f} %"
    assert all(
        "mfu" in names for names in (board.shown.headline, board.shown.listed, board.shown.tabled)
    )
    assert board.measures["mfu"].more_is_better
    low, high = board.estimate(best).bands["mfu"]
    assert low < training.mfu < high
    assert board.pareto("mfu", "peak_memory_bytes")
    recompute = board.columns["recompute"]
    none, full = (next(int(row) for row in board.order if recompute[row] == k) for k in (0, 2))
    training = board.estimate(none).training
    assert training.hfu is None
    assert board.raw("hfu")[none] == pytest.approx(training.mfu, rel=1e-12)
    estimate = board.estimate(full)
    training = estimate.training  # a third forward pass of everything but embedding and head
    assert 1.25 < training.hfu / training.mfu < 1 + 1 / 3
    assert training.hfu < 1
    text = estimate_text(board.candidate(full), estimate.to_json())
    for name in ("mfu", "hfu"):
        value = getattr(training, name)
        title = re.escape(metrics_of("training")[name].title)
        assert re.search(rf"{title} +{100 * value:.1f} %", text)
    board = made(TRAINING | {"candidate.precision": "fp8"})  # taken from the candidate
    assert board.candidate(0)["precision"] == "fp8"
    assert len(board) > 100


@pytest.mark.parametrize(("tokens", "unit", "seconds"), [(1e9, "h", 3600), (1e11, "days", 86400)])
def test_the_time_to_finish_has_one_unit_in_a_plan(tokens, unit, seconds):
    board = run_of(tokens)
    measure = board.measures["wall"]
    assert measure.unit.symbol == unit
    assert measure.axis.endswith(f"({unit})")
    assert {measure_text(board, "wall", int(row)).split()[-1] for row in board.order} == {unit}
    best = board.best_row
    assert board.values("wall")[best] * seconds == pytest.approx(board.raw("wall")[best])


def causes_of(answer):
    """Seconds of an answer by their causes, which add up to its times."""
    for name, whole in (("decode", "tpot_s"), ("prefill", "ttft_s")):
        causes = answer["causes_s"][name]
        assert set(causes) <= {"compute", "memory", "network", "overhead", "queue"}
        assert all(seconds > 0 for seconds in causes.values())
        assert sum(causes.values()) == pytest.approx(answer["serving"][whole], rel=1e-9)
    return answer["causes_s"]["decode"], answer["causes_s"]["prefill"]


def estimate_of(model=LLAMA_70B, **parts):
    candidate = {"engine": "vllm", "pp": 1, "dp": 1} | parts.pop("candidate", {"tp": 8})
    splits, row = plan_candidate(make_request(model, candidate=candidate, **parts))
    answer = splits.spec.detailed(splits, row).to_json()
    assert answer["feasible"], answer["reasons"]
    return answer


@over("parts", table("search", "causes"))
def test_causes_add_up_to_the_time(parts):
    causes_of(estimate_of(**parts))


def test_causes_are_those_of_physics_and_of_the_row():
    decode, prefill = causes_of(estimate_of(workload={"concurrency": 1, "input_tokens": 8000}))
    assert decode["memory"] > 2 * decode["compute"]
    assert prefill["compute"] > 2 * prefill["memory"]
    assert "queue" not in decode
    answer = estimate_of("meta-llama/Llama-3.1-8B-Instruct", candidate={"tp": 1})
    decode, _ = causes_of(answer)
    assert "network" not in decode  # of one device
    interference = answer["breakdown_s"]["decode"]["prefill_interference"]
    assert decode["queue"] == pytest.approx(interference)
    splits = plan_splits(make_request())
    causes_of(
        splits.spec.detailed(splits, splits.best_row).to_json()
    )  # not of the plan's first row


def test_what_is_asked_for_is_a_column_of_the_terminals_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    plain, energy = make_request(), change(make_request(), {"objective.optimize": "energy"})
    assert "Energy" not in plan_text(plan_splits(plain), 3)
    text = plan_text(plan_splits(energy), 3)
    assert objective_measures(plan_splits(energy)) == ("watts", "joules")
    assert ("Power" in text, "Energy" in text) == (True, True)
    joules = measure_text(plan_splits(energy), "joules", plan_splits(energy).best_row).removesuffix(
        " J"
    )
    assert f" {joules} " in text
    limited = change(make_request(), {"objective.limits.request_latency_ms": 1e6})
    assert "Request" in plan_text(plan_splits(limited), 3)


def test_rows_that_differ_in_their_draft_alone_say_it():
    drafts = [
        {"tokens": 3, "acceptance": 0.7, "method": "eagle"},
        {"tokens": 4, "acceptance": 0.4, "method": "ngram"},
    ]
    options = {"engines": ["vllm"], "speculative": drafts}
    drafted = plan_splits(make_request(options=options, workload={"concurrency": 4}))
    found = {label.partition(", ")[2] for label in split_labels(drafted, drafted.order)}
    assert found == {"", "eagle 3 at 0.7", "ngram 4 at 0.4"}
    names = split_labels(drafted, drafted.order)
    assert len(set(names)) == len(names)
    assert "eagle 3 at 0.7" in " ".join(plan_text(drafted, 6).split())


def test_a_queue_says_when_it_is_worked_off_and_for_how_much_and_keeps_a_deadline(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    queue = {"mode": "offline", "requests": 2_000_000, "concurrency": None}
    splits = plan_splits(make_request(workload=queue, objective={"optimize": "cost"}))
    best = splits.best_row
    wall_s = 2e6 * 256 / splits.columns["output_tokens_per_s"][best]
    usd = splits.columns["usd_per_hour"][best] * wall_s / 3600
    first = splits.to_json(top=1)["candidates"][0]
    assert (first["wall_s"], first["usd"]) == pytest.approx((wall_s, usd))
    text = plan_text(splits, 1)
    assert f" {measure_text(splits, 'wall', best).removesuffix(' h')} " in text
    assert f" {measure_text(splits, 'usd_run', best).removeprefix('$')} " in text
    low, high = band_ends(splits, "usd_run", [best])
    assert low[0] < usd < high[0]
    hours = wall_s / 3600
    for limits in ({"wall_hours": hours * 0.9}, {"usd": usd * 0.9}):
        none = plan_splits(
            make_request(workload=queue, objective={"optimize": "cost", "limits": limits})
        )
        kept = none.columns["wall_s"] / 3600 if "wall_hours" in limits else none.columns["usd"]
        assert (kept[none.order] <= next(iter(limits.values()))).all()
        assert none.best_row is None or none.candidate(none.best_row) != splits.candidate(best)
    sure = {"limits": {"wall_hours": hours * 1.05}, "confidence": 0.9}
    assert not plan_splits(make_request(workload=queue, objective=sure)).feasible[best]
    for workload in ({}, {"mode": "open", "request_rate": 1.0, "concurrency": None}):
        request = make_request(workload=workload, objective={"limits": {"wall_hours": 3}})
        assert "mode: offline" in str(refusal(plan_splits, request))
    assert change(splits.request, {"workload.mode": "closed"}).objective.limits.wall_hours is None
