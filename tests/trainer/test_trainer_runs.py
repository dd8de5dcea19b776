"""Real torchrun jobs on gloo: however the model is split, the losses are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import CONFIG, Job, needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]


@pytest.mark.parametrize(
    ("split", "more"),
    [
        ({"dp": 2, "shard": 2, "zero_stage": 3}, {"recompute": "full"}),
        ({"tp": 2, "sequence_parallel": True}, {"recompute": "selective"}),
        ({"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 2}, {}),
    ],
    ids=["fsdp", "tensor-parallel", "pipeline"],
)
def test_a_split_run_has_the_losses_of_a_whole_one(whole: Job, tmp_path: Path, split: dict[str, Any], more: dict[str, Any]) -> None:
    job = Job(tmp_path / "job", split=split, **more)
    done = job.run(2)
    assert done.returncode == 0, done.stderr
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)
    assert whole.losses()[-1] < whole.losses()[0] - 0.3


def test_a_stopped_run_goes_on_with_the_same_losses_on_another_number_of_devices(whole: Job, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", split={"dp": 2, "shard": 2, "zero_stage": 2}, elastic=True)
    job.run_folder.mkdir()
    (job.run_folder / "stop").touch()
    stopped = job.run(2)
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped after step 1 of 4" in stopped.stderr
    assert len(job.losses()) == 1
    done = job.run(1)
    assert done.returncode == 0, done.stderr
    assert "going on after step 1" in done.stderr
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)


def test_the_model_that_comes_out_is_one_that_transformers_loads(whole: Job) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = whole.run_folder / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Bread number 12 needs 5 eggs and 2 hours.\n", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert loss == pytest.approx(whole.losses()[-1], abs=0.7)  # an untrained model's is ln 512 = 6.2
    assert model.config.vocab_size == CONFIG["vocab_size"]
    assert sorted(path.name for path in (whole.run_folder / "checkpoints").iterdir()) == ["step-4"]


def test_fine_tuning_starts_where_the_weights_are(whole: Job, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", model={"weights": "pretrained", "tokenizer": "model"}, split={"tp": 2}, steps=1)
    done = job.run(2, "--model", str(whole.run_folder / "model"))
    assert done.returncode == 0, done.stderr
    assert job.losses()[0] < whole.losses()[-1] + 0.1


def test_what_a_person_must_change_is_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", split={"tp": 2, "dp": 2})
    done = job.run(1)
    assert done.returncode != 0
    assert "train: tp(2) × pp(1) × dp(2) = 4 ≠ 1 processes. Start 4 processes." in done.stderr
