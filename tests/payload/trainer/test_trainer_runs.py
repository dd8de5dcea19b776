"""Real torchrun jobs on gloo: however the model is split, the losses are those of one process."""

import json
import re

import pytest

from tests.payload.trainer.conftest import CONFIG, Job, needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]
NIGHTLY = pytest.mark.nightly

TENSOR = {"split": {"tp": 2, "sequence_parallel": True}, "recompute": "selective"}
PIPELINE = {"split": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 2}}
SHARDED = {"split": {"dp": 2, "shard": 2, "zero_stage": 3}, "recompute": "full"}
PRETRAINED = {"model": {"weights": "pretrained", "tokenizer": "model"}}
LORA = PRETRAINED | {"lora": {"rank": 4, "alpha": 8}}
QLORA = PRETRAINED | {"lora": {"rank": 4, "alpha": 8, "targets": "all", "base": "nf4"}}
BATCH = {"batch": {"sequence_length": 128, "global_batch": 8, "micro_batch": 2}}
CHAT = BATCH | {"data": ["chat.jsonl"], "data_format": "chat"}
PREFERENCE = CHAT | {"data": ["preference.jsonl"], "data_format": "preference"}
ALONE = {
    "tuned": CHAT | PRETRAINED,
    "padded": CHAT | PRETRAINED | {"packed": False},
    "text-lora": LORA,
    "lora": CHAT | LORA,
    "qlora": CHAT | QLORA,
    "dpo": PREFERENCE | PRETRAINED,
    "dpo-lora": PREFERENCE | LORA,
}
SPLIT = {
    "text-lora by tensors": LORA | TENSOR,
    "text-lora by a pipeline": LORA | PIPELINE,
    "qlora by fsdp": ALONE["qlora"] | SHARDED,
    "lora by a pipeline": ALONE["lora"] | PIPELINE,
    "dpo by tensors": ALONE["dpo"] | TENSOR,
    "dpo by fsdp": ALONE["dpo"] | SHARDED,
    "dpo-lora by fsdp": ALONE["dpo-lora"] | SHARDED,
    "chat by tensors": CHAT | TENSOR,
    "chat by a pipeline": CHAT | PIPELINE,
}


def test_a_run_of_two_processes_has_the_losses_of_one(whole, tmp_path):
    split = {"fsdp": SHARDED, "tp": TENSOR, "pp": PIPELINE}
    jobs = [Job(tmp_path / name, **parts) for name, parts in split.items()]
    Job.run_several(jobs, 2)
    for job in jobs:
        assert job.losses() == pytest.approx(whole.losses(), abs=2e-5), job.root.name
    assert whole.losses()[-1] < whole.losses()[0] - 0.3


def test_the_model_that_comes_out_is_one_that_transformers_loads(whole):
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


def several(root, model, processes, named, *, dies=False):
    jobs = {name: Job(root / name.replace(" ", "-"), **parts) for name, parts in named.items()}
    Job.run_several(list(jobs.values()), processes, "--model", str(model), dies=dies)
    return jobs


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each method by one process; most start from random weights that were trained on chats."""
    root = tmp_path_factory.mktemp("alone")
    return several(root, root / "chat" / "run" / "model", 1, {"chat": CHAT} | ALONE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on text by one process."""
    job = Job(tmp_path_factory.mktemp("whole") / "whole")
    Job.run_several([job], 1)
    return job


@pytest.fixture(scope="module")
def chat(alone):
    return alone["chat"]


@NIGHTLY
def test_a_method_has_the_same_losses_however_it_is_split(chat, alone, tmp_path):
    for name, found in several(tmp_path, chat.run_folder / "model", 2, SPLIT).items():
        whole = alone[name.partition(" ")[0]].losses()
        assert len(whole) == 4
        assert found.losses() == pytest.approx(whole, abs=2e-5), name
        assert len(set(whole)) > 1, name
    # fine-tuning starts where the weights are
    assert alone["tuned"].losses()[0] < chat.losses()[-1] + 0.1


@NIGHTLY
def test_a_killed_run_on_chats_goes_on_bit_by_bit(chat, tmp_path):
    killed = {"killed": CHAT | {"checkpoints": {"every_steps": 1}}}
    job = several(tmp_path, chat.run_folder / "model", 1, killed, dies=True)["killed"]
    assert len(job.losses()) == 2
    assert "resuming after step" in job.finish(1)
    assert job.losses() == chat.losses()


@NIGHTLY
def test_preferences_start_at_the_reference_and_margins_are_recorded(alone):
    """Before the first step model and reference are one, so the loss is ln 2 (equation 7)."""
    for name in ("dpo", "dpo-lora"):
        rows = alone[name].rows()
        assert float(rows[0]["loss"]) == pytest.approx(0.693147, abs=1e-6)
        assert float(rows[0]["reward_margin"]) == 0
        assert all(0 <= float(row["reward_accuracy"]) <= 1 for row in rows)
    assert float(rows[-1]["reward_margin"]) != 0


@NIGHTLY
def test_adapters_come_out_alone_and_merged_into_the_base_that_was_trained(chat, alone):
    """peft's names and shapes; the merged model is the base with scale · B A added, no more."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    from recipe_core.payload.trainer.lora import dequantize, quantize_nf4

    base = load_file(chat.run_folder / "model" / "model.safetensors")
    for method in ("text-lora", "qlora"):
        folder = alone[method].run_folder
        merged = load_file(folder / "model" / "model.safetensors")
        thin = load_file(folder / "adapter" / "adapter_model.safetensors")
        config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
        assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
        # on every matrix, also where nothing is said
        names = ("down", "gate", "k", "o", "q", "up", "v")
        assert config["target_modules"] == [f"{name}_proj" for name in names]
        changed = 0
        for name, weight in base.items():
            layer = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{layer}.lora_A.weight" not in thin:
                assert torch.equal(weight, merged[name])
                continue
            first, second = (thin.pop(f"{layer}.lora_{which}.weight") for which in "AB")
            still = dequantize(quantize_nf4(weight), torch.float32) if method == "qlora" else weight
            assert torch.allclose(merged[name], still + 8 / 4 * second @ first, atol=1e-6)
            changed += not torch.equal(weight, merged[name])
        assert (changed, thin) == (4 * 7, {})
    # the template of the chats comes with the model
    for job in (chat, alone["dpo"]):
        tokenizer = AutoTokenizer.from_pretrained(job.run_folder / "model")
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        assert text == "<|im_start|>user\na<|im_end|>\n"


@NIGHTLY
def test_checkpoints_of_adapters_hold_nothing_else_and_are_gone_on_from(
    whole, chat, alone, tmp_path
):
    def size(job, step):
        folder = job.run_folder / "checkpoints" / f"step-{step}"
        return sum(file.stat().st_size for file in folder.iterdir())

    job = Job(tmp_path / "job", **SHARDED, elastic=True, **LORA)
    words = ("--model", str(chat.run_folder / "model"))
    job.ask_to_stop()
    assert "stopped after step 1 of 4" in job.finish(2, *words)
    assert size(job, 1) < 0.5 * size(whole, 4)
    assert "resuming after step 1" in job.finish(1, *words)
    assert job.losses() == pytest.approx(alone["text-lora"].losses(), abs=2e-5)


ODD = {"batch": BATCH["batch"] | {"micro_batch": 1}}
REFUSED = {
    "adapters need the weights of a model,": {"lora": {"rank": 4, "alpha": 8}},
    "preferences need the weights of a model": PREFERENCE,
    "preferences are not trained in a pipeline (pp 2). Set pp: 1.": ALONE["dpo"] | PIPELINE,
    "micro_batch 1 is odd; answers of a pair come together.": ALONE["dpo"] | ODD,
    "(tp 2) does not cut matrices in four bits. Set tp: 1.": ALONE["qlora"] | TENSOR,
}


def test_what_a_method_cannot_do_is_refused_by_name(tmp_path):
    from recipe_core.payload.trainer.errors import TrainError
    from recipe_core.payload.trainer.examples import check_training_task
    from recipe_core.payload.trainer.settings import load_settings

    for number, (words, parts) in enumerate(REFUSED.items()):
        settings = load_settings(Job(tmp_path / str(number), **parts).root / "train.json")
        model = "folder" if settings.model.weights == "pretrained" else None
        with pytest.raises(TrainError, match=re.escape(words)):
            check_training_task(settings, model)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")  # deprecated in 5.23
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=NIGHTLY)])
def test_transformers_trainer_has_the_same_loss_on_chats_and_refuses_adapters(
    chat, alone, tmp_path, processes
):
    """Of the first step, after which it warms up otherwise."""
    pytest.importorskip("accelerate")
    from recipe_core.payload.trainer import hf

    job = Job(tmp_path / "job", **(CHAT | PRETRAINED))
    job.patch_script("", "hf")
    words = ("--model", str(chat.run_folder / "model"))
    if processes > 1:
        job.finish(processes, *words)
    else:
        assert hf.main(["--config", str(job.root / "train.json"), *words]) == 0
    assert len(job.losses()) == 4
    assert job.losses()[0] == pytest.approx(alone["tuned"].losses()[0], rel=1e-4)
    refused = Job(tmp_path / "refused", **ALONE["lora"])
    assert hf.main(["--config", str(refused.root / "train.json")]) == 2
    message = json.loads((refused.run_folder / "end.json").read_text())["message"]
    assert "transformers' trainer trains no adapters here. Use the embedded trainer." in message
