"""Rewrites of a command: no word changes that need not, and what changed is told word by word."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.commands.arguments import Arguments
from recipe_core.commands.carry import plan_request_of
from recipe_core.commands.context import CommandContext
from recipe_core.commands.edits import mend_words
from recipe_core.commands.judge import judge_command
from recipe_core.commands.launches import first_launch
from recipe_core.commands.rewrite import compare_parts
from recipe_core.commands.words import read_script
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, from_query, link_query
from recipe_core.views.commands import changed_lines, verdict_text
from tests.fixtures.rows import over, table


def check(command, hardware):
    return judge_command(command, CommandContext.of(hardware=hardware), folders=False)


def words_of(difference, *kinds):
    return [word for run in difference if run["kind"] in kinds for word in run["words"]]


@over("command, hardware, removed, added", table("rewrite", "better_layouts"))
def test_a_better_layout_keeps_every_word_that_says_nothing_of_it(
    command, hardware, removed, added
):
    answer = check(command, hardware)
    [offer] = answer["better"]["commands"]
    difference = offer["difference"]
    assert " ".join(words_of(difference, "removed")) == (removed or "")
    assert " ".join(words_of(difference, "added")) == (added or "")
    [original] = read_script(command).commands
    before = [*(f"{name}={value}" for name, value in original.env.items()), *original.words]
    assert words_of(difference, "kept", "removed") == before
    after = [*(f"{name}={value}" for name, value in offer["env"].items()), *offer["argv"]]
    assert words_of(difference, "kept", "added") == after
    # and what it says comes true
    again = check(offer["command"], hardware)
    assert again["ok"] is True
    assert again["candidate"] == answer["better"]["candidate"]
    for name in ("output_tokens_per_s", "tpot_s"):
        promised = answer["better"]["estimate"]["serving"][name]
        assert again["estimate"]["serving"][name] == pytest.approx(promised)
    lines = changed_lines(difference)
    assert lines
    assert all(line in verdict_text(answer) for line in lines)


@over("command, hardware", table("rewrite", "not_in_its_own_words"))
def test_a_layout_that_the_own_words_cannot_say_is_written_anew(command, hardware):
    offers = check(command, hardware)["better"]["commands"]
    original = read_script(command).commands[0].words
    assert all(offer["argv"][: len(original) - 1] != list(original[:-1]) for offer in offers)
    assert all(words_of(offer["difference"], "added") for offer in offers)


@over("command, corrected", table("rewrite", "misspelt_words"))
def test_a_misspelt_word_is_spelt_and_what_means_nothing_is_left_out(command, corrected):
    launch = first_launch(tuple(command.split()))
    arguments = Arguments(launch.engine, launch.args, None, launch.program)
    words, _ = mend_words(arguments)
    assert " ".join((*launch.before, *words)) == corrected
    again = Arguments(launch.engine, words, None, launch.program)
    assert again.findings.errors == []


def test_a_correction_and_the_layouts_beside_it_have_the_option_that_was_misspelt():
    command = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --tp 4"
    answer = check(f"{command} --mem-fraction-statik 0.9", "h100-sxm:8")
    assert answer["verdict"] == "cannot start"
    [corrected] = answer["changes"]
    assert corrected["command"] == f"{command} --mem-fraction-static 0.9"
    assert corrected["options"] == {"--mem-fraction-statik": "--mem-fraction-static 0.9"}
    assert changed_lines(corrected["difference"]) == [
        "- --mem-fraction-statik 0.9",
        "+ --mem-fraction-static 0.9",
    ]
    assert answer["better"]["candidate"]["memory_fraction"] == 0.9
    # a correction that is the best layout already is no better one
    best = check("vllm serve Qwen/Qwen3-8B --max-num-seqz 64", "h100-sxm:1")
    assert best["better"] is None
    assert best["changes"][0]["verdict"] == "fits"


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_a_difference_has_every_word_of_both(before, after):
    runs = compare_parts([(word, "1") for word in before], [(word, "1") for word in after])
    assert words_of(runs, "kept", "removed") == [w for word in before for w in (word, "1")]
    assert words_of(runs, "kept", "added") == [w for word in after for w in (word, "1")]
    kinds = [run["kind"] for run in runs]
    assert all(a != b for a, b in pairwise(kinds))


def test_long_commands_are_compared_as_one():
    runs = compare_parts([("a",)] * 2000, [("a",)])
    assert [run["kind"] for run in runs] == ["removed", "added"]


OPEN_LOAD = {"workload.mode": "open", "workload.request_rate": 3.0}
PLANS = [{}, {"workload.kind": "training"}, {"objective.limits.tpot_ms": 40.0}]


@over("command, hardware, carried", table("rewrite", "plans"))
@pytest.mark.parametrize("before", PLANS)
def test_a_plan_of_a_command_has_all_that_it_states(command, hardware, carried, before):
    answer = check(command, hardware)
    start = change(DEFAULT, before)
    request = change(start, plan_request_of(answer, start))
    again, ignored = from_query(link_query(request))
    assert (again, ignored) == (request, [])
    values = request.model_dump(mode="json")
    for path, value in carried.items():
        place = values
        for name in path.split("."):
            place = place[name]
        assert place == value, path
    # the command's own layout is the candidate, with the figures of the verdict
    if request.workload.concurrency == answer["workload"]["concurrency"]:
        plan, row = plan_candidate(request, folders=False)
        own = plan.estimate(row).to_json()
        for part, name in (
            ("memory", "total_bytes"),
            ("memory", "start_probability"),
            ("serving", "request_latency_s"),
        ):
            assert own[part][name] == pytest.approx(answer["estimate"][part][name]), name
    best = plan_splits(request, folders=False).best
    assert best is not None
    assert best.candidate["weight_dtype"] == answer["candidate"]["weight_dtype"]


def test_a_load_in_another_mode_stays():
    answer = check("vllm serve Qwen/Qwen3-32B -tp 2", "h100-sxm:8")
    request = change(DEFAULT, OPEN_LOAD)
    after = change(request, plan_request_of(answer, request)).workload
    assert (after.mode, after.request_rate, after.concurrency) == ("open", 3.0, None)
