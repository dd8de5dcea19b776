"""What is decided about a training run, from looks and times alone."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.launcher.run_decide import (
    Action,
    Kind,
    Seen,
    Track,
    Trouble,
    forgiven,
    judge,
    respond,
    rest_s,
    started,
    waited,
)
from recipe_core.launcher.supervision import Supervision

LIMITS = Supervision(crash_budget=2, window_s=100, backoff_s=1, stable_s=50, hang_s=10)
START_S = 1000.0
DIED = Trouble(Kind.DIED, "ended with exit code 1")


def looked(track: Track, now: float, **seen: Any) -> tuple[Track, Trouble | None]:
    return judge(track, Seen(**({"alive": True} | seen)), now, LIMITS, START_S)


def kind_of(trouble: Trouble | None) -> Kind | None:
    return trouble.kind if trouble else None


def test_an_end_is_told_by_codes_and_by_what_the_trainer_recorded() -> None:
    for kind, seen in (
        (Kind.FINISHED, {"code": 0, "complete": True}),
        (Kind.FINISHED, {"code": None, "complete": True}),
        (Kind.DIED, {"code": 1, "complete": True}),
        (Kind.STOPPED, {"code": 0}),
        (Kind.DIED, {"code": 1}),
        (Kind.DIED, {"code": None}),
        (Kind.DIED, {"code": -9}),
        (Kind.KILLED, {"code": -9, "out_of_memory": True}),
        (Kind.ROLLED_BACK, {"code": 1, "end_code": 3}),
        (Kind.REFUSED, {"code": 1, "end_code": 2}),
        (Kind.ROLLED_BACK, {"code": None, "end_code": 3}),
    ):
        assert kind_of(looked(started(0, 0), 1, alive=False, **seen)[1]) is kind, seen


def test_a_hang_is_no_step_for_twenty_usual_ones_but_never_less_than_the_limit() -> None:
    track, _ = looked(started(0, 5), 1, step=6, usual_s=0.1)
    assert looked(track, 10.9, step=6, usual_s=0.1)[1] is None
    assert kind_of(looked(track, 11.1, step=6, usual_s=0.1)[1]) is Kind.HUNG
    assert looked(track, 40, step=6, usual_s=2.0)[1] is None
    _, trouble = looked(track, 41.1, step=6, usual_s=2.0)
    assert trouble is not None
    assert trouble.reason == "no step and no growing checkpoint for 40 s; a step takes 2 s"


def test_a_checkpoint_that_grows_is_progress() -> None:
    track, _ = looked(started(0, 0), 1, step=1, usual_s=0.1, growth=10)
    for now in range(5, 100, 5):
        track, trouble = looked(track, now, step=1, usual_s=0.1, growth=10 + now)
        assert trouble is None


@pytest.mark.parametrize(
    "seen",
    [{"step": 7}, {"step": 7, "usual_s": 0.1}, {"step": 9, "usual_s": 0.1, "complete": True}],
    ids=["no step yet", "only steps of an earlier start", "the model is written"],
)
def test_loading_and_exporting_have_the_time_of_a_start(seen: dict[str, Any]) -> None:
    track, _ = looked(started(0, 7), 1, **seen)
    assert looked(track, 900, **seen)[1] is None
    assert kind_of(looked(track, 1002, **seen)[1]) is Kind.HUNG


def answer(track: Track, now: float = 1.0, **more: Any) -> tuple[Track, Action]:
    return respond(track, more.pop("trouble", DIED), now, LIMITS, **({"checkpoint": 0} | more))


def proven(now: float = 0.0) -> Track:
    return looked(started(now, 0), now + 1, step=1)[0]


def test_a_run_that_trained_is_started_again_until_its_budget_is_spent() -> None:
    track, actions, rests = proven(), [], []
    for now in (1.0, 2.0, 3.0):
        track, action = answer(track, now, checkpoint=int(now))
        actions.append(action)
        rests.append(rest_s(track, LIMITS, 1.0))
    assert actions == [Action.RESTART, Action.RESTART, Action.LEAVE]
    assert rests[:2] == [1.0, 2.0]


def test_failures_count_within_the_window_and_rest_shrinks_once_it_runs_well() -> None:
    track = proven()
    for now in (1.0, 110.0, 220.0, 330.0):
        track, action = answer(track, now, checkpoint=int(now))
        assert action is Action.RESTART
        track, _ = looked(started(now, int(now), track), now + 60, step=int(now) + 1)
        assert track.attempt == 0


def test_a_run_that_never_gets_to_a_new_checkpoint_is_left_however_seldom_it_fails() -> None:
    track = proven()
    for now, expected in ((1e3, Action.RESTART), (2e3, Action.RESTART), (3e3, Action.LEAVE)):
        track, action = answer(track, now, checkpoint=7)
        assert action is expected


def test_what_never_trained_is_tried_again_only_where_its_cause_passes() -> None:
    for more, action in (
        ({"lasting": True}, Action.LEAVE),
        ({"known": False}, Action.LEAVE),
        ({"known": True}, Action.RESTART),
    ):
        assert answer(started(0, 0), **more)[1] is action
        assert answer(proven(), **more)[1] is Action.RESTART


def test_ends_that_say_what_to_do() -> None:
    for kind, action in (
        (Kind.FINISHED, Action.END),
        (Kind.STOPPED, Action.END),
        (Kind.REFUSED, Action.STOP),
        (Kind.ROLLED_BACK, Action.RESTART),
    ):
        track = proven()
        assert answer(track, trouble=Trouble(kind, "")) == (track, action)


def test_a_machine_that_became_smaller_ends_a_choice_at_once() -> None:
    assert answer(proven(), misfit=True)[1] is Action.LEAVE


def test_waiting_for_devices_costs_the_budget_and_another_choice_starts_with_all_of_it() -> None:
    track, worth = waited(proven(), 1.0, LIMITS)
    assert worth
    track, worth = waited(track, 2.0, LIMITS)
    assert worth
    assert rest_s(track, LIMITS, 1.0) == 2.0
    track, worth = waited(track, 3.0, LIMITS)
    assert not worth
    fresh = forgiven(track)
    assert (fresh.failures, fresh.attempt, fresh.stuck, fresh.proven) == ((), 0, 0, False)
