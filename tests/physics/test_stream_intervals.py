"""What an engine does every so many steps only: estimated, chosen by the objective, launched, read.

SGLang sends the first token of an answer at once whatever ``stream_interval`` is; an engine that
holds it back too is made here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command, read_command
from recipe_core.engines.spec import engine, engine_names
from recipe_core.physics.serving.estimates import Estimates, estimate
from recipe_core.physics.serving.operators import total
from recipe_core.physics.serving.simulate import simulate
from recipe_core.recipe import relaunch
from recipe_core.recipe.convert import convert
from recipe_core.request.edit import change
from recipe_core.search.changes import fixes
from recipe_core.search.plans import plan, plan_candidate
from tests.conftest import make_request
from tests.fixtures.recipes import recipe_of
from tests.physics.test_simulate import ran

QWEN, DEEPSEEK = "Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-R1-0528"
LONG = {"output_tokens": 1024}
OPEN = {"mode": "open", "request_rate": 1.0, "concurrency": None}
SGLANG = {"engine": "sglang", "tp": 8, "pp": 1, "dp": 1}
SLOW = {"stream_interval": 30, "scheduler_recv_interval": 30}


def request_of(workload=LONG, device="b200-sxm", candidate=SGLANG, **parts):
    return make_request(QWEN, device, workload=dict(workload), candidate=candidate, **parts)


def chosen(request, row=None):
    found, best = plan_candidate(request)
    candidate = found.candidate(best if row is None else row)
    return {name: candidate.get(name, 1) for name in SLOW}  # left out where nothing chooses them


def estimates(workload=LONG, *, waits=False, **intervals) -> Estimates:
    """The estimate of one split, of an engine whose first token ``waits`` for the others."""
    request = request_of(workload, candidate=SGLANG | dict.fromkeys(SLOW, 1) | intervals)
    found, row = plan_candidate(request)
    block, i = found.at(row)
    spec = block.setting.engine
    held = spec.intervals.model_copy(update={"first_token_waits": waits})
    setting = replace(block.setting, engine=spec.model_copy(update={"intervals": held}))
    return estimate(setting, block.cases.take([i]))


def adds_up(e: Estimates) -> None:
    s, tokens = e.serving, e.cases.output_tokens
    assert s.request_latency_s == pytest.approx(s.ttft_s + (tokens - 1) * s.tpot_s, rel=1e-12)
    assert total(s.prefill) == pytest.approx(s.ttft_s, rel=1e-12)
    assert total(s.decode) == pytest.approx(s.tpot_s, rel=1e-12)


# Estimates


@pytest.mark.parametrize("workload", [LONG, OPEN | LONG])
def test_a_request_waits_half_an_interval_until_it_is_looked_for(workload):
    quick, slow = estimates(workload), estimates(workload, scheduler_recv_interval=31)
    adds_up(slow)
    waited = slow.serving.ttft_s - quick.serving.ttft_s
    assert waited == pytest.approx(slow.serving.prefill["receive"])
    assert waited == pytest.approx(15 * quick.serving.tpot_s, rel=1e-3)
    assert slow.serving.tpot_s == pytest.approx(quick.serving.tpot_s)
    if slow.setting.mode == "closed":  # as many requests are in flight as there are
        rate = slow.serving.output_tokens_per_s / slow.cases.output_tokens
        assert rate * slow.serving.request_latency_s == pytest.approx(slow.cases.load)


@pytest.mark.parametrize("concurrency", [1, 4000])
def test_who_finds_the_scheduler_idle_or_a_queue_waits_for_no_look(concurrency):
    workload = LONG | {"concurrency": concurrency}
    quick, slow = estimates(workload), estimates(workload, scheduler_recv_interval=30)
    adds_up(slow)
    assert slow.serving.ttft_s == pytest.approx(quick.serving.ttft_s)
    assert slow.serving.output_tokens_per_s == pytest.approx(quick.serving.output_tokens_per_s)


def test_a_first_token_that_waits_comes_with_the_others_and_the_last_as_before():
    quick, slow = estimates(waits=True), estimates(waits=True, stream_interval=30)
    adds_up(slow)
    held = 29 * quick.serving.tpot_s
    assert slow.serving.ttft_s == pytest.approx(quick.serving.ttft_s + held)
    assert slow.serving.request_latency_s == pytest.approx(quick.serving.request_latency_s)
    assert slow.serving.output_tokens_per_s == quick.serving.output_tokens_per_s
    assert slow.serving.tpot_s < quick.serving.tpot_s


@pytest.mark.parametrize("tokens", [1, 2, 30])
def test_no_more_tokens_are_held_than_an_answer_has(tokens):
    short = {"output_tokens": tokens}
    quick, slow = estimates(short, waits=True), estimates(short, waits=True, stream_interval=1000)
    adds_up(slow)
    assert slow.serving.request_latency_s == pytest.approx(quick.serving.request_latency_s)
    assert slow.serving.ttft_s == pytest.approx(quick.serving.request_latency_s)
    if tokens == 1:
        assert slow.serving.tpot_s == quick.serving.tpot_s


def test_a_first_token_that_leaves_at_once_takes_no_longer():
    quick, slow = estimates(), estimates(stream_interval=30)
    adds_up(slow)
    for name in ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"):
        assert getattr(slow.serving, name) == getattr(quick.serving, name)


@pytest.mark.parametrize(
    "workload",
    [
        {"mode": "static", "batch": 8, "concurrency": None},
        {"mode": "offline", "requests": 500, "concurrency": None},
    ],
)
def test_a_batch_and_a_queue_have_no_intervals(workload):
    quick, slow = estimates(workload), estimates(workload, **SLOW)
    assert slow.serving.ttft_s == quick.serving.ttft_s
    assert slow.serving.tpot_s == quick.serving.tpot_s


def test_prompts_of_their_own_pool_meet_no_decode_steps():
    pools = {**SGLANG, "tp": 4, "prefill": {"tp": 4}}
    quick, slow = (
        plan_candidate(request_of(candidate=pools | intervals))[0].estimate(0).serving
        for intervals in (dict.fromkeys(SLOW, 1), SLOW)
    )
    assert slow.ttft_s == quick.ttft_s


# The scheduler, request by request


def test_a_scheduler_looks_every_so_many_decode_steps():
    """The first is at its third step when the second comes, and looks after the fifth."""
    two = ran([(1, 20), (1, 1)], sent=[0.0, 2.5], recv_interval=5)
    assert two.first == [1.0, 7.0]
    assert two.done[0] == 20.0


def test_a_scheduler_looks_at_once_after_a_prompt_and_when_nothing_runs():
    three = ran([(1, 20), (15, 1), (1, 1)], sent=[0.0, 0.0, 1.5], recv_interval=5)
    assert three.first == [1.0, 2.0, 3.0]
    two = ran([(1, 3), (1, 1)], sent=[0.0, 3.0], recv_interval=100)
    assert two.first == [1.0, 4.0]


@pytest.mark.parametrize("workload", [LONG, OPEN | LONG])
def test_a_simulation_waits_about_as_long_as_the_estimate(workload):
    """A tenth of a closed loop starts at once, finds the scheduler idle, and does not wait."""
    quick, slow = (estimates(workload, scheduler_recv_interval=n) for n in (1, 30))
    waited = slow.serving.prefill["receive"][0]
    means = [simulate(e.setting, e.cases, e.memory).means_s["ttft_s"][0] for e in (quick, slow)]
    assert 0.6 < (means[1] - means[0]) / waited < 1.2


def test_a_simulated_first_token_waits_for_the_others():
    quick, slow = estimates(waits=True), estimates(waits=True, stream_interval=30)
    before, after = (simulate(e.setting, e.cases, e.memory).means_s for e in (quick, slow))
    assert after["ttft_s"] == pytest.approx(before["ttft_s"] + 29 * before["tpot_s"], rel=1e-3)
    assert after["request_latency_s"] == pytest.approx(before["request_latency_s"], rel=1e-12)


# The choice


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, (30, 30)),
        ({"objective": {"optimize": "cost"}}, (30, 30)),
        ({"objective": {"limits": {"tpot_ms": 100}}}, (30, 30)),
        ({"workload": LONG | {"concurrency": 8}}, (30, 10)),
        ({"workload": OPEN | LONG}, (30, 10)),
        ({"workload": {"output_tokens": 64}}, (1, 1)),
        ({"device": "h100-sxm"}, (1, 1)),
        ({"objective": {"optimize": "ttft"}}, (1, 1)),
        ({"objective": {"optimize": "latency"}}, (1, 1)),
        ({"objective": {"weights": {"cost": 1, "tpot": 1}}}, (1, 1)),
        ({"objective": {"limits": {"ttft_ms": 9000}}}, (1, 1)),
        ({"objective": {"limits": {"request_latency_ms": 90_000}}}, (1, 1)),
        ({"workload": {"mode": "offline", "requests": 500, "concurrency": None}}, (1, 1)),
    ],
)
def test_the_objective_chooses_what_is_left_open(parts, expected):
    assert tuple(chosen(request_of(**parts)).values()) == expected


def test_what_is_stated_goes_before_the_objective():
    stated = {"stream_interval": 5, "scheduler_recv_interval": 2}
    for objective in ({}, {"optimize": "ttft"}):
        assert chosen(request_of(candidate=SGLANG | stated, objective=objective)) == stated


def test_every_load_of_a_plan_has_its_own():
    request = request_of(LONG | {"concurrency": 8}, options={"engines": ["sglang"], "loads": [64]})
    board = plan(request)
    found = {
        (float(board.columns["load"][row]), board.candidate(row)["scheduler_recv_interval"])
        for row in map(int, board.order)
    }
    assert found == {(8.0, 10), (64.0, 30)}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("vllm", "scheduler_recv_interval"),
        ("tgi", "stream_interval"),
        ("dynamo", "stream_interval"),
    ],
)
def test_an_interval_that_an_engine_lacks_is_refused_by_name(name, field):
    request = request_of(device="h100-sxm", candidate=SGLANG | {"engine": name, field: 10})
    with pytest.raises(InputError, match="no such interval") as refused:
        plan_candidate(request)
    assert refused.value.field == f"candidate.{field}"


def test_intervals_are_options_of_their_engines():
    for name in engine_names():
        spec = engine(name)
        for field in spec.intervals.options if spec.intervals else ():
            table = spec.options.by_name
            assert field in table or name == "tensorrt-llm"  # told in its file of options


# Launches and commands


@pytest.mark.parametrize(
    ("objective", "expected", "layer"), [({}, 30, "objective"), ({"optimize": "ttft"}, 1, "base")]
)
def test_what_was_estimated_is_on_the_command(objective, expected, layer):
    recipe = recipe_of(QWEN, "b200-sxm", workload=dict(LONG), candidate=SGLANG, objective=objective)
    words = relaunch(recipe).processes[0].argv
    for field, flag in zip(SLOW, ("--stream-interval", "--scheduler-recv-interval"), strict=True):
        assert words[words.index(flag) + 1] == str(expected)
        assert recipe.engine.options[field] == expected
        assert recipe.provenance[f"candidate.{field}"] == layer
        assert recipe.provenance[f"options.{field}"] == layer


def test_what_the_user_states_is_the_user_s():
    recipe = recipe_of(QWEN, "b200-sxm", workload=dict(LONG), candidate=SGLANG | SLOW)
    assert recipe.provenance["options.stream_interval"] == "user"


@pytest.mark.parametrize("interval", [None, 20])
def test_vllm_and_tensorrt_llm_are_told_what_is_not_their_default(interval):
    split = {"tp": 2, "pp": 1, "dp": 1, "stream_interval": interval}
    vllm = recipe_of(QWEN, candidate={"engine": "vllm", **split})
    words = relaunch(vllm).processes[0].argv
    assert ("--stream-interval" in words) == (interval is not None)
    other = recipe_of(QWEN, candidate={"engine": "tensorrt-llm", **split})
    (file,) = relaunch(other).files.values()
    assert ("stream_interval: 20" in file) == (interval is not None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--stream-interval 30 --scheduler-recv-interval 10", (30, 10)),
        ("--stream-interval 30", (30, 1)),
        ("", (1, 1)),
    ],
)
def test_a_command_is_read_and_written_again(options, expected):
    """What it leaves out is the engine's default there, not the choice of an objective."""
    ground = Ground.of(hardware="b200-sxm:8", output_tokens=1024)
    command = f"sglang serve --model-path {QWEN} --tp-size 8 {options}"
    answer = check_command(command, ground, folders=False)
    assert tuple(answer["candidate"][field] for field in SLOW) == expected
    found = convert(command, ground)
    assert not [lost for lost in found.lost if "interval" in lost.what]
    words = relaunch(found.recipe).processes[0].argv
    again = read_command(list(words)).meant.candidate
    assert tuple(again[field] for field in SLOW) == expected


def test_an_interval_out_of_range_is_an_error_of_the_command():
    case = read_command("sglang serve --model-path m --stream-interval 0")
    assert "range" in [finding.code for finding in case.meant.findings]


# Advice


def test_the_estimate_says_what_waits_and_for_how_long():
    found, row = plan_candidate(request_of())
    estimate_, notes = found.estimate(row), " ".join(found.estimate(row).notes)
    assert "The scheduler checks for new requests every 30 steps: time to first token" in notes
    assert "set scheduler_recv_interval to 1 if people wait for the first token" in notes
    assert "After the first, tokens are streamed 30 at a time" in notes
    assert estimate_.breakdown_s.prefill["receive"] > 0
    assert "steps" not in " ".join(
        plan_candidate(request_of(objective={"optimize": "ttft"}))[0].estimate(0).notes
    )


def test_a_limit_that_an_interval_breaks_is_met_without_it():
    split = request_of(candidate=SGLANG | SLOW)
    with_it = plan_candidate(split)[0].estimate(0).serving.ttft_s
    without = estimates().serving.ttft_s[0]
    limit = float(np.mean([with_it, without])) * 1e3
    load = split.workload.concurrency
    request = change(split, {"objective.limits.ttft_ms": limit, "workload.concurrency": load})
    checked, row = plan_candidate(request)
    assert not checked.feasible[row]
    first = fixes(checked, row)[0]
    assert first.fields == {
        "candidate.stream_interval": 1,
        "candidate.scheduler_recv_interval": 1,
    }
    assert plan_candidate(change(request, first.fields))[0].feasible[0]
