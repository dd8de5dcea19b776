"""What is decided about a group from what it shows: no process, no clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.launcher import decide
from recipe_core.launcher.decide import Kind, Phase, Seen, Step, Target, Track, Trouble
from recipe_core.launcher.supervision import Supervision
from tests.fixtures.sizes import examples

LIMITS = Supervision(
    crash_budget=3, window_s=100, backoff_s=1, backoff_most_s=8, stable_s=50, hang_s=10, slow_s=20
)
WELL = Seen(tokens=0, running=0)
TARGET = Target(tpot_most_s=0.02, load_most=4, first_token_s=1.0)
DEATH = Trouble(Kind.DIED, "it ended")


def looks(
    track: Track, seen: list[tuple[float, Seen]], target: Target = TARGET
) -> tuple[Track, Trouble | None]:
    """Judge one look after the other, up to the first trouble."""
    for at, one in seen:
        track, trouble = decide.judge(track, one, at, LIMITS, target)
        if trouble is not None:
            return track, trouble
    return track, None


def test_a_start_is_ready_when_it_answers_or_late() -> None:
    silent = Seen(answers=False)
    track, trouble = looks(decide.starting(0, 30), [(5, silent), (6, WELL)])
    assert (trouble, track.phase, track.since) == (None, Phase.SERVING, 6)
    _, trouble = looks(decide.starting(0, 30), [(29, silent), (30, silent)])
    assert trouble == Trouble(Kind.LATE, "not ready after 30 s")


def test_an_end_is_trouble_in_every_phase() -> None:
    oom = "a was ended by signal 9; the kernel killed for want of memory"
    for code, killed, kind, words in (
        (3, False, Kind.DIED, "a ended with exit code 3"),
        (-11, False, Kind.DIED, "a was ended by signal 11"),
        (None, False, Kind.DIED, "a ended"),
        (-9, True, Kind.KILLED, oom),
    ):
        for track in (decide.starting(0, 30), decide.serving(0)):
            seen = Seen(ended=("a",), codes=(code,), out_of_memory=killed)
            assert looks(track, [(1, seen)])[1] == Trouble(kind, words)


def test_a_hang_is_no_answer_for_long_and_often() -> None:
    silent = Seen(answers=False)
    track, trouble = looks(decide.serving(0), [(at, silent) for at in (3, 6, 9)])
    assert trouble is None
    assert looks(track, [(10, silent)])[1] == Trouble(Kind.HUNG, "no answer for 10 s")
    assert looks(track, [(9.5, WELL), (10, silent), (18, silent)])[1] is None


def test_one_look_after_a_long_sleep_and_one_that_asked_nobody_are_no_hang() -> None:
    track = decide.serving(0)
    assert looks(track, [(5000, Seen(answers=False))])[1] is None
    assert looks(track, [(at, Seen(answers=None)) for at in range(100)]) == (track, None)


def test_requests_that_get_no_tokens_are_a_hang() -> None:
    def stuck(at: float, tokens: float = 7) -> tuple[float, Seen]:
        return at, Seen(tokens=tokens, running=2)

    track, trouble = looks(decide.serving(0), [stuck(1), stuck(5), stuck(9)])
    assert trouble is None
    assert looks(track, [stuck(11)])[1] == Trouble(Kind.HUNG, "2 requests, no new token for 10 s")
    assert looks(track, [stuck(11, 8), stuck(20, 8)])[1] is None
    assert looks(track, [(11, Seen(tokens=7, running=0)), stuck(20)])[1] is None
    # A long prompt may take a while.
    slow = replace(TARGET, first_token_s=5.0)
    assert looks(track, [stuck(11), stuck(15.5)], slow)[1] is None
    assert looks(track, [stuck(16)], slow)[1] is not None


def paced(*tpots: float, load: float = 2, start: float = 0) -> list[tuple[float, Seen]]:
    """Looks every five seconds, with ten tokens between two of them."""
    out, total = [], 0.0
    for index, tpot in enumerate((0.0, *tpots)):
        total += 10 * tpot
        count = float(10 * index)
        seen = Seen(tokens=count, running=load, tpot_sum_s=total, tpot_count=count)
        out.append((start + 5.0 * index, seen))
    return out


def test_slow_for_long_is_trouble_only_at_the_planned_load() -> None:
    words = "30.0 ms per token over 20 s, planned at most 20.0"
    assert looks(decide.serving(0), paced(*[0.03] * 4))[1] == Trouble(Kind.SLOW, words)
    assert looks(decide.serving(0), paced(*[0.03] * 3))[1] is None
    assert looks(decide.serving(0), paced(*[0.019] * 20))[1] is None
    assert looks(decide.serving(0), paced(*[0.03] * 20, load=5))[1] is None
    assert looks(decide.serving(0), paced(0.03, 0.01, 0.01, 0.01, 0.03))[1] is None
    assert looks(decide.serving(0), paced(*[0.03] * 20), Target())[1] is None


def test_slow_is_restarted_once_then_another_choice_or_left() -> None:
    slow = Trouble(Kind.SLOW, "slow")
    track, step = decide.respond(decide.serving(0), slow, 1, LIMITS)
    assert step is Step.RESTART
    again = decide.serving(9, decide.starting(5, 30, track))
    assert decide.respond(again, slow, 30, LIMITS)[1] is Step.LEAVE
    kept, step = decide.respond(again, slow, 30, LIMITS, others_serve=True)
    assert step is Step.KEEP
    assert looks(kept, paced(*[0.03] * 9, start=40))[1] is None  # said once
    better, _ = looks(kept, paced(*[0.01] * 9, start=40))
    assert decide.respond(better, slow, 99, LIMITS)[1] is Step.RESTART


def test_rests_double_up_to_the_most() -> None:
    rests = [decide.backoff_s(attempt, LIMITS, 1.0) for attempt in range(6)]
    assert rests == [1, 2, 4, 8, 8, 8]
    assert decide.backoff_s(3, LIMITS, 0.0) == 4


def fail(track: Track, at: float, **how: bool) -> tuple[Track, Step]:
    """One failure of a service, and its start afterwards."""
    track, step = decide.respond(track, DEATH, at, LIMITS, **how)
    return decide.serving(at, decide.starting(at, 30, track)), step


@pytest.mark.parametrize(("others", "last"), [(False, Step.LEAVE), (True, Step.PARK)])
def test_the_budget_is_for_a_window(others: bool, last: Step) -> None:
    track, steps = decide.serving(0), []
    for at in (1, 2, 3, 4):
        track, step = fail(track, at, others_serve=others)
        steps.append(step)
    assert steps == [Step.RESTART] * 3 + [last]
    track, steps = decide.serving(0), []
    for at in (1, 40, 80, 120, 160):
        track, step = fail(track, at)
        steps.append(step)
    assert steps == [Step.RESTART] * 5


def test_a_parked_group_is_tried_again_once_its_failures_are_old() -> None:
    track = decide.serving(0)
    for at in (1, 2, 3):
        track, _ = fail(track, at)
    parked, step = decide.respond(track, DEATH, 4, LIMITS, others_serve=True)
    assert (step, parked.phase) == (Step.PARK, Phase.PARKED)
    assert not decide.due(parked, 100)
    assert decide.due(parked, 101)
    assert decide.judge(parked, Seen(ended=("a",), codes=(None,)), 5, LIMITS, TARGET)[1] is None


def test_stable_service_forgets() -> None:
    track, _ = fail(decide.serving(0), 1)
    track, _ = looks(track, [(52, WELL)])
    assert (track.failures, track.attempt) == ((), 0)


def test_a_lasting_cause_burns_no_budget() -> None:
    at_start = decide.starting(0, 30)
    assert decide.respond(at_start, DEATH, 1, LIMITS, lasting=True)[1] is Step.LEAVE
    parked, step = decide.respond(at_start, DEATH, 1, LIMITS, lasting=True, others_serve=True)
    assert (step, parked.until) == (Step.PARK, float("inf"))
    # What has served was started with the right words: its log only looks like that.
    assert decide.respond(decide.serving(0), DEATH, 1, LIMITS, lasting=True)[1] is Step.RESTART


def test_a_machine_that_is_too_small_is_left_at_once() -> None:
    assert decide.respond(decide.serving(0), DEATH, 1, LIMITS, misfit=True)[1] is Step.LEAVE


def test_which_groups_serve() -> None:
    for expected, *roles in (
        (True, ("server", True), ("server", False)),
        (False, ("server", False)),
        (False, ("router", False), ("server", True)),
        (True, ("router", True), ("prefill", True), ("decode", False), ("decode", True)),
        (False, ("router", True), ("prefill", False), ("decode", True)),
        (False,),
    ):
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
def test_no_sequence_of_looks_exceeds_the_budget(sequence: list[tuple[float, Seen]]) -> None:
    """More failures than the budget never lead to restarts within one window."""
    now, track, restarts = 0.0, decide.starting(0, 30), []
    for passed, seen in sequence:
        now += passed
        if decide.due(track, now):
            track = decide.starting(now, 30, track)
        track, trouble = decide.judge(track, seen, now, LIMITS, TARGET)
        if trouble is None:
            continue
        track, step = decide.respond(track, trouble, now, LIMITS, others_serve=True)
        if step is Step.RESTART:
            assert 0 < track.until - now <= LIMITS.backoff_most_s
            restarts = [at for at in restarts if now - at < LIMITS.window_s] + [now]
            if all(b - a < LIMITS.stable_s for a, b in pairwise(restarts)):
                assert len(restarts) <= LIMITS.crash_budget
