"""Real torchrun jobs on gloo: however the model is split, the losses are those of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import CONFIG, Job, needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]

TENSOR = {"split": {"tp": 2, "sequence_parallel": True}, "recompute": "selective"}
PIPELINE = {"split": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 2}}
SHARDED = {"split": {"dp": 2, "shard": 2, "zero_stage": 3}, "recompute": "full"}
PRETRAINED = {"model": {"weights": "pretrained", "tokenizer": "model"}}
LORA: dict[str, Any] = PRETRAINED | {"lora": {"rank": 4, "alpha": 8, "targets": "all"}}


def test_a_run_of_two_processes_has_the_losses_of_one(whole: Job, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", **SHARDED)
    job.finish(2)
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)
    assert whole.losses()[-1] < whole.losses()[0] - 0.3


@pytest.mark.nightly
def test_a_model_that_is_cut_has_the_losses_of_a_whole_one(whole: Job, tmp_path: Path) -> None:
    jobs = [Job(tmp_path / name, **parts) for name, parts in (("tp", TENSOR), ("pp", PIPELINE))]
    Job.run_several(jobs, 2)
    for job in jobs:
        assert job.losses() == pytest.approx(whole.losses(), abs=2e-5), job.root.name


def test_the_model_that_comes_out_is_one_that_transformers_loads(whole: Job) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = whole.run_folder / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Bread number 12 needs 5 eggs and 2 hours.\n", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert loss == pytest.approx(whole.losses()[-1], abs=0.7)  # untrained: ln 512 = 6.2
    assert model.config.vocab_size == CONFIG["vocab_size"]
    assert whole.checkpoints() == ["step-4"]


@pytest.mark.nightly
def test_fine_tuning_starts_where_the_weights_are(whole: Job, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", **PRETRAINED, split={"tp": 2}, steps=1)
    job.finish(2, "--model", str(whole.run_folder / "model"))
    assert job.losses()[0] < whole.losses()[-1] + 0.1


@pytest.mark.nightly
def test_what_a_person_must_change_is_one_line(tmp_path: Path) -> None:
    for name, parts, words in (
        ("split", {"split": {"tp": 2, "dp": 2}}, "tp(2) × pp(1) × dp(2) = 4 ≠ 1 processes."),
        ("lora", {"lora": {"rank": 4, "alpha": 8}}, "adapters need the weights of a model,"),
    ):
        assert f"train: {words}" in Job(tmp_path / name, **parts).fail(1), name


@pytest.fixture(scope="module")
def adapters(whole: Job, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Adapters trained by one process, beside the weights of another run."""
    job = Job(tmp_path_factory.mktemp("adapters") / "job", **LORA)
    job.finish(1, "--model", str(whole.run_folder / "model"))
    return job


@pytest.mark.nightly
def test_adapters_learn_the_same_however_the_model_is_split(
    whole: Job, adapters: Job, tmp_path: Path
) -> None:
    splits = (("tp", TENSOR), ("pp", PIPELINE))
    jobs = [Job(tmp_path / name, **LORA, **parts) for name, parts in splits]
    Job.run_several(jobs, 2, "--model", str(whole.run_folder / "model"))
    for job in jobs:
        assert job.losses() == pytest.approx(adapters.losses(), abs=2e-5), job.root.name


@pytest.mark.nightly
def test_adapters_come_out_alone_and_merged(whole: Job, adapters: Job) -> None:
    """peft's names and shapes; the merged model is the base with scale · B A added, no more."""
    import torch
    from safetensors.torch import load_file

    base, merged = (
        load_file(job.run_folder / "model" / "model.safetensors") for job in (whole, adapters)
    )
    thin = load_file(adapters.run_folder / "adapter" / "adapter_model.safetensors")
    config = json.loads((adapters.run_folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    names = ("q", "k", "v", "o", "gate", "up", "down")
    assert set(config["target_modules"]) == {f"{name}_proj" for name in names}
    changed = 0
    for name, weight in base.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{layer}.lora_A.weight" not in thin:
            assert torch.equal(weight, merged[name])
            continue
        first, second = (thin.pop(f"{layer}.lora_{which}.weight") for which in "AB")
        assert torch.allclose(merged[name], weight + 8 / 4 * second @ first, atol=1e-6)
        changed += not torch.equal(weight, merged[name])
    assert (changed, thin) == (4 * 7, {})


@pytest.mark.nightly
def test_checkpoints_of_adapters_hold_nothing_else_and_are_gone_on_from(
    whole: Job, adapters: Job, tmp_path: Path
) -> None:
    def size(job: Job, step: int) -> int:
        folder = job.run_folder / "checkpoints" / f"step-{step}"
        return sum(file.stat().st_size for file in folder.iterdir())

    job = Job(tmp_path / "job", **SHARDED, elastic=True, **LORA)
    words = ("--model", str(whole.run_folder / "model"))
    job.ask_to_stop()
    assert "stopped after step 1 of 4" in job.finish(2, *words)
    assert size(job, 1) < 0.5 * size(whole, 4)
    assert "resuming after step 1" in job.finish(1, *words)
    assert job.losses() == pytest.approx(adapters.losses(), abs=2e-5)
