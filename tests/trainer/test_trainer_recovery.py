"""Real torchrun jobs whose loss breaks, whose checkpoints are damaged, or that are split anew."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Job, needs_torch

pytestmark = [pytest.mark.torchrun, pytest.mark.nightly, needs_torch]
pytest.importorskip("torch")

from recipe_core.trainer.damage import damage
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
HF_POISON = '''
from trainer.guard import Watch

judge = Watch.see


def poisoned(self, step, loss, norm):
    """The third step of the first start has no loss."""
    first = not os.path.exists(os.path.join(HERE, "run", "rollbacks.json"))
    return judge(self, step, float("nan") if first and step == 3 else loss, norm)


Watch.see = poisoned

'''


def poison(job: Job, steps: list[int], change: str, *, always: bool = False) -> None:
    """Break the loss in these steps of a start."""
    job.patch_script(POISON.format(steps=steps, change=change, always=always))


def end(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.run_folder / "end.json").read_text()))


def test_a_loss_that_is_no_number_is_rolled_back_and_its_batch_left_out(
    whole: Job, tmp_path: Path
) -> None:
    split = {"dp": 2, "shard": 2, "zero_stage": 3}
    job = Job(tmp_path / "job", split=split, checkpoints={"every_steps": 1})
    poison(job, [3], "* float('nan')")
    broken = "the loss of step 3 is not a number; the next start goes on from step 2"
    assert job.fail(2).count(f"train: {broken} and leaves out batches 2 to 2.") == 1
    assert end(job)["code"] == 3
    assert "resuming after step 2" in job.finish(2)
    losses = job.losses()
    assert len(losses) == 4
    assert losses[:2] == pytest.approx(whole.losses()[:2], abs=2e-5)
    assert losses[2] != pytest.approx(whole.losses()[2], abs=2e-5)
    assert (job.run_folder / "model").is_dir()


def test_a_spike_is_not_saved_and_goes_back_before_its_first_step(tmp_path: Path) -> None:
    guard = {"window": 10, "patience": 2}
    job = Job(tmp_path / "job", steps=16, guard=guard, checkpoints={"every_steps": 1})
    poison(job, [13, 14], "+ 50")
    assert "the loss of steps 13 to 14 is a spike" in job.fail(1)
    assert job.checkpoints() == ["step-11", "step-12"]
    assert "resuming after step 12" in job.finish(1)
    assert len(job.losses()) == 16


def test_a_run_that_breaks_at_every_start_gives_up_with_what_to_change(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", guard={"rollbacks": 1})
    poison(job, [2], "* float('nan')", always=True)
    for code in (3, 2, 2):
        job.fail(1)
        assert end(job)["code"] == code
    assert "after 1 rollbacks that did not help. Lower learning_rate" in end(job)["message"]


def test_a_stopped_run_goes_on_with_the_same_losses_on_other_devices_or_another_split(
    whole: Job, tmp_path: Path
) -> None:
    """Replicas change the share of each, and micro-batches how often gradients are added up."""
    elastic = Job(tmp_path / "dp", split={"dp": 2, "shard": 2, "zero_stage": 2}, elastic=True)
    tensors = Job(tmp_path / "tp", split={"tp": 2, "sequence_parallel": True})
    pipeline = Job(tmp_path / "pp", split={"pp": 2, "zero_stage": 2})
    jobs = [elastic, tensors, pipeline]
    for job in jobs:
        job.ask_to_stop()
    assert Job.run_several(jobs, 2).count("stopped after step 1 of 4") == 3
    assert [len(job.losses()) for job in jobs] == [1, 1, 1]
    tensors.write(split={})
    pipeline.write(split={"dp": 2, "shard": 2, "zero_stage": 3})
    resumed = Job.run_several([elastic, tensors], 1) + pipeline.finish(2)
    assert resumed.count("resuming after step 1") == 3
    for job in jobs:
        assert job.losses() == pytest.approx(whole.losses(), abs=2e-5), job.root.name


def test_transformers_trainer_goes_back_and_stops_with_a_checkpoint_on_request(
    tmp_path: Path,
) -> None:
    pytest.importorskip("accelerate")
    job = Job(tmp_path / "job", checkpoints={"every_steps": 1})
    job.patch_script(HF_POISON, "hf")
    broken = "the loss of step 3 is not a number; the next start goes on from step 2"
    assert broken in job.fail(1)
    assert end(job)["code"] == 3
    job.ask_to_stop()
    job.finish(1)
    assert [path.name for path in checkpoints(job.run_folder / "checkpoints")][-1] == "checkpoint-3"
    assert not (job.run_folder / "stop").exists()
    assert len(job.losses()) == 3
    job.finish(1)
    assert len(job.losses()) == 4
    assert (job.run_folder / "model" / "config.json").is_file()


SPLIT = {"dp": 2, "shard": 2, "zero_stage": 2}
PARTS = {"split": SPLIT, "checkpoints": {"every_steps": 1, "keep": 2}}


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    """One bit in the largest run of a file's own bytes: the middle of a tensor."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARMS = {
    "__1_0.distcp is cut short": ("__1_0.distcp", cut),
    "__0_0.distcp differs from its check sums": ("__0_0.distcp", flip),
    "__1_0.distcp: No such file or directory": ("__1_0.distcp", Path.unlink),
    ".metadata: pickle data was truncated": (".metadata", cut),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run of two processes that ended after three of its steps, two checkpoints kept."""
    job = Job(tmp_path_factory.mktemp("stopped") / "job", steps=3, **PARTS)
    job.finish(2)
    return job


@pytest.fixture
def copied(stopped: Job, tmp_path: Path) -> tuple[Job, Path]:
    """The same run once more, to go on for two steps, and its checkpoints."""
    root = tmp_path / "job"
    shutil.copytree(stopped.root, root)
    shutil.rmtree(root / "trainer")
    return Job(root, steps=5, **PARTS), root / "run" / "checkpoints"


def test_damage_is_seen_in_the_files(stopped: Job, tmp_path: Path) -> None:
    for fault, (name, harm) in HARMS.items():
        folder = tmp_path / fault
        shutil.copytree(stopped.run_folder / "checkpoints" / "step-3", folder)
        assert damage(folder, 0, 1) is None
        harm(folder / name)
        assert damage(folder, 0, 1) == fault
        assert fault in [damage(folder, rank, 2) for rank in range(2)]


def test_a_damaged_newest_one_is_stepped_over_by_all_ranks(
    stopped: Job, copied: tuple[Job, Path]
) -> None:
    """Only one rank's file is damaged; the step is written again, and the damaged one is kept."""
    job, folder = copied
    cut(folder / "step-3" / "__1_0.distcp")
    shown = job.finish(2)
    damaged = "step-3 is damaged (__1_0.distcp is cut short); it is now step-3.damaged, and step-2"
    assert shown.count(damaged) == 1
    assert "resuming after step 2" in shown
    assert job.losses()[:3] == stopped.losses()
    assert job.checkpoints() == ["step-3.damaged", "step-4", "step-5"]


def test_a_run_does_not_start_anew_where_no_checkpoint_can_be_read(
    copied: tuple[Job, Path],
) -> None:
    job, folder = copied
    before = job.checkpoints()
    for step in (2, 3):
        cut(folder / f"step-{step}" / "__0_0.distcp")
    shown = job.fail(2)
    unread = "step-3 cannot be read or does not fit this model (__0_0.distcp is cut short), nor can"
    assert unread in shown
    assert f"move {folder} away to start from step 0." in shown
    assert job.checkpoints() == before


def test_transformers_checkpoints_that_were_cut_short_do_not_count(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
