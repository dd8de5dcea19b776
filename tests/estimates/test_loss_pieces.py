"""Logits and the backward pass of one layer, by the rules of each framework's kernels."""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.estimates.columns.training import RECOMPUTE
from recipe_core.estimates.training.activations import (
    head_gradient_bytes,
    head_products,
    hidden_gradient_bytes,
    logit_bytes,
    logits_at_once,
)
from recipe_core.estimates.training.memory import training_memory
from recipe_core.estimates.training.unsharded_peak import attention_work
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_columns as cases
from tests.fixtures.training import training_setting as setting

FULL = RECOMPUTE.index("full")


@over("engine tokens tp pieces logits size", table("loss_pieces", "logits"))
def test_logits_exist_in_the_pieces_of_the_frameworks_kernel(
    engine, tokens, tp, pieces, logits, size
):
    columns = cases(1, tp=tp, fused_loss=pieces, sequence_length=tokens)
    assert logits_at_once(setting(engine), columns)[0] == logits
    assert logit_bytes(setting(engine), columns)[0] == size


def test_gradients_of_hidden_states_and_of_a_trained_head_wait_beside_pieces():
    columns = cases(1, sequence_length=8192)
    for method, head in (("finetune", 6 * 128256 * 4096), ("lora", 0)):
        chosen = setting("trl", method=method)
        assert hidden_gradient_bytes(chosen, columns)[0] == 8 * 4096 * 8192
        assert head_gradient_bytes(chosen, columns)[0] == head
    assert hidden_gradient_bytes(setting("accelerate"), columns)[0] == 0


@over("engine cp size", table("loss_pieces", "attention"))
def test_attention_sums_gradients_and_torch_gathers_what_other_ranks_have(engine, cp, size):
    chosen = setting(engine)
    (layer, _), *_ = chosen.model.kinds
    assert attention_work(chosen, cases(1, cp=cp), layer.attention)[0] == size


@over("engine method pieces products", table("loss_pieces", "products"))
def test_a_kernel_that_keeps_no_logits_makes_them_again(engine, method, pieces, products):
    assert head_products(setting(engine, method=method), cases(1, fused_loss=pieces)) == products


def test_the_loss_is_over_when_a_layer_goes_back_unless_it_is_eager():
    """Megatron's fused loss and its layer are one or the other, DeepSpeed's fp32 copies stay."""
    for engine, both in (("megatron", False), ("deepspeed", True)):
        parts = training_memory(setting(engine), cases(1, tp=1, recompute=FULL)).parts
        waiting = training_memory(setting(engine), cases(1, tp=1, recompute=FULL)).parts[
            "activations"
        ]
        inputs = 32 * 2 * 4096 * 8192 + 2 * 4096 * 8192
        assert parts["loss"][0, 0] > 0
        assert (waiting[0, 0] > inputs) == both


@over("model device tokens above", table("loss_pieces", "longest"))
def test_unsloths_longest_contexts_fit_and_not_much_more(model, device, tokens, above):
    work = {"method": "qlora", "lora_rank": 32}
    chosen = setting("unsloth", model=model, hardware={"device": device}, **work)
    lengths = np.array([tokens, int(tokens * above)])
    shape = {"recompute": FULL, "activation_offload": 1, "zero_stage": 0}
    found = training_memory(chosen, cases(2, sequence_length=lengths, **shape))
    assert (found.peak_bytes <= found.capacity_bytes).tolist() == [True, False]


def test_unsloth_writes_gradients_over_what_its_feed_forward_block_kept():
    shape = {"recompute": FULL, "sequence_length": 65536}
    own = setting("unsloth", method="lora")
    plain = own.framework.model_copy(update={"mlp_in_place": False})
    here, there = (
        training_memory(chosen, cases(1, **shape)).parts["activations"][0, 0]
        for chosen in (own, replace(own, framework=plain))
    )
    # 4.5 of 6f bytes a token against output and gradient of the layer
    assert there - here == pytest.approx((4.5 * 14336 - 4 * 4096) * 65536)
