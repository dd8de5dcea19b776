"""Real torchrun jobs on gloo whose loss breaks, or that go on with another split of the model."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launch.entry import train_py
from tests.trainer.conftest import Job, needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]
pytest.importorskip("torch")

from recipe_core.trainer.hf import checkpoints

POISON = '''
import os
from trainer.steps import Passes

clean, calls, rank = Passes.run, [], os.environ["RANK"]


def poisoned(self, batches, learned):
    """Passes whose loss is broken on the last rank, in so many calls of the first start."""
    loss = clean(self, batches, learned)
    calls.append(None)
    first = not os.path.exists(os.path.join(HERE, "run", "rollbacks.json")) or {always}
    if first and rank == str(int(os.environ["WORLD_SIZE"]) - 1) and len(calls) in {steps}:
        loss = loss {change}
    return loss


Passes.run = poisoned

'''


def poison(job: Job, steps: list[int], change: str, *, always: bool = False) -> None:
    """Break the loss in these steps of a start."""
    script = job.root / "train.py"
    text = POISON.format(steps=steps, change=change, always=always)
    main = 'if __name__ == "__main__":'
    script.write_text(script.read_text().replace(main, text + main))


def end(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.run_folder / "end.json").read_text()))


def test_a_loss_that_is_no_number_is_rolled_back_and_its_batch_left_out(
    whole: Job, tmp_path: Path
) -> None:
    split = {"dp": 2, "shard": 2, "zero_stage": 3}
    job = Job(tmp_path / "job", split=split, checkpoints={"every_steps": 1})
    poison(job, [3], "* float('nan')")
    broken = job.run(2)
    assert broken.returncode != 0
    said = "the loss of step 3 is not a number; the next start goes on from step 2"
    assert broken.stderr.count(f"train: {said} and leaves out batches 2 to 2.") == 1
    assert end(job)["code"] == 3
    done = job.run(2)
    assert done.returncode == 0, done.stderr
    assert "resuming after step 2" in done.stderr
    losses = job.losses()
    assert len(losses) == 4
    assert losses[:2] == pytest.approx(whole.losses()[:2], abs=2e-5)
    assert losses[2] != pytest.approx(whole.losses()[2], abs=2e-5)
    assert (job.run_folder / "model").is_dir()


def test_a_spike_is_not_saved_and_goes_back_before_its_first_step(tmp_path: Path) -> None:
    guard = {"window": 10, "patience": 2}
    job = Job(tmp_path / "job", steps=16, guard=guard, checkpoints={"every_steps": 1})
    poison(job, [13, 14], "+ 50")
    broken = job.run(1)
    assert broken.returncode != 0
    assert "the loss of steps 13 to 14 is a spike" in broken.stderr
    names = [path.name for path in (job.run_folder / "checkpoints").iterdir()]
    assert sorted(names) == ["step-11", "step-12"]
    done = job.run(1)
    assert done.returncode == 0, done.stderr
    assert "resuming after step 12" in done.stderr
    assert len(job.losses()) == 16


def test_a_run_that_breaks_at_every_start_gives_up_with_what_to_change(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", guard={"rollbacks": 1})
    poison(job, [2], "* float('nan')", always=True)
    for code in (3, 2, 2):
        assert job.run(1).returncode != 0
        assert end(job)["code"] == code
    assert "after 1 rollbacks that did not help. Lower learning_rate" in end(job)["message"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"tp": 2, "sequence_parallel": True}, {}),
        ({"pp": 2, "zero_stage": 2}, {"dp": 2, "shard": 2, "zero_stage": 3}),
    ],
    ids=["tensor-parallel to one device", "pipeline to replicas"],
)
def test_another_split_of_the_model_goes_on_with_the_same_losses(
    whole: Job, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Replicas change the share of each, and micro-batches how often gradients are added up."""
    job = Job(tmp_path / "job", split=before)
    job.run_folder.mkdir()
    (job.run_folder / "stop").touch()
    stopped = job.run(2)
    assert "stopped after step 1 of 4" in stopped.stderr
    job.write(split=after)
    done = job.run(after.get("dp", 1))
    assert done.returncode == 0, done.stderr
    assert "resuming after step 1" in done.stderr
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)


HF_POISON = '''
from trainer.guard import Watch

judge = Watch.see


def poisoned(self, step, loss, norm):
    """The third step of the first start has no loss."""
    first = not os.path.exists(os.path.join(HERE, "run", "rollbacks.json"))
    return judge(self, step, float("nan") if first and step == 3 else loss, norm)


Watch.see = poisoned

'''


def test_transformers_trainer_goes_back_and_stops_with_a_checkpoint_on_request(
    tmp_path: Path,
) -> None:
    pytest.importorskip("accelerate")
    job = Job(tmp_path / "job", checkpoints={"every_steps": 1})
    main = 'if __name__ == "__main__":'
    (job.root / "train.py").write_text(train_py("train.py", "hf").replace(main, HF_POISON + main))
    broken = job.run(1)
    assert broken.returncode != 0
    assert "the loss of step 3 is not a number; the next start goes on from step 2" in broken.stderr
    assert end(job)["code"] == 3
    (job.run_folder / "stop").touch()
    stopped = job.run(1)
    assert stopped.returncode == 0, stopped.stderr
    assert [path.name for path in checkpoints(job.run_folder / "checkpoints")][-1] == "checkpoint-3"
    assert not (job.run_folder / "stop").exists()
    assert len(job.losses()) == 3
    done = job.run(1)
    assert done.returncode == 0, done.stderr
    assert len(job.losses()) == 4
    assert (job.run_folder / "model" / "config.json").is_file()
