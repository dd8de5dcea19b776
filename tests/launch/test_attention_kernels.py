"""Attention kernels by name: what frameworks are told, what is refused, what they take."""

import pytest

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.start import training_launch
from recipe_core.payload.trainer.model import choose_attention
from recipe_core.plans.splits import row_estimates
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_answer, training_table

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SPLIT = {"tp": 1, "pp": 1, "dp": 16, "zero_stage": 3, "micro_batch": 2, "recompute": "full"}
METHODS = {"megatron": "pretrain"}


def planned(engine, device, kernel):
    split = SPLIT | {"engine": engine} | ({"zero_stage": 1} if engine == "megatron" else {})
    method = METHODS.get(engine, "finetune")
    hardware = {"device": device, "per_node": 8}
    return training_table(split, 2, MODEL, hardware, attention=kernel, method=method)


@over("engine device kernel option word module", table("training_launch", "attention_kernels"))
def test_each_framework_is_told_a_kernel_in_its_words(engine, device, kernel, option, word, module):
    plans, row = planned(engine, device, kernel)
    started = training_launch(*row_estimates(plans, row))
    assert started.options[option] == word
    assert module is None or module in started.requires


def test_cudnn_cannot_be_told_where_torch_takes_another_kernel():
    def asked():
        plans, row = planned("trl", "a100-sxm-80gb", "cudnn")
        return training_launch(*row_estimates(plans, row))

    error = refusal(asked, kind=NoAnswer)
    assert error.field == "workload.attention"
    assert "torch takes another kernel" in str(error)


def test_a_kernel_that_a_device_lacks_is_refused_and_a_usual_one_never():
    split = SPLIT | {"engine": "trl", "dp": 8}
    on = {"nodes": 1, "hardware": {"device": "a100-sxm-80gb", "per_node": 8}}
    work = {"method": "finetune", "sequence_length": 4096, "global_batch": 16}
    refused = training_answer(split, **on, **work, attention="flash3")
    assert "FlashAttention-3 (workload.attention: flash3) is known on sm_9" in refused["reasons"][0]
    assert training_answer(split, **on, **work)["feasible"]


def test_kernels_differ_by_their_published_rates():
    """At 131,072 tokens attention is most of a step; on Hopper torch takes cuDNN's by itself."""
    split = SPLIT | {"engine": "trl", "dp": 8, "micro_batch": 1, "activation_offload": True}
    work = {"method": "finetune", "sequence_length": 131_072, "global_batch": 8}
    parts = {
        kernel: training_answer(split, 1, **work, attention=kernel)["breakdown_s"]["step"]
        for kernel in ("flash", "flash2", "flash3", "cudnn")
    }
    assert parts["flash"] == parts["cudnn"]
    for kernel, forward, backward in (("cudnn", 1.61, 1.6), ("flash3", 1.84, 1.74)):
        for name, rate in (("forward", forward), ("backward", backward)):
            two, other = (parts[k][f"{name}_attention"] for k in ("flash2", kernel))
            assert two / other == pytest.approx(rate, rel=1e-3)


def test_the_trainer_keeps_torch_from_other_kernels():
    torch = pytest.importorskip("torch")
    cuda = torch.backends.cuda
    before = cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()
    try:
        assert choose_attention("eager") == "eager"
        assert (cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()) == before
        assert choose_attention("flash2") == choose_attention("cudnn") == "sdpa"
        assert not cuda.cudnn_sdp_enabled()
        assert not cuda.flash_sdp_enabled()
    finally:
        cuda.enable_cudnn_sdp(before[0])
        cuda.enable_flash_sdp(before[1])
