"""Chats, LoRA, QLoRA and DPO on gloo: however the model is split, the losses are the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Job, needs_torch
from tests.trainer.test_trainer_runs import PIPELINE, PRETRAINED, SHARDED, TENSOR

pytestmark = [pytest.mark.torchrun, pytest.mark.nightly, needs_torch]

CHAT: dict[str, Any] = {
    "data": ["chat.jsonl"],
    "data_format": "chat",
    "batch": {"sequence_length": 128, "global_batch": 8, "micro_batch": 2},
}
PREFERENCE = CHAT | {"data": ["preference.jsonl"], "data_format": "preference"}
LORA = PRETRAINED | {"lora": {"rank": 4, "alpha": 8}}
QLORA = PRETRAINED | {"lora": {"rank": 4, "alpha": 8, "targets": "all", "base": "nf4"}}
ALONE: dict[str, dict[str, Any]] = {
    "tuned": CHAT | PRETRAINED,
    "padded": CHAT | PRETRAINED | {"packed": False},
    "lora": CHAT | LORA,
    "qlora": CHAT | QLORA,
    "dpo": PREFERENCE | PRETRAINED,
    "dpo-lora": PREFERENCE | LORA,
}
SPLIT: dict[str, dict[str, Any]] = {
    "qlora by fsdp": ALONE["qlora"] | SHARDED,
    "lora by a pipeline": ALONE["lora"] | PIPELINE,
    "dpo by tensors": ALONE["dpo"] | TENSOR,
    "dpo by fsdp": ALONE["dpo"] | SHARDED,
    "dpo-lora by fsdp": ALONE["dpo-lora"] | SHARDED,
    "chat by tensors": CHAT | TENSOR,
    "chat by a pipeline": CHAT | PIPELINE,
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Random weights trained on chats; the runs of the other methods start from them."""
    job = Job(tmp_path_factory.mktemp("chat") / "job", **CHAT)
    job.finish(1)
    return job


def several(
    root: Path, chat: Job, processes: int, named: dict[str, dict[str, Any]], *, dies: bool = False
) -> dict[str, Job]:
    jobs = {name: Job(root / name.replace(" ", "-"), **parts) for name, parts in named.items()}
    words = ("--model", str(chat.run_folder / "model"))
    Job.run_several(list(jobs.values()), processes, *words, dies=dies)
    return jobs


@pytest.fixture(scope="module")
def alone(chat: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """Each method by one process, and chats by one that is killed in its third step."""
    killed = {"killed": CHAT | {"checkpoints": {"every_steps": 1}}}
    found = several(tmp_path_factory.mktemp("alone"), chat, 1, ALONE | killed, dies=True)
    return found | {"chat": chat}


def test_a_method_has_the_same_losses_however_it_is_split(
    chat: Job, alone: dict[str, Job], tmp_path: Path
) -> None:
    for name, found in several(tmp_path, chat, 2, SPLIT).items():
        whole = alone[name.partition(" ")[0]].losses()
        assert len(whole) == 4
        assert found.losses() == pytest.approx(whole, abs=2e-5), name
        assert len(set(whole)) > 1, name


def test_a_killed_run_on_chats_goes_on_bit_by_bit(chat: Job, alone: dict[str, Job]) -> None:
    job = alone["killed"]
    assert len(job.losses()) == 2
    assert "resuming after step" in job.finish(1)
    assert job.losses() == chat.losses()


def test_preferences_start_at_the_reference_and_margins_are_recorded(alone: dict[str, Job]) -> None:
    """Before the first step model and reference are one, so the loss is ln 2 (equation 7)."""
    for name in ("dpo", "dpo-lora"):
        rows = alone[name].rows()
        assert float(rows[0]["loss"]) == pytest.approx(0.693147, abs=1e-6)
        assert float(rows[0]["reward_margin"]) == 0
        assert all(0 <= float(row["reward_accuracy"]) <= 1 for row in rows)
    assert float(rows[-1]["reward_margin"]) != 0


def test_a_base_in_four_bits_is_merged_as_it_was_trained(chat: Job, alone: dict[str, Job]) -> None:
    import torch
    from safetensors.torch import load_file

    from recipe_core.trainer.nf4 import dequantize, quantize

    folder = alone["qlora"].run_folder
    base = load_file(chat.run_folder / "model" / "model.safetensors")
    merged = load_file(folder / "model" / "model.safetensors")
    thin = load_file(folder / "adapter" / "adapter_model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    first, second = (thin[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
    rounded = dequantize(quantize(base[f"{name}.weight"]), torch.float32)
    assert torch.allclose(merged[f"{name}.weight"], rounded + 2 * second @ first, atol=1e-6)
    assert torch.equal(merged["lm_head.weight"], base["lm_head.weight"])


def test_adapters_are_on_every_matrix_where_nothing_else_is_said(alone: dict[str, Job]) -> None:
    config = json.loads((alone["lora"].run_folder / "adapter" / "adapter_config.json").read_text())
    names = ("down", "gate", "k", "o", "q", "up", "v")
    assert config["target_modules"] == [f"{name}_proj" for name in names]


def test_the_template_of_the_chats_comes_with_the_model(chat: Job, alone: dict[str, Job]) -> None:
    from transformers import AutoTokenizer

    for job in (chat, alone["dpo"]):
        tokenizer = AutoTokenizer.from_pretrained(job.run_folder / "model")
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        assert text == "<|im_start|>user\na<|im_end|>\n"


REFUSED: dict[str, dict[str, Any]] = {
    "preferences need the weights of a model": PREFERENCE,
    "preferences are not trained in a pipeline (pp 2). Set pp: 1.": ALONE["dpo"] | PIPELINE,
    "micro_batch 1 is odd; answers of a pair come together.": ALONE["dpo"]
    | {"batch": CHAT["batch"] | {"micro_batch": 1}},
    "(tp 2) does not cut matrices in four bits. Set tp: 1.": ALONE["qlora"] | TENSOR,
}


def test_what_a_method_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    from recipe_core.trainer.errors import TrainError
    from recipe_core.trainer.settings import load_settings
    from recipe_core.trainer.task import check

    for number, (words, parts) in enumerate(REFUSED.items()):
        settings = load_settings(Job(tmp_path / str(number), **parts).root / "train.json")
        model = "folder" if settings.model.weights == "pretrained" else None
        with pytest.raises(TrainError, match=re.escape(words)):
            check(settings, model)


def test_transformers_trainer_has_the_same_loss_on_chats_and_refuses_adapters(
    chat: Job, alone: dict[str, Job], tmp_path: Path
) -> None:
    """Of the first step, after which it warms up otherwise."""
    pytest.importorskip("accelerate")
    from recipe_core.trainer import hf

    job = Job(tmp_path / "job", **(CHAT | PRETRAINED))
    job.patch_script("", "hf")
    job.finish(2, "--model", str(chat.run_folder / "model"))
    assert len(job.losses()) == 4
    assert job.losses()[0] == pytest.approx(alone["tuned"].losses()[0], rel=1e-4)
    refused = Job(tmp_path / "refused", **ALONE["lora"])
    assert hf.main(["--config", str(refused.root / "train.json")]) == 2
    message = json.loads((refused.run_folder / "end.json").read_text())["message"]
    assert "transformers' trainer trains no adapters here. Use the embedded trainer." in message
