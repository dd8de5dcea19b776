"""Real torchrun jobs on gloo: however the model is split, the losses are those of one process."""

from __future__ import annotations

import json
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
def test_a_split_run_has_the_losses_of_a_whole_one(
    whole: Job, tmp_path: Path, split: dict[str, Any], more: dict[str, Any]
) -> None:
    job = Job(tmp_path / "job", split=split, **more)
    done = job.run(2)
    assert done.returncode == 0, done.stderr
    assert job.losses() == pytest.approx(whole.losses(), abs=2e-5)
    assert whole.losses()[-1] < whole.losses()[0] - 0.3


def test_a_stopped_run_goes_on_with_the_same_losses_on_another_number_of_devices(
    whole: Job, tmp_path: Path
) -> None:
    job = Job(tmp_path / "job", split={"dp": 2, "shard": 2, "zero_stage": 2}, elastic=True)
    job.run_folder.mkdir()
    (job.run_folder / "stop").touch()
    stopped = job.run(2)
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped after step 1 of 4" in stopped.stderr
    assert len(job.losses()) == 1
    done = job.run(1)
    assert done.returncode == 0, done.stderr
    assert "resuming after step 1" in done.stderr
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
    assert loss == pytest.approx(
        whole.losses()[-1], abs=0.7
    )  # an untrained model's is ln 512 = 6.2
    assert model.config.vocab_size == CONFIG["vocab_size"]
    assert sorted(path.name for path in (whole.run_folder / "checkpoints").iterdir()) == ["step-4"]


def test_fine_tuning_starts_where_the_weights_are(whole: Job, tmp_path: Path) -> None:
    job = Job(
        tmp_path / "job",
        model={"weights": "pretrained", "tokenizer": "model"},
        split={"tp": 2},
        steps=1,
    )
    done = job.run(2, "--model", str(whole.run_folder / "model"))
    assert done.returncode == 0, done.stderr
    assert job.losses()[0] < whole.losses()[-1] + 0.1


def test_what_a_person_must_change_is_one_line(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", split={"tp": 2, "dp": 2})
    done = job.run(1)
    assert done.returncode != 0
    assert "train: tp(2) × pp(1) × dp(2) = 4 ≠ 1 processes. Start 4 processes." in done.stderr


LORA: dict[str, Any] = {
    "model": {"weights": "pretrained", "tokenizer": "model"},
    "lora": {"rank": 4, "alpha": 8, "targets": "all"},
}


def adapted(root: Path, base: Job, processes: int, **parts: Any) -> Job:
    """A run of adapters beside the weights of another run."""
    job = Job(root, **(LORA | parts))
    done = job.run(processes, "--model", str(base.run_folder / "model"))
    assert done.returncode == 0, done.stderr
    return job


@pytest.fixture(scope="module")
def adapters(whole: Job, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Adapters trained by one process."""
    return adapted(tmp_path_factory.mktemp("adapters") / "job", whole, 1)


@pytest.mark.parametrize(
    ("split", "more"),
    [
        ({"tp": 2, "sequence_parallel": True}, {"recompute": "selective"}),
        ({"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 2}, {}),
    ],
    ids=["tensor-parallel", "pipeline"],
)
def test_adapters_learn_the_same_however_the_model_is_split(
    whole: Job, adapters: Job, tmp_path: Path, split: dict[str, Any], more: dict[str, Any]
) -> None:
    job = adapted(tmp_path / "job", whole, 2, split=split, **more)
    assert job.losses() == pytest.approx(adapters.losses(), abs=2e-5)


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
    assert set(config["target_modules"]) == {
        f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")
    }
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


def test_checkpoints_of_adapters_hold_nothing_else_and_are_gone_on_from(
    whole: Job, adapters: Job, tmp_path: Path
) -> None:
    job = Job(
        tmp_path / "job",
        split={"dp": 2, "shard": 2, "zero_stage": 3},
        recompute="full",
        elastic=True,
        **LORA,
    )
    words = ("--model", str(whole.run_folder / "model"))
    job.run_folder.mkdir()
    (job.run_folder / "stop").touch()
    assert "stopped after step 1 of 4" in job.run(2, *words).stderr
    size = sum(
        file.stat().st_size for file in (job.run_folder / "checkpoints" / "step-1").iterdir()
    )
    assert size < 0.5 * sum(
        file.stat().st_size for file in (whole.run_folder / "checkpoints" / "step-4").iterdir()
    )
    done = job.run(1, *words)
    assert "resuming after step 1" in done.stderr
    assert job.losses() == pytest.approx(adapters.losses(), abs=2e-5)


def test_adapters_need_weights(tmp_path: Path) -> None:
    done = Job(tmp_path / "job", lora={"rank": 4, "alpha": 8}).run(1)
    assert done.returncode != 0
    assert "train: adapters need the weights of a model, and there are none." in done.stderr
