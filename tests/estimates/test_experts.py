"""Experts of training: how uneven routers are, what an exchange costs, what graphs take away."""

import numpy as np
import pytest

from recipe_core.estimates.training.activations import imbalance
from recipe_core.plans.splits import row_estimates
from tests.fixtures.catalogues import Catalogue

TRAINED = Catalogue("published_training.yaml")


def estimated(base, **candidate):
    table, row = TRAINED.planned(base, {"candidate": candidate})
    return row_estimates(table, row)


def parts(base, **candidate):
    found, row = estimated(base, **candidate)
    return {name: float(part[row]) for name, part in found.parts.items()}


@pytest.mark.parametrize(("ep", "fullest"), [(1, 1.0), (2, 1.15), (8, 1.72), (32, 3.07)])
def test_the_fullest_of_more_ranks_has_more_of_what_no_loss_balances(ep, fullest):
    """One normal's largest of ep, of sums of 32 / ep experts whose loads spread by their mean."""
    found, row = estimated("halo", ep=min(ep, 8))
    cases = found.cases.take([row])
    cases = type(cases)(**{**{n: getattr(cases, n) for n in cases.__slots__}, "ep": np.array([ep])})
    mlp = next(layer.mlp for layer, _ in found.setting.model.kinds)
    assert imbalance(found.setting, cases, mlp)[0] == pytest.approx(fullest, abs=0.02)


def test_full_recomputation_exchanges_tokens_again_and_selective_does_not():
    none, full, selective = (
        parts("qwen-b200", ep=8, recompute=kind) for kind in ("none", "full", "selective")
    )
    exchange = none["forward_expert_parallel"]
    assert full["forward_expert_parallel"] == pytest.approx(exchange)
    forward = sum(seconds for name, seconds in none.items() if name.startswith("forward_"))
    assert full["recompute"] == pytest.approx(forward)
    assert selective["recompute"] == pytest.approx(0.35 * (forward - exchange))


def test_the_host_waits_for_sizes_in_the_forward_pass_only():
    step = parts("qwen-b200", ep=8, recompute="none")
    waits = step["forward_expert_parallel"] - step["backward_expert_parallel"]
    assert waits == pytest.approx(48 * 5.0e-4)  # of one micro-batch on 48 layers


def test_graphs_take_launches_from_the_host_and_keep_an_input_for_each_layer():
    base = {"ep": 1, "dp": 4, "precision": "bf16", "micro_batch": 1}
    plain, captured = (estimated("short", **base, cuda_graphs=kind) for kind in ("none", "layer"))
    (before, i), (after, k) = plain, captured
    assert before.parts["launch"][i] > 0
    assert after.parts["launch"][k] == 0
    more = after.memory.parts["activations"][k, 0] - before.memory.parts["activations"][i, 0]
    layers, hidden, tokens = 28, 3072, 512
    assert more == pytest.approx(2 * layers * hidden * tokens, rel=0.05)
