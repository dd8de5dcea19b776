"""Real torchrun jobs on gloo: however the model is split, the losses are those of one process."""

import json
import re

import pytest

from tests.fixtures.needs import needs
from tests.payload.trainer.conftest import CONFIG, Job, needs_torch

pytestmark = [pytest.mark.torchrun, needs_torch]
NIGHTLY = pytest.mark.nightly
PEFT = needs("adapters", "peft")

TENSOR = {"split": {"tp": 2, "sequence_parallel": True}, "recompute": "selective"}
PIPELINE = {"split": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 2}}
SHARDED = {"split": {"dp": 2, "shard": 2, "zero_stage": 3}, "recompute": "full"}
PRETRAINED = {"model": {"weights": "pretrained", "tokenizer": "model"}}
LORA = PRETRAINED | {"lora": {"rank": 4, "alpha": 8}}
ALONE = {"tuned": PRETRAINED, "lora": LORA}
SPLIT = {
    "lora by a pipeline": LORA | PIPELINE,
    "lora by fsdp": LORA | SHARDED,
    "tuned by tensors": PRETRAINED | TENSOR,
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
def alone(whole, tmp_path_factory):
    """Each method by one process, from weights that were trained at random."""
    return several(tmp_path_factory.mktemp("alone"), whole.run_folder / "model", 1, ALONE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on text by one process."""
    job = Job(tmp_path_factory.mktemp("whole") / "whole")
    Job.run_several([job], 1)
    return job


@NIGHTLY
@PEFT
def test_a_method_has_the_same_losses_however_it_is_split(whole, alone, tmp_path):
    for name, found in several(tmp_path, whole.run_folder / "model", 2, SPLIT).items():
        losses = alone[name.partition(" ")[0]].losses()
        assert len(losses) == 4
        assert found.losses() == pytest.approx(losses, abs=2e-5), name
        assert len(set(losses)) > 1, name
    # fine-tuning starts where the weights are
    assert alone["tuned"].losses()[0] < whole.losses()[-1] + 0.1


@NIGHTLY
def test_a_killed_run_goes_on_bit_by_bit(whole, tmp_path):
    killed = {"killed": {"checkpoints": {"every_steps": 1}}}
    job = several(tmp_path, whole.run_folder / "model", 1, killed, dies=True)["killed"]
    assert len(job.losses()) == 2
    assert "resuming after step" in job.finish(1)
    assert job.losses() == whole.losses()


@NIGHTLY
@PEFT
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # which peft reads
def test_adapters_come_out_alone_and_merged_into_the_base_that_was_trained(whole, alone):
    """peft loads them, and what is merged is the base with them, no more."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder = alone["lora"].run_folder
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    # on every matrix, also where nothing is said
    names = ("down", "gate", "k", "o", "q", "up", "v")
    assert sorted(config["target_modules"]) == [f"{name}_proj" for name in names]
    base = AutoModelForCausalLM.from_pretrained(whole.run_folder / "model")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    tuned = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload().state_dict()
    merged = load_file(folder / "model" / "model.safetensors")
    assert all(torch.allclose(merged[name], tuned[name], atol=1e-6) for name in merged)
    changed = [name for name, tensor in merged.items() if not torch.equal(tensor, before[name])]
    assert len(changed) == 4 * 7
    assert merged.keys() == tuned.keys()


@NIGHTLY
@PEFT
def test_checkpoints_of_adapters_hold_nothing_else_and_are_gone_on_from(whole, alone, tmp_path):
    def size(job, step):
        folder = job.run_folder / "checkpoints" / f"step-{step}"
        return sum(file.stat().st_size for file in folder.iterdir())

    job = Job(tmp_path / "job", **SHARDED, elastic=True, **LORA)
    words = ("--model", str(whole.run_folder / "model"))
    job.ask_to_stop()
    assert "stopped after step 1 of 4" in job.finish(2, *words)
    assert size(job, 1) < 0.5 * size(whole, 4)
    assert "resuming after step 1" in job.finish(1, *words)
    assert job.losses() == pytest.approx(alone["lora"].losses(), abs=2e-5)


REFUSED = {
    "adapters need the weights of a model,": {"lora": {"rank": 4, "alpha": 8}},
    "not cut by tensor parallelism (TP 2). Set tp: 1.": LORA | TENSOR,
}


@PEFT
def test_what_a_method_cannot_do_is_refused_by_name(tmp_path):
    from recipe_core.payload.trainer.errors import TrainError
    from recipe_core.payload.trainer.lora import check_adapters
    from recipe_core.payload.trainer.settings import load_settings

    for number, (words, parts) in enumerate(REFUSED.items()):
        settings = load_settings(Job(tmp_path / str(number), **parts).root / "train.json")
        model = "folder" if settings.model.weights == "pretrained" else None
        with pytest.raises(TrainError, match=re.escape(words)):
            check_adapters(settings, model)


def test_adapters_without_peft_are_refused_by_name(tmp_path, monkeypatch):
    from recipe_core.payload.trainer import lora
    from recipe_core.payload.trainer.errors import TrainError
    from recipe_core.payload.trainer.settings import load_settings

    settings = load_settings(Job(tmp_path / "job", **LORA).root / "train.json")
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    with pytest.raises(TrainError, match="adapters need peft, which is not installed"):
        lora.check_adapters(settings, "folder")


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")  # deprecated in 5.23
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=NIGHTLY)])
def test_transformers_trainer_has_the_same_loss_and_refuses_adapters(
    whole, alone, tmp_path, processes
):
    """Of the first step, after which it warms up otherwise."""
    pytest.importorskip("accelerate")
    from recipe_core.payload.trainer import hf

    job = Job(tmp_path / "job", **PRETRAINED)
    job.patch_script("", "hf")
    words = ("--model", str(whole.run_folder / "model"))
    if processes > 1:
        job.finish(processes, *words)
    else:
        assert hf.main(["--config", str(job.root / "train.json"), *words]) == 0
    assert len(job.losses()) == 4
    assert job.losses()[0] == pytest.approx(alone["tuned"].losses()[0], rel=1e-4)
    refused = Job(tmp_path / "refused", **ALONE["lora"])
    assert hf.main(["--config", str(refused.root / "train.json")]) == 2
    message = json.loads((refused.run_folder / "end.json").read_text())["message"]
    assert (
        "transformers' trainer trains no adapters here. Use the embedded trainer, or TRL."
        in message
    )
