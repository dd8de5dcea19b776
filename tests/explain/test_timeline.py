"""The timetable of a pipeline against what is known of its schedules."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.explain.timeline import best_with_pipeline, step_timeline, timeline
from recipe_core.physics.training.schedule import bubble_micro_batches
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.search.plans import plan
from tests.fixtures.sizes import examples

SCHEDULES = st.sampled_from(["1f1b", "gpipe", "interleaved"])


@settings(deadline=None, max_examples=examples(60))
@given(SCHEDULES, st.integers(2, 8), st.integers(1, 4), st.integers(2, 4))
def test_a_step_takes_its_micro_batches_and_the_bubble(
    schedule: str, stages: int, groups: int, chunks: int
) -> None:
    chunks = chunks if schedule == "interleaved" else 1
    micro_batches = stages * groups
    tasks = timeline(schedule, stages, micro_batches, 1.0, 2.0, chunks)
    assert len(tasks) == 2 * stages * micro_batches * chunks
    end_s = 3.0 * (micro_batches + (stages - 1) / chunks)
    assert max(task.end_s for task in tasks) == pytest.approx(end_s)


@settings(deadline=None, max_examples=examples(30))
@given(SCHEDULES, st.integers(2, 6), st.integers(1, 3))
def test_no_stage_does_two_things_at_once_and_nothing_runs_too_early(
    schedule: str, stages: int, groups: int
) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    tasks = timeline(schedule, stages, stages * groups, 1.0, 2.0, chunks)
    for before, after in itertools.pairwise(tasks):
        assert before.stage != after.stage or before.end_s <= after.start_s + 1e-9
    place = {(t.stage, t.chunk, t.micro_batch, t.backward): t for t in tasks}
    for (stage, chunk, m, backward), task in place.items():
        if backward:
            assert task.start_s >= place[stage, chunk, m, False].end_s - 1e-9
        elif stage:
            assert task.start_s >= place[stage - 1, chunk, m, False].end_s - 1e-9


def test_1f1b_holds_as_many_micro_batches_as_there_are_stages_and_zb_v_is_not_drawn() -> None:
    tasks = [task for task in timeline("1f1b", 4, 16, 1.0, 2.0) if task.stage == 0]
    assert max(itertools.accumulate(-1 if task.backward else 1 for task in tasks)) == 4
    with pytest.raises(InputError, match="zb-v"):
        timeline("zb-v", 4, 8, 1.0, 2.0)
    with pytest.raises(InputError, match="do not fill"):
        timeline("interleaved", 4, 6, 1.0, 2.0, 2)


def test_a_row_is_drawn_with_its_own_bubble() -> None:
    large = {"model": "meta-llama/Llama-3.1-70B-Instruct", "hardware.nodes": 4}
    board = plan(change(DEFAULT, large | {"workload.kind": "training"}))
    deep, alone = (
        next(int(row) for row in board.order if board.degree("pp")[row] == pp) for pp in (4, 1)
    )
    tasks, note = step_timeline(board, deep)
    block, i = board.at(deep)
    micro_batches = len({task.micro_batch for task in tasks})
    bubble = bubble_micro_batches(block.cases.take([i]))[0]
    each = max(task.end_s for task in tasks) / (micro_batches + bubble)
    first = [task for task in tasks if task.stage == 0 and task.micro_batch == 0]
    assert sum(task.end_s - task.start_s for task in first) == pytest.approx(each)
    assert "micro-batches" in note
    best = best_with_pipeline(board)
    assert board.degree("pp")[best] > 1
    assert board.feasible[best]
    with pytest.raises(InputError, match="no pipeline"):
        step_timeline(board, alone)
