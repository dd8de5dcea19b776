"""Outputs in numbers: the arithmetic, the verdict, and a fake engine that is random by a seed."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest

from recipe_core.calibration.trials import deployment
from recipe_core.calibration.trials import verify as module
from recipe_core.calibration.trials.answers import Answer, Questions, read_answer
from recipe_core.calibration.trials.compare import (
    EXACT,
    answer_agreement,
    coarsest_format_class,
    first_difference,
    judge_agreement,
    logprob_distance,
    tolerance,
    top_divergence,
)
from recipe_core.calibration.trials.deployment import TrialError
from recipe_core.calibration.trials.verify import Choice, verify_outputs
from recipe_core.calibration.trials.workplace import Machine
from recipe_core.engines.spec import engine, engine_names
from recipe_core.engines.trials import Reproducibility, reproducibility
from recipe_core.payload.launcher.api import Api
from recipe_core.recipe import make_recipe
from tests.conftest import make_request
from tests.fixtures.experiments import ALONE, Servers, Words
from tests.fixtures.refusals import refusal

SMALL = Choice(prompts=6, tokens=12)
QUIET = Machine(lambda line: None)


def answer(text, logprobs=()):
    tokens = tuple(text.split())
    top = tuple({token: value} for token, value in zip(tokens, logprobs, strict=False))
    return Answer(text, tokens, True, logprobs, top)


def test_agreement_counts_where_answers_part():
    left = [answer("a b c d"), answer("a b c d"), answer("a b c d")]
    right = [answer("a b c d"), answer("a x c d"), answer("a b c")]
    alike = answer_agreement(left, right)
    assert (alike.identical, alike.share, alike.unit) == (1, pytest.approx(1 / 3), "tokens")
    assert (alike.first_divergence["least"], alike.first_divergence["most"]) == (1, 3)
    assert alike.alike_after == {"1": 1.0, "4": pytest.approx(1 / 3)}
    assert first_difference("ab", "ab") is None
    # engines without tokens are compared by words
    known = answer("the soup is hot")
    without = Answer("the soup is cold", ("the", " soup", " is", " cold"), exact=False)
    assert answer_agreement([known], [without]).unit == "words"
    refusal(answer_agreement, [known], [])


def test_distance_is_over_what_came_before_the_parting():
    left = [answer("a b c", (-0.1, -0.2, -0.3))]
    right = [answer("a b x", (-0.1, -0.25, -9.0))]
    apart = logprob_distance(left, right)
    assert (apart.tokens, apart.mean_abs) == (2, pytest.approx(0.025))
    assert apart.max_abs == pytest.approx(0.05)
    assert logprob_distance([answer("a")], [answer("a")]) is None
    # the divergence of shared alternatives is a lower bound
    whole_p, whole_q = [0.5, 0.3, 0.15, 0.05], [0.4, 0.35, 0.05, 0.2]
    whole = sum(p * math.log(p / q) for p, q in zip(whole_p, whole_q, strict=True))
    shown = [{str(i): math.log(p) for i, p in enumerate(ps[:2])} for ps in (whole_p, whole_q)]
    assert 0 < top_divergence(*shown) <= whole
    assert top_divergence(shown[0], shown[0]) == pytest.approx(0, abs=1e-12)
    assert top_divergence({"a": -1.0}, {"b": -1.0}) is None


def test_the_verdict_names_the_bound_that_is_broken():
    same = [answer("a b", (-0.1, -0.2))]
    moved = [answer("a b", (-0.1, -0.9))]
    assert judge_agreement(
        tolerance(EXACT), answer_agreement(same, same), logprob_distance(same, same)
    ) == ("within", [])
    verdict, broken = judge_agreement(
        tolerance("bf16"), answer_agreement(same, moved), logprob_distance(same, moved)
    )
    assert verdict == "outside"
    assert "log-probabilities differ 0.35 nats" in broken[0]
    loose = tolerance("four-bit").model_copy(update={"mean_abs": None, "kl_mean": None})
    assert judge_agreement(loose, answer_agreement(same, moved), None)[0] == "not judged"


def test_an_answer_is_read_or_refused():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -1.5]}
    logprobs["top_logprobs"] = [None, {"b": -1.5}]
    read = read_answer({"choices": [{"text": "ab", "logprobs": logprobs, "token_ids": [3, 4]}]})
    assert (read.tokens, read.logprobs, read.exact) == (("3", "4"), (None, -1.5), True)
    chat = read_answer({"choices": [{"message": {"content": "hot soup"}}]})
    assert (chat.text, chat.exact) == ("hot soup", False)
    with pytest.raises(TrialError):
        read_answer({"choices": []})


def test_every_engine_is_known_and_its_switches_are_its_options():
    for name in engine_names():
        spec = engine(name)
        for switch in reproducibility(name).switches:
            assert set(switch.options) <= set(spec.options.by_name)
            assert switch.doubt("hpu", "gaudi2")
    invariant = reproducibility("vllm").switches[0]
    assert invariant.doubt("cuda", "sm_90") is None
    assert invariant.doubt("rocm", "gfx942") is None
    assert invariant.doubt("cuda", "sm_75")
    assert invariant.doubt("rocm", "gfx1100")


def test_unsplit_is_one_device_of_the_same_formats():
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1}
    recipe = make_recipe(make_request("Qwen/Qwen3-8B", candidate=split))
    whole = module._unsplit_subject(module.Subject("base", recipe, None)).recipe
    assert whole.device.count == 1
    assert whole.candidate["weight_dtype"] == recipe.candidate["weight_dtype"]
    assert coarsest_format_class(recipe, whole) == "bf16"
    large = make_recipe(make_request(candidate=split | {"tp": 8}))
    subject = module.Subject("base", large, None)
    refusal(module._unsplit_subject, subject, kind=module.NoAnswer)
    # prompts are the same in every run
    assert Questions.of(5, 8, 100) == Questions.of(5, 8, 100)
    assert len(set(Questions.of(50, 8, 100).prompts)) == 50


@pytest.mark.usefixtures("fake_vllm")
def test_an_engine_that_repeats_is_within_every_tolerance(vllm_bundle, tmp_path):
    other = vllm_bundle("other", weight_dtype="fp32")
    report = verify_outputs(vllm_bundle(), [other], SMALL, machine=QUIET)
    assert report.verdict == "within"
    by_name = {comparison.name: comparison for comparison in report.comparisons}
    assert (by_name["repeat-greedy"].alike.share, by_name["batch"].alike.unit) == (1, "tokens")
    assert by_name["against-1-reading"].apart.mean_abs == pytest.approx(0.01)
    assert "VLLM_BATCH_INVARIANT=1 works on cuda, rocm, not on cpu" in report.left_out.values()
    assert "nothing is split" in report.left_out["split against unsplit"]
    assert not list(tmp_path.glob("bundle/run/verify/work-*"))
    json.dumps(report.to_json())


@pytest.mark.usefixtures("fake_vllm")
def test_a_bundle_that_does_not_start_says_why(vllm_bundle, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_DIES_AT", "16")
    with pytest.raises(TrialError) as failure:
        verify_outputs(vllm_bundle(), (), SMALL, machine=QUIET)
    assert "server-0" in failure.value.message
    assert "out of memory" in failure.value.detail
    assert not list(tmp_path.glob("bundle/run/verify/work-*"))


def verified(bundle, *against, noise=""):
    """A report of answers without a server."""
    machine = replace(QUIET, deploy=Servers().deploy, alone=ALONE)
    asker = partial(Words, noise=noise)
    return verify_outputs(bundle, against, SMALL, machine=machine, asker=asker)


def test_noise_of_the_batch_is_seen_and_a_switch_ends_it(vllm_bundle, monkeypatch):
    known = reproducibility("vllm")
    switch = known.switches[0].model_copy(update={"runtimes": ("cpu",)})
    known = known.model_copy(update={"switches": (switch,)})
    monkeypatch.setattr(module, "reproducibility", lambda name: known)
    report = verified(vllm_bundle(), noise="batch")
    by_name = {comparison.name: comparison for comparison in report.comparisons}
    assert (by_name["repeat-greedy"].alike.share, by_name["batch"].alike.share) == (1, 0)
    assert by_name["batch"].alike.first_divergence["least"] == 4
    assert by_name["batch-batch-invariant"].alike.share == 1
    assert by_name["batch-batch-invariant"].kind == EXACT


def test_an_engine_that_never_repeats_is_outside(vllm_bundle, monkeypatch):
    plain = Reproducibility(greedy={}, sampled={}, source="assumed", status="assumed")
    monkeypatch.setattr(module, "reproducibility", lambda name: plain)
    report = verified(vllm_bundle(), noise="always")
    assert (report.verdict, report.comparisons[0].alike.unit) == ("outside", "words")
    assert "tells none" in report.left_out["log-probabilities"]
    # another model cannot be compared
    other = vllm_bundle("other", layers=6)
    assert "another model" in verified(vllm_bundle("same"), other).left_out[str(other)]


def test_a_trial_makes_a_key_where_its_bundle_needs_one_and_finds_none(monkeypatch):
    needed, free = (Api("/", "m", {}, "A_KEY", key_needed=each) for each in (True, False))
    assert len({deployment._trial_api_key(needed)["A_KEY"] for _ in range(2)}) == 2
    monkeypatch.setenv("A_KEY", "the user's")
    assert deployment._trial_api_key(needed) == deployment._trial_api_key(free) == {}
