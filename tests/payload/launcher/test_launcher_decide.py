"""What is decided about servers and training runs from looks and times: no process, no clock."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.payload.launcher import decide, run_decide
from recipe_core.payload.launcher.decide import Kind, Phase, Seen, Step, Target, Trouble
from recipe_core.payload.launcher.run_decide import Action
from recipe_core.payload.launcher.sections import Supervision
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

ROWS = partial(table, "launcher_decide")
LIMITS = Supervision(
    crash_budget=3, window_s=100, backoff_s=1, backoff_most_s=8, stable_s=50, hang_s=10, slow_s=20
)
SILENT, WELL = Seen(answers=False), Seen(tokens=0, running=0)
TARGET = Target(tpot_most_s=0.02, load_most=4, first_token_s=1.0)
DEATH = Trouble(Kind.DIED, "it ended")


def looks(track, seen, target=TARGET):
    """Judge one look after the other, up to the first trouble."""
    for at, look in seen:
        track, trouble = decide.judge_group(track, look, at, LIMITS, target)
        if trouble is not None:
            return track, trouble
    return track, None


def test_a_start_is_ready_when_it_answers_or_late():
    track, trouble = looks(decide.starting(0, 30), [(5, SILENT), (6, WELL)])
    assert (trouble, track.phase, track.since) == (None, Phase.SERVING, 6)
    _, trouble = looks(decide.starting(0, 30), [(29, SILENT), (30, SILENT)])
    assert trouble == Trouble(Kind.LATE, "not ready after 30 s")


@over("code killed kind words", ROWS("ends"))
def test_an_end_is_trouble_in_every_phase(code, killed, kind, words):
    for track in (decide.starting(0, 30), decide.track_serving_group(0)):
        seen = Seen(ended=("a",), codes=(code,), out_of_memory=killed)
        assert looks(track, [(1, seen)])[1] == Trouble(Kind(kind), words)


def test_a_hang_is_no_answer_for_long_and_often():
    track, trouble = looks(decide.track_serving_group(0), [(at, SILENT) for at in (3, 6, 9)])
    assert trouble is None
    assert looks(track, [(10, SILENT)])[1] == Trouble(Kind.HUNG, "no answer for 10 s")
    assert looks(track, [(9.5, WELL), (10, SILENT), (18, SILENT)])[1] is None
    # Nor is a look after a long sleep, or one that asked nobody.
    track = decide.track_serving_group(0)
    assert looks(track, [(5000, SILENT)])[1] is None
    assert looks(track, [(at, Seen(answers=None)) for at in range(100)]) == (track, None)


def test_requests_that_get_no_tokens_are_a_hang():
    def stuck(at, tokens=7):
        return at, Seen(tokens=tokens, running=2)

    track, trouble = looks(decide.track_serving_group(0), [stuck(1), stuck(5), stuck(9)])
    assert trouble is None
    assert looks(track, [stuck(11)])[1] == Trouble(Kind.HUNG, "2 requests, no new token for 10 s")
    assert looks(track, [stuck(11, 8), stuck(20, 8)])[1] is None
    assert looks(track, [(11, Seen(tokens=7, running=0)), stuck(20)])[1] is None
    # A long prompt may take a while.
    slow = replace(TARGET, first_token_s=5.0)
    assert looks(track, [stuck(11), stuck(15.5)], slow)[1] is None
    assert looks(track, [stuck(16)], slow)[1] is not None


def paced(*tpots, load=2, start=0):
    """Looks every five seconds, with ten tokens between two of them."""
    out, total = [], 0.0
    for index, tpot in enumerate((0.0, *tpots)):
        total, count = total + 10 * tpot, 10 * index
        seen = Seen(tokens=count, running=load, tpot_sum_s=total, tpot_count=count)
        out.append((start + 5.0 * index, seen))
    return out


def test_slow_for_long_is_trouble_only_at_the_planned_load():
    words = "30.0 ms per token over 20 s, planned at most 20.0"
    assert looks(decide.track_serving_group(0), paced(*[0.03] * 4))[1] == Trouble(Kind.SLOW, words)
    for seen, target in (
        (paced(*[0.03] * 3), TARGET),
        (paced(*[0.019] * 20), TARGET),
        (paced(*[0.03] * 20, load=5), TARGET),
        (paced(0.03, 0.01, 0.01, 0.01, 0.03), TARGET),
        (paced(*[0.03] * 20), Target()),
    ):
        assert looks(decide.track_serving_group(0), seen, target)[1] is None


def test_slow_is_restarted_once_then_another_choice_or_left():
    slow = Trouble(Kind.SLOW, "slow")
    track, step = decide.respond_for_group(decide.track_serving_group(0), slow, 1, LIMITS)
    assert step is Step.RESTART
    again = decide.track_serving_group(9, decide.starting(5, 30, track))
    assert decide.respond_for_group(again, slow, 30, LIMITS)[1] is Step.LEAVE
    kept, step = decide.respond_for_group(again, slow, 30, LIMITS, others_serve=True)
    assert step is Step.KEEP
    assert looks(kept, paced(*[0.03] * 9, start=40))[1] is None  # said once
    better, _ = looks(kept, paced(*[0.01] * 9, start=40))
    assert decide.respond_for_group(better, slow, 99, LIMITS)[1] is Step.RESTART


def fail(track, *times, **how):
    """Failures of a service, each with a start afterwards, and what was done about each."""
    steps = []
    for at in times:
        track, step = decide.respond_for_group(track, DEATH, at, LIMITS, **how)
        track = decide.track_serving_group(at, decide.starting(at, 30, track))
        steps.append(step)
    return track, steps


def test_the_budget_is_for_a_window_and_stable_service_forgets():
    for others, last in ((False, Step.LEAVE), (True, Step.PARK)):
        _, steps = fail(decide.track_serving_group(0), 1, 2, 3, 4, others_serve=others)
        assert steps == [Step.RESTART] * 3 + [last]
    assert fail(decide.track_serving_group(0), 1, 40, 80, 120, 160)[1] == [Step.RESTART] * 5
    track, _ = looks(fail(decide.track_serving_group(0), 1)[0], [(52, WELL)])
    assert (track.failures, track.attempt) == ((), 0)
    # Rests double up to the most.
    assert [decide.backoff_s(n, LIMITS, 1.0) for n in range(6)] == [1, 2, 4, 8, 8, 8]
    assert decide.backoff_s(3, LIMITS, 0.0) == 4
    # A parked group is tried again once its failures are old.
    track, _ = fail(decide.track_serving_group(0), 1, 2, 3)
    parked, step = decide.respond_for_group(track, DEATH, 4, LIMITS, others_serve=True)
    assert (step, parked.phase) == (Step.PARK, Phase.PARKED)
    assert (decide.due(parked, 100), decide.due(parked, 101)) == (False, True)
    assert (
        decide.judge_group(parked, Seen(ended=("a",), codes=(None,)), 5, LIMITS, TARGET)[1] is None
    )


def test_a_lasting_cause_and_a_machine_that_is_too_small_burn_no_budget():
    at_start, serving = decide.starting(0, 30), decide.track_serving_group(0)
    assert decide.respond_for_group(at_start, DEATH, 1, LIMITS, lasting=True)[1] is Step.LEAVE
    parked, step = decide.respond_for_group(
        at_start, DEATH, 1, LIMITS, lasting=True, others_serve=True
    )
    assert (step, parked.until) == (Step.PARK, float("inf"))
    # What has served was started with the right words: its log only looks like that.
    assert decide.respond_for_group(serving, DEATH, 1, LIMITS, lasting=True)[1] is Step.RESTART
    assert decide.respond_for_group(serving, DEATH, 1, LIMITS, misfit=True)[1] is Step.LEAVE


def test_which_groups_serve():
    for expected, roles in ROWS("serving"):
        assert decide.serves(roles) is expected, roles


_SEEN = st.builds(
    Seen,
    answers=st.sampled_from([True, False, None]),
    tokens=st.none() | st.floats(0, 1e9),
    running=st.none() | st.floats(0, 1e3),
    waiting=st.none() | st.floats(0, 1e3),
    tpot_sum_s=st.none() | st.floats(0, 1e6),
    tpot_count=st.none() | st.floats(0, 1e9),
)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.floats(0, 100), _SEEN | st.just(Seen(("a",), (1,)))), max_size=40))
def test_no_sequence_of_looks_exceeds_the_budget(sequence):
    """More failures than the budget never lead to restarts within one window."""
    now, track, restarts = 0.0, decide.starting(0, 30), []
    for passed, seen in sequence:
        now += passed
        if decide.due(track, now):
            track = decide.starting(now, 30, track)
        track, trouble = decide.judge_group(track, seen, now, LIMITS, TARGET)
        if trouble is None:
            continue
        track, step = decide.respond_for_group(track, trouble, now, LIMITS, others_serve=True)
        if step is Step.RESTART:
            assert 0 < track.until - now <= LIMITS.backoff_most_s
            restarts = [at for at in restarts if now - at < LIMITS.window_s] + [now]
            if all(b - a < LIMITS.stable_s for a, b in pairwise(restarts)):
                assert len(restarts) <= LIMITS.crash_budget


# Training runs

OF_RUNS = Supervision(crash_budget=2, window_s=100, backoff_s=1, stable_s=50, hang_s=10)
BEGUN = run_decide.track_started_run(0, 0)
PROVEN = run_decide.judge_run(BEGUN, run_decide.Seen(alive=True, step=1), 1, OF_RUNS, 1000.0)[0]


def looked(track, now, **seen):
    """The track after a look, and the trouble; a start has a thousand seconds."""
    seen = run_decide.Seen(**({"alive": True} | seen))
    return run_decide.judge_run(track, seen, now, OF_RUNS, 1000.0)


def kind_of(track, now, **seen):
    trouble = looked(track, now, **seen)[1]
    return trouble.kind.name if trouble else None


@over("kind seen", ROWS("training_ends"))
def test_an_end_is_told_by_codes_and_by_what_the_trainer_recorded(kind, seen):
    assert kind_of(BEGUN, 1, alive=False, **seen) == kind


def test_a_hang_is_no_step_for_twenty_usual_ones_but_never_less_than_the_limit():
    track, _ = looked(run_decide.track_started_run(0, 5), 1, step=6, usual_s=0.1)
    assert kind_of(track, 10.9, step=6, usual_s=0.1) is None
    assert kind_of(track, 11.1, step=6, usual_s=0.1) == "HUNG"
    assert kind_of(track, 40, step=6, usual_s=2.0) is None
    _, trouble = looked(track, 41.1, step=6, usual_s=2.0)
    assert trouble.reason == "no step and no growing checkpoint for 40 s; a step takes 2 s"
    track, _ = looked(BEGUN, 1, step=1, usual_s=0.1, growth=10)
    for now in range(5, 100, 5):  # a checkpoint that grows is progress
        track, trouble = looked(track, now, step=1, usual_s=0.1, growth=10 + now)
        assert trouble is None


@over("seen", ROWS("loading"))
def test_loading_and_exporting_have_the_time_of_a_start(seen):
    track, _ = looked(run_decide.track_started_run(0, 7), 1, **seen)
    assert (kind_of(track, 900, **seen), kind_of(track, 1002, **seen)) == (None, "HUNG")


def answer(track, now=1.0, kind=run_decide.Kind.DIED, **more):
    trouble = run_decide.Trouble(kind, "ended with exit code 1")
    return run_decide.respond_for_run(track, trouble, now, OF_RUNS, **({"checkpoint": 0} | more))


def test_a_run_that_trained_is_started_again_until_its_budget_is_spent():
    track, actions, rests = PROVEN, [], []
    for now in (1, 2, 3):
        track, action = answer(track, now, checkpoint=now)
        actions.append(action)
        rests.append(run_decide.rest_s(track, OF_RUNS, 1.0))
    assert actions == [Action.RESTART, Action.RESTART, Action.LEAVE]
    assert rests[:2] == [1.0, 2.0]
    # Failures count within the window, and the rest shrinks once it runs well.
    track = PROVEN
    for now in (1, 110, 220, 330):
        track, action = answer(track, now, checkpoint=now)
        assert action is Action.RESTART
        track, _ = looked(run_decide.track_started_run(now, now, track), now + 60, step=now + 1)
        assert track.attempt == 0
    # One that never gets to a new checkpoint is left however seldom it fails.
    track = PROVEN
    for now, expected in ((1e3, Action.RESTART), (2e3, Action.RESTART), (3e3, Action.LEAVE)):
        track, action = answer(track, now, checkpoint=7)
        assert action is expected


def test_what_never_trained_is_tried_again_only_where_its_cause_passes():
    for more, action in (
        ({"lasting": True}, Action.LEAVE),
        ({"cause_known": False}, Action.LEAVE),
        ({"cause_known": True}, Action.RESTART),
    ):
        assert answer(BEGUN, **more)[1] is action
        assert answer(PROVEN, **more)[1] is Action.RESTART
    # A machine that became smaller ends a choice at once.
    assert answer(PROVEN, misfit=True)[1] is Action.LEAVE


@pytest.mark.parametrize(
    ("kind", "action"),
    [("FINISHED", "END"), ("STOPPED", "END"), ("REFUSED", "STOP"), ("ROLLED_BACK", "RESTART")],
)
def test_ends_that_say_what_to_do(kind, action):
    assert answer(PROVEN, kind=run_decide.Kind[kind]) == (PROVEN, Action[action])


def test_waiting_for_devices_costs_the_budget_and_another_choice_starts_with_all_of_it():
    track = PROVEN
    for now, wanted, rest in ((1.0, True, 1.0), (2.0, True, 2.0), (3.0, False, 4.0)):
        track, worth = run_decide.waited(track, now, OF_RUNS)
        assert (worth, run_decide.rest_s(track, OF_RUNS, 1.0)) == (wanted, rest)
    fresh = run_decide.forgiven(track)
    assert (fresh.failures, fresh.attempt, fresh.stuck, fresh.proven) == ((), 0, 0, False)
