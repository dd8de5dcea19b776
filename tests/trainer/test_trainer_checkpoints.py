"""Checkpoints that a disk damaged: seen before they are used, stepped over, never trained on."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.conftest import Job, needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]
pytest.importorskip("torch")

from recipe_core.trainer.damage import damage
from recipe_core.trainer.hf import checkpoints

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


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run of two processes that ended after three of its steps, two checkpoints kept."""
    job = Job(tmp_path_factory.mktemp("stopped") / "job", steps=3, **PARTS)
    done = job.run(2)
    assert done.returncode == 0, done.stderr
    return job


@pytest.fixture
def copied(stopped: Job, tmp_path: Path) -> tuple[Job, Path]:
    """The same run once more, to go on for two steps, and its checkpoints."""
    root = tmp_path / "job"
    shutil.copytree(stopped.root, root)
    shutil.rmtree(root / "trainer")
    job = Job(root, steps=5, **PARTS)
    return job, root / "run" / "checkpoints"


@pytest.mark.parametrize(
    ("name", "harm", "fault"),
    [
        ("__1_0.distcp", cut, "__1_0.distcp is cut short"),
        ("__0_0.distcp", flip, "__0_0.distcp differs from its check sums"),
        ("__1_0.distcp", Path.unlink, "__1_0.distcp: No such file or directory"),
        (".metadata", cut, ".metadata: pickle data was truncated"),
    ],
    ids=["cut", "bit", "missing", "metadata"],
)
def test_damage_is_seen_in_the_files(
    copied: tuple[Job, Path], name: str, harm: Callable[[Path], None], fault: str
) -> None:
    folder = copied[1] / "step-3"
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
    done = job.run(2)
    assert done.returncode == 0, done.stderr
    said = "step-3 is damaged (__1_0.distcp is cut short); it is now step-3.damaged, and step-2 is"
    assert done.stderr.count(said) == 1
    assert "resuming after step 2" in done.stderr
    assert job.losses()[:3] == stopped.losses()
    assert sorted(path.name for path in folder.iterdir()) == ["step-3.damaged", "step-4", "step-5"]


def test_a_run_does_not_start_anew_where_no_checkpoint_can_be_read(
    copied: tuple[Job, Path],
) -> None:
    job, folder = copied
    before = sorted(path.name for path in folder.iterdir())
    for step in (2, 3):
        cut(folder / f"step-{step}" / "__0_0.distcp")
    done = job.run(2)
    assert done.returncode != 0
    said = "step-3 cannot be read or does not fit this model (__0_0.distcp is cut short), nor can"
    assert said in done.stderr
    assert f"move {folder} away to start from step 0." in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == before


def test_transformers_checkpoints_that_were_cut_short_do_not_count(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
