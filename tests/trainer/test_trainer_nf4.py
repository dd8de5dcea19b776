"""Four-bit matrices against the definition in arXiv:2305.14314, and which layers get adapters."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.conftest import CONFIG, needs_torch, settings

pytestmark = needs_torch
torch = pytest.importorskip("torch")

from recipe_core.trainer.errors import TrainError
from recipe_core.trainer.lora import AdaptedQuantized, adapt, linears, targets
from recipe_core.trainer.model import Part, build, read_config
from recipe_core.trainer.nf4 import OUTER, VALUES, Quantized, dequantize, quantize, shapes
from recipe_core.trainer.settings import Lora, load_settings
from tests.trainer.test_trainer_parts import write


def test_the_values_are_quantiles_of_a_normal_distribution() -> None:
    """Section 3 of the paper: of both halves evenly, with an exact zero."""
    normal = torch.distributions.Normal(0.0, 1.0)
    offset = (1 - 1 / (2 * 15) + 1 - 1 / (2 * 16)) / 2
    upper = normal.icdf(torch.linspace(offset, 0.5, 9)[:-1])
    lower = -normal.icdf(torch.linspace(offset, 0.5, 8)[:-1])
    values = torch.cat([lower, torch.zeros(1), upper.flip(0)])
    assert torch.allclose(values / values.max(), torch.tensor(VALUES), atol=2e-3)


def test_values_of_the_format_come_back_and_others_are_rounded_to_the_nearest() -> None:
    weight = torch.tensor(VALUES).repeat(4, 8) * 0.25
    assert torch.allclose(dequantize(quantize(weight), torch.float32), weight, atol=1e-7)
    between = torch.tensor(VALUES).repeat(4)[None]
    between[0, 1] = (VALUES[1] + VALUES[2]) / 2 + 1e-4
    assert float(dequantize(quantize(between), torch.float32)[0, 1]) == pytest.approx(VALUES[2])


def test_double_quantisation_costs_little_more_than_half_a_byte() -> None:
    torch.manual_seed(0)
    weight = 0.02 * torch.randn(128, 256)
    packed = quantize(weight)
    assert [tuple(part.shape) for part in packed] == list(shapes(128, 256))
    stored = sum(part.nbytes for part in packed) / weight.numel()
    assert stored == pytest.approx(0.5 + 1 / 64 + 8 / (64 * OUTER))
    found = dequantize(packed, torch.float32)
    assert float((found - weight).norm() / weight.norm()) < 0.1
    once = weight.view(-1, 64)
    nearest = (once / once.abs().amax(1, keepdim=True))[..., None] - torch.tensor(VALUES)
    exact = torch.tensor(VALUES)[nearest.abs().argmin(-1)] * once.abs().amax(1, keepdim=True)
    # the magnitudes of blocks are rounded to 3 bits of what they differ from their mean
    assert torch.allclose(found.view(-1, 64), exact, rtol=0.05, atol=1e-6)


def test_a_product_and_its_gradient_are_those_of_the_rounded_matrix() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 32, bias=False)
    packed = quantize(layer.weight.detach())
    weight = dequantize(packed, torch.float32)
    layer.__class__ = Quantized
    for name, part in packed._asdict().items():
        layer.register_parameter(name, torch.nn.Parameter(part, requires_grad=False))
    x = torch.randn(5, 64, requires_grad=True)
    y = layer(x)
    y.square().sum().backward()
    assert torch.allclose(y, x @ weight.T, atol=1e-6)
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * (x @ weight.T) @ weight, atol=1e-5)


def test_a_matrix_that_blocks_do_not_fill_is_refused() -> None:
    with pytest.raises(TrainError, match="96 inputs does not divide into blocks of 64"):
        shapes(64, 96)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("attention", "q k v o"), ("mlp", "gate up down"), ("all", "q k v o gate up down")],
)
def test_adapters_are_where_they_are_asked_for_and_the_base_is_in_four_bits_everywhere(
    tmp_path: Path, kind: str, names: str
) -> None:
    asked = settings(lora={"rank": 4, "alpha": 8, "targets": kind, "base": "nf4"})
    chosen = load_settings(write(tmp_path, asked))
    part = Part(build(read_config(chosen, None), chosen), 0, 1)
    lora = chosen.lora
    assert isinstance(lora, Lora)
    every = [name for name, _ in linears(part.layers[0])]
    found = [name for name, _ in targets(part.layers[0], lora)]
    assert [name.rpartition(".")[2] for name in found] == [f"{n}_proj" for n in names.split()]
    adapt(part, lora)
    layer = part.layers[0]
    assert all(isinstance(layer.get_submodule(name), AdaptedQuantized) for name in found)
    assert all(isinstance(layer.get_submodule(name), Quantized) for name in every)
    hidden, between = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    assert isinstance(hidden, int)
    assert isinstance(between, int)
    codes = sum(p.numel() for name, p in layer.named_parameters() if name.endswith("codes"))
    assert codes == (3 * hidden * between + 3 * hidden * hidden) // 2


def test_an_older_torch_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA torch 2.11 stopped in FSDP: only tensors of floating point require gradients."""
    from torch.torch_version import TorchVersion

    from recipe_core.trainer import task

    monkeypatch.setattr(task.torch, "__version__", TorchVersion("2.11.0+cu130"))
    with pytest.raises(TrainError, match=r"torch 2\.11\.0\+cu130 holds no packed bytes"):
        task._check_four_bits(1)
