"""Losses that break: what is judged one, which batches are left out, when a run gives up."""

import json
import math
import random
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_core.payload.trainer.errors import RolledBackError, TrainError
from recipe_core.payload.trainer.rollbacks import (
    BROKEN,
    CALM,
    END_FILE,
    FILE,
    SUSPICIOUS,
    Event,
    Record,
    Skips,
    Watch,
    read_record,
    remove_left,
    roll_back,
    tell_end,
)
from recipe_core.payload.trainer.settings import SPIKES, Guard, load_settings
from tests.fixtures.sizes import examples
from tests.payload.trainer.conftest import settings

GUARD = Guard(window=20, patience=3)
SPIKE = Event("spike", 12, 14, 9.0, 4.0)


def verdicts(watch, losses, norm=1.0):
    return [watch.see(step, loss, norm) for step, loss in enumerate(losses, 1)]


def test_what_is_no_number_stops_the_run_at_once_and_gradients_in_a_row():
    watch = Watch(GUARD)
    assert verdicts(watch, [5.0, 4.0, math.inf]) == [CALM, CALM, BROKEN]
    assert str(watch.event) == "the loss of step 3 is not a number"
    watch = Watch(GUARD)
    assert verdicts(watch, [4.0] * 3, math.nan) == [CALM, CALM, BROKEN]
    assert str(watch.event) == "the gradients of steps 1 to 3 are not finite"
    scaled = Watch(GUARD, scaled=True)  # under a loss scale, longer
    assert BROKEN not in verdicts(scaled, [4.0] * 19, math.inf)
    assert scaled.see(20, 4.0, math.inf) == BROKEN


def test_a_spike_is_several_high_losses_in_a_row_and_one_alone_is_none():
    chance = random.Random(1)
    usual = [4 + chance.gauss(0, 0.05) for _ in range(20)]
    watch = Watch(GUARD)
    assert verdicts(watch, [*usual, 9.0, 9.0, 4.0, 9.0]) == [*[CALM] * 20, 1, 1, CALM, SUSPICIOUS]
    assert watch.event is None
    watch = Watch(GUARD, usual)
    assert [watch.see(step, 9.0, 1.0) for step in (21, 22, 23)] == [SUSPICIOUS, SUSPICIOUS, BROKEN]
    assert (watch.event.kind, watch.event.first, watch.event.last) == ("spike", 21, 23)
    assert "the loss of steps 21 to 23 is a spike (9.0000 after " in str(watch.event)
    # a level far above is found whatever the noise
    for seed in range(50):
        chance = random.Random(seed)
        usual = [3 + chance.gauss(0, 0.1) for _ in range(100)]
        watch = Watch(Guard(), usual)
        assert [watch.see(n, 6 + chance.gauss(0, 0.1), 1.0) for n in range(1, 6)][-1] == BROKEN


@hypothesis.settings(max_examples=examples(200), deadline=None)
@given(st.integers(), st.floats(0.0, 0.3), st.floats(1.0, 200.0))
def test_no_ordinary_curve_is_a_spike(seed, noise, pace):
    """A falling loss with normal noise, from 11 to 2 nats, however noisy or quick."""
    chance = random.Random(seed)
    losses = [2 + 9 * math.exp(-n / pace) * (1 + chance.gauss(0, noise / 3)) for n in range(300)]
    assert BROKEN not in verdicts(Watch(Guard()), losses)


def test_losses_are_not_judged_where_the_person_says_so(tmp_path, monkeypatch):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(settings(guard={"patience": 2})))
    assert load_settings(path).guard == Guard(patience=2)
    monkeypatch.setenv(SPIKES, "ignore")
    watch = Watch(load_settings(path).guard)
    assert BROKEN not in verdicts(watch, [*[4.0] * 30, *[50.0] * 30])
    assert watch.see(61, math.nan, 1.0) == BROKEN
    path.write_text(json.dumps(settings(guard={"patience": 0})))
    with pytest.raises(TrainError, match="window and patience must be at least 1"):
        load_settings(path)


@hypothesis.settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=5))
def test_steps_take_every_batch_that_is_not_left_out_once_and_in_order(stretches):
    skips = Skips([(start, start + length) for start, length in stretches])
    left_out = {batch for start, length in stretches for batch in range(start, start + length)}
    kept = [batch for batch in range(60 + len(left_out)) if batch not in left_out]
    assert [skips.batch(step) for step in range(60)] == kept[:60]


def checkpoints(folder, *steps):
    paths = [(step, folder / f"step-{step}") for step in steps]
    for _, path in paths:
        path.mkdir(parents=True)
    return paths


def test_a_rollback_goes_before_the_event_and_leaves_its_batches_out(tmp_path):
    folder = tmp_path / "checkpoints"
    paths = checkpoints(folder, 5, 10, 13)
    end = roll_back(tmp_path, SPIKE, paths, paths, Guard())
    assert isinstance(end, RolledBackError)
    assert str(end) == (
        "the loss of steps 12 to 14 is a spike (9.0000 after 4.0000);"
        " the next start goes on from step 10 and leaves out batches 10 to 13."
    )
    left = {path.name for path in folder.iterdir()}
    assert left == {"rolled-back-step-13", "step-10", "step-5"}
    record = read_record(tmp_path)
    assert [record.skips.batch(step) for step in (9, 10, 11)] == [9, 14, 15]
    remove_left(folder)
    assert len(list(folder.iterdir())) == 2


def test_the_same_place_again_goes_further_back_and_at_last_gives_up(tmp_path):
    paths, guard = checkpoints(tmp_path, 5, 10), Guard(rollbacks=2)
    for _ in range(2):
        roll_back(tmp_path, SPIKE, paths, paths, guard)
    assert [rollback.checkpoint for rollback in read_record(tmp_path).rollbacks] == [10, 5]
    end = roll_back(tmp_path, SPIKE, paths[:1], paths[:1], guard)
    assert not isinstance(end, RolledBackError)
    assert "is a spike (9.0000 after 4.0000), after 2 rollbacks that did not help." in str(end)
    assert f"remove {tmp_path / FILE}." in str(end)
    with pytest.raises(TrainError, match="after 2 rollbacks"):
        read_record(tmp_path).check(2)


def test_rollbacks_far_apart_do_not_add_up_and_leave_out_at_most_a_hundred_batches(tmp_path):
    record = Record(tmp_path / FILE, ())
    for first in (20, 220, 420, 620, 820):
        event = Event("spike", first, first + 4, 9.0, 4.0)
        record, _ = record.roll_back(event, range(0, first, 10))
        assert record.in_a_row == 1
    record.write()
    assert read_record(tmp_path).rollbacks == record.rollbacks
    event = Event("nan", 1500, 1500, None, 4.0)
    record, rollback = Record(Path(FILE), ()).roll_back(event, [1000])
    assert (rollback.checkpoint, rollback.skipped) == (1000, (1399, 1500))
    assert record.roll_back(event, [1000])[1].skipped == (1500, 1601)


def test_a_damaged_record_stops_the_run_and_the_end_is_told_beside_it(tmp_path):
    wrong = [json.dumps({"rollbacks": [{"first": first}]}) for first in (-1, "1")]
    for record in ("", "[]", *wrong, "[" * 9**5):
        (tmp_path / FILE).write_text(record)
        with pytest.raises(TrainError, match=r"rollbacks\.json cannot be read .* remove it"):
            read_record(tmp_path)
    tell_end(tmp_path / "run", RolledBackError("the loss broke."))
    end = json.loads((tmp_path / "run" / END_FILE).read_text())
    assert end == {"schema_version": 1, "code": 3, "message": "the loss broke."}
    (tmp_path / "file").touch()
    tell_end(tmp_path / "file" / "run", TrainError("no disk."))
