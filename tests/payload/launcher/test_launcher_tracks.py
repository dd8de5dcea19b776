"""What is decided about servers and training runs from looks and times: no process, no clock."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.payload.launcher import health, run_probe, tracks
from recipe_core.payload.launcher.diagnosis import Diagnosis
from recipe_core.payload.launcher.health import Seen, Target, track_serving_group
from recipe_core.payload.launcher.limits import Supervision
from recipe_core.payload.launcher.run_probe import RunSeen, judge_run
from recipe_core.payload.launcher.tracks import Kind, Phase, Step, Trouble, track_start
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

ROWS = partial(table, "launcher_tracks")
LIMITS = Supervision(
    crash_budget=3, window_s=100, backoff_s=1, backoff_most_s=8, stable_s=50, hang_s=10, slow_s=20
)
SILENT, WELL = Seen(answers=False), Seen(tokens=0, running=0)
TARGET = Target(tpot_most_s=0.02, load_most=4, first_token_s=1.0)
DEATH = Trouble(Kind.DIED, "it ended")


def looks(track, seen, target=TARGET):
    """Judge one look after the other, up to the first trouble."""
    for at, look in seen:
        track, trouble = health.judge_group(track, look, at, LIMITS, target)
        if trouble is not None:
            return track, trouble
    return track, None


def test_a_start_is_ready_when_it_answers_or_late():
    track, trouble = looks(track_start(0, 30), [(5, SILENT), (6, WELL)])
    assert (trouble, track.phase, track.since) == (None, Phase.SERVING, 6)
    _, trouble = looks(track_start(0, 30), [(29, SILENT), (30, SILENT)])
    assert trouble == Trouble(Kind.LATE, "not ready after 30 s")


@over("code killed kind words", ROWS("ends"))
def test_an_end_is_trouble_in_every_phase(code, killed, kind, words):
    for track in (track_start(0, 30), track_serving_group(0)):
        seen = Seen(ended=("a",), codes=(code,), out_of_memory=killed)
        assert looks(track, [(1, seen)])[1] == Trouble(Kind(kind), words)


def test_a_hang_is_no_answer_for_long_and_often():
    track, trouble = looks(track_serving_group(0), [(at, SILENT) for at in (3, 6, 9)])
    assert trouble is None
    assert looks(track, [(10, SILENT)])[1] == Trouble(Kind.HUNG, "no answer for 10 s")
    assert looks(track, [(9.5, WELL), (10, SILENT), (18, SILENT)])[1] is None
    # Nor is a look after a long sleep, or one that asked nobody.
    track = track_serving_group(0)
    assert looks(track, [(5000, SILENT)])[1] is None
    assert looks(track, [(at, Seen(answers=None)) for at in range(100)]) == (track, None)


def test_requests_that_get_no_tokens_are_a_hang():
    def stuck(at, tokens=7):
        return at, Seen(tokens=tokens, running=2)

    track, trouble = looks(track_serving_group(0), [stuck(1), stuck(5), stuck(9)])
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
    assert looks(track_serving_group(0), paced(*[0.03] * 4))[1] == Trouble(Kind.SLOW, words)
    for seen, target in (
        (paced(*[0.03] * 3), TARGET),
        (paced(*[0.019] * 20), TARGET),
        (paced(*[0.03] * 20, load=5), TARGET),
        (paced(0.03, 0.01, 0.01, 0.01, 0.03), TARGET),
        (paced(*[0.03] * 20), Target()),
    ):
        assert looks(track_serving_group(0), seen, target)[1] is None


def test_slow_is_restarted_once_then_another_choice_or_left():
    slow = Trouble(Kind.SLOW, "slow")
    track, step = tracks.respond(track_serving_group(0), slow, 1, LIMITS)
    assert step is Step.RESTART
    again = track_serving_group(9, track_start(5, 30, track))
    assert tracks.respond(again, slow, 30, LIMITS)[1] is Step.LEAVE
    kept, step = tracks.respond(again, slow, 30, LIMITS, others_serve=True)
    assert step is Step.KEEP
    assert looks(kept, paced(*[0.03] * 9, start=40))[1] is None  # said once
    better, _ = looks(kept, paced(*[0.01] * 9, start=40))
    assert tracks.respond(better, slow, 99, LIMITS)[1] is Step.RESTART


def fail(track, *times, **how):
    """Failures of a service, each with a start afterwards, and what was done about each."""
    steps = []
    for at in times:
        track, step = tracks.respond(track, DEATH, at, LIMITS, **how)
        track = track_serving_group(at, track_start(at, 30, track))
        steps.append(step)
    return track, steps


def test_the_budget_is_for_a_window_and_stable_service_forgets():
    for others, last in ((False, Step.LEAVE), (True, Step.PARK)):
        _, steps = fail(track_serving_group(0), 1, 2, 3, 4, others_serve=others)
        assert steps == [Step.RESTART] * 3 + [last]
    assert fail(track_serving_group(0), 1, 40, 80, 120, 160)[1] == [Step.RESTART] * 5
    track, _ = looks(fail(track_serving_group(0), 1)[0], [(52, WELL)])
    assert (track.failures, track.attempt) == ((), 0)
    # Rests double up to the most.
    assert [tracks.backoff_s(n, LIMITS, 1.0) for n in range(6)] == [1, 2, 4, 8, 8, 8]
    assert tracks.backoff_s(3, LIMITS, 0.0) == 4
    # A parked group is tried again once its failures are old.
    track, _ = fail(track_serving_group(0), 1, 2, 3)
    parked, step = tracks.respond(track, DEATH, 4, LIMITS, others_serve=True)
    assert (step, parked.phase) == (Step.PARK, Phase.PARKED)
    assert (tracks.is_due(parked, 100), tracks.is_due(parked, 101)) == (False, True)
    assert (
        health.judge_group(parked, Seen(ended=("a",), codes=(None,)), 5, LIMITS, TARGET)[1] is None
    )


def test_a_lasting_cause_and_a_machine_that_is_too_small_burn_no_budget():
    at_start, serving = track_start(0, 30), track_serving_group(0)
    assert tracks.respond(at_start, DEATH, 1, LIMITS, lasting=True)[1] is Step.LEAVE
    parked, step = tracks.respond(at_start, DEATH, 1, LIMITS, lasting=True, others_serve=True)
    assert (step, parked.until) == (Step.PARK, float("inf"))
    # What has served was started with the right words: its log only looks like that.
    assert tracks.respond(serving, DEATH, 1, LIMITS, lasting=True)[1] is Step.RESTART
    assert tracks.respond(serving, DEATH, 1, LIMITS, misfit=True)[1] is Step.LEAVE


def test_which_groups_serve():
    for expected, roles in ROWS("serving"):
        assert tracks.serves(roles) is expected, roles


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
    now, track, restarts = 0.0, track_start(0, 30), []
    for passed, seen in sequence:
        now += passed
        if tracks.is_due(track, now):
            track = track_start(now, 30, track)
        track, trouble = health.judge_group(track, seen, now, LIMITS, TARGET)
        if trouble is None:
            continue
        track, step = tracks.respond(track, trouble, now, LIMITS, others_serve=True)
        if step is Step.RESTART:
            assert 0 < track.until - now <= LIMITS.backoff_most_s
            restarts = [at for at in restarts if now - at < LIMITS.window_s] + [now]
            if all(b - a < LIMITS.stable_s for a, b in pairwise(restarts)):
                assert len(restarts) <= LIMITS.crash_budget


# Training runs

OF_RUNS = Supervision(crash_budget=2, window_s=100, backoff_s=1, stable_s=50, hang_s=10)
BEGUN = track_start(0, 1000)
PROVEN = judge_run(BEGUN, RunSeen(alive=True, step=1), 1, OF_RUNS, 1000.0)[0]


def looked(track, now, **seen):
    """The track after a look, and the trouble; a start has a thousand seconds."""
    return judge_run(track, RunSeen(**({"alive": True} | seen)), now, OF_RUNS, 1000.0)


def kind_of(track, now, **seen):
    trouble = looked(track, now, **seen)[1]
    return trouble.kind.name if trouble else None


@over("kind seen", ROWS("training_ends"))
def test_an_end_is_told_by_codes_and_by_what_the_trainer_recorded(kind, seen):
    assert kind_of(BEGUN, 1, alive=False, **seen) == kind


def test_a_hang_is_no_step_for_twenty_usual_ones_but_never_less_than_the_limit():
    track, _ = looked(track_start(0, 1000, step=5), 1, step=6, usual_s=0.1)
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
    track, _ = looked(track_start(0, 1000, step=7), 1, **seen)
    assert (kind_of(track, 900, **seen), kind_of(track, 1002, **seen)) == (None, "HUNG")


def answer(track, now=1.0, kind=Kind.DIED, **more):
    """Respond to a run's end; its rests are as long as they may be."""
    trouble = Trouble(kind, "ended with exit code 1")
    more = {"checkpoint": 0, "jitter": 1.0} | more
    return tracks.respond(track, trouble, now, OF_RUNS, **more)


def again(track, now, step):
    """The track of a run that is started once more, and has made a step."""
    started = track_start(now, 1000, track, step=step)
    return looked(replace(started, proven=track.proven), now, step=step + 1)[0]


def test_a_run_that_trained_is_started_again_until_its_budget_is_spent():
    track, steps, rests = PROVEN, [], []
    for now in (1, 2, 3):
        track, step = answer(track, now, checkpoint=now)
        steps.append(step)
        rests.append(track.until - now)
        track = again(track, now, now)
    assert steps == [Step.RESTART, Step.RESTART, Step.LEAVE]
    assert rests[:2] == [1.0, 2.0]
    # Failures count within the window, and the rest shrinks once it runs well.
    track = PROVEN
    for now in (1, 110, 220, 330):
        track, step = answer(track, now, checkpoint=now)
        assert step is Step.RESTART
        track, _ = looked(again(track, now, now), now + 60, step=now + 2)
        assert track.attempt == 0
    # One that never gets to a new checkpoint is left however seldom it fails.
    track = PROVEN
    for now, expected in ((1e3, Step.RESTART), (2e3, Step.RESTART), (3e3, Step.LEAVE)):
        track, step = answer(track, now, checkpoint=7)
        assert step is expected


def test_what_never_trained_is_tried_again_only_where_its_cause_passes():
    for lasting, step in ((True, Step.LEAVE), (False, Step.RESTART)):
        assert answer(BEGUN, lasting=lasting)[1] is step
        assert answer(PROVEN, lasting=lasting)[1] is Step.RESTART
    for cause, transient, lasting in ROWS("lasting"):
        diagnosis = Diagnosis(cause, "", (), "", transient, device=False)
        assert run_probe.RunProbe.is_lasting(None, diagnosis) is lasting
    # A machine that became smaller ends a choice at once.
    assert answer(PROVEN, misfit=True)[1] is Step.LEAVE


def test_ends_that_say_what_to_do():
    for kind, step in (("FINISHED", "END"), ("STOPPED", "END"), ("REFUSED", "STOP")):
        assert answer(PROVEN, kind=Kind[kind]) == (PROVEN, Step[step])
    track, step = answer(PROVEN, kind=Kind.ROLLED_BACK)  # it costs nothing of the budget
    assert (step, track.failures, track.attempt, track.until) == (Step.RESTART, (), 0, 2.0)
