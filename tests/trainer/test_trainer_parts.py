"""Pieces of the trainer, in this process; four bits as arXiv:2305.14314 defines them."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import CONFIG, needs_torch, settings

pytestmark = needs_torch
torch = pytest.importorskip("torch")

from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from recipe_core.trainer.data import Sequences
from recipe_core.trainer.errors import TrainError
from recipe_core.trainer.lora import AdaptedQuantized, adapt, linears, narrow, targets
from recipe_core.trainer.main import main
from recipe_core.trainer.mesh import degrees
from recipe_core.trainer.metrics import Metrics, Row, prometheus, read_rows
from recipe_core.trainer.model import Part, build, chunk_layers, read_config
from recipe_core.trainer.nf4 import OUTER, VALUES, Quantized, dequantize, quantize, shapes
from recipe_core.trainer.optimizer import LossScale, learning_rate
from recipe_core.trainer.parallel import emulated, gathered_units
from recipe_core.trainer.settings import Batch, Lora, Optimizer, Settings, Split, load_settings
from recipe_core.trainer.shards import write_shards
from recipe_core.trainer.tokens import documents


def chosen(folder: Path, **parts: Any) -> Settings:
    path = folder / "train.json"
    path.write_text(json.dumps(settings(**parts)))
    return load_settings(path)


def part_of(found: Settings) -> Part:
    return Part(build(read_config(found, None), found), 0, 1)


WRONG: dict[str, dict[str, Any]] = {
    "train.json.steps is '4', not int.": {"steps": "4"},
    "train.json.batch.global_batch is missing.": {"batch": {"sequence_length": 32}},
    "train.json.split.tq is unknown. Available: tp, pp,": {"split": {"tq": 2}},
    "train.json.precision is 'fp8'. Use 'bf16' or 'fp16' or 'fp32'.": {"precision": "fp8"},
    "train.json.data is 'text.txt', not a list.": {"data": "text.txt"},
}


def test_settings_are_read_with_their_types_and_a_wrong_field_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split, figures = {"tp": 2, "schedule": "gpipe"}, {"peak_flops_per_s": 1}
    found = chosen(tmp_path, split=split, figures=figures)
    assert found.split == Split(tp=2, schedule="gpipe")
    assert (found.data, found.figures.peak_flops_per_s) == (("text.txt",), 1.0)
    for message, wrong in WRONG.items():
        with pytest.raises(TrainError) as error:
            chosen(tmp_path, **wrong)
        assert str(error.value).startswith(message)
    assert main(["--config", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith("train: cannot read")


def test_degrees_follow_the_plan_and_an_elastic_run_follows_the_devices() -> None:
    split, batch = Split(tp=2, pp=2, dp=8, shard=4), Batch(128, 64, 2)
    planned = degrees(split, batch, 32, elastic=False)
    assert (planned.replicate, planned.shard, planned.micro_batches) == (2, 4, 4)
    fewer = degrees(split, batch, 16, elastic=True)
    assert (fewer.replicate, fewer.shard, fewer.micro_batches) == (1, 4, 8)
    with pytest.raises(TrainError, match=r"tp\(2\) × pp\(2\) × dp\(8\) = 32 ≠ 16"):
        degrees(split, batch, 16, elastic=False)
    with pytest.raises(TrainError, match=r"global_batch\(64\) .* dp\(3\) × micro_batch\(2\) = 6"):
        degrees(split, batch, 12, elastic=True)


def test_chunks_hold_every_layer_once() -> None:
    assert [list(chunk_layers(7, chunk, 3)) for chunk in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("tied", "ends"),
    [
        (False, [("embed_tokens",), ("norm", "lm_head")]),
        (True, [("embed_tokens", "norm", "lm_head")]),
    ],
)
def test_units_are_torchtitans(tmp_path: Path, tied: bool, ends: list[tuple[str, ...]]) -> None:
    """Embedding, layers, norm and head, which stay whole; one table for both ends is one unit."""
    config = CONFIG | {"tie_word_embeddings": tied}
    part = part_of(chosen(tmp_path, model={"config": config, "tokenizer": "data"}))
    names = {module: name.rpartition(".")[2] for name, module in part.named_modules()}
    units = [
        (tuple(names[module] for module in unit), reshards)
        for unit, reshards in gathered_units(part, reshard=True)
    ]
    layers = [((str(index),), True) for index in range(4)]
    assert units == [*((unit, True) for unit in ends[:-1]), *layers, (ends[-1], False)]


@pytest.mark.parametrize("kind", ["attention", "mlp", "all"])
def test_adapters_are_as_many_as_are_estimated_and_weights_are_in_16_bits(
    tmp_path: Path, kind: str
) -> None:
    found = chosen(tmp_path, lora={"rank": 4, "alpha": 8, "targets": kind})
    part = part_of(found)
    narrow(part, torch.bfloat16)
    assert found.lora is not None
    adapt(part, found.lora)
    work = {"kind": "training", "method": "lora", "lora_rank": 4, "lora_targets": kind}
    asked = {
        "model": CONFIG,
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": work | {"sequence_length": 32, "global_batch": 1},
        "candidate": {"engine": "torch", "tp": 1, "pp": 1, "dp": 1, "micro_batch": 1},
    }
    plan, row = plan_candidate(PlanRequest.parse(asked))
    learning = [parameter for _, parameter in part.learning()]
    estimated = plan.memory([row])["optimizer"][0] / 8
    assert sum(parameter.numel() for parameter in learning) == estimated
    assert {parameter.dtype for parameter in learning} == {torch.float32}
    still = {parameter.dtype for _, parameter in part.named() if not parameter.requires_grad}
    assert still == {torch.bfloat16}


@pytest.mark.parametrize("native", [True, False])
def test_only_bf16_on_a_processor_without_its_products_is_emulated(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor, other = torch.device("cpu"), torch.device("meta")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert emulated("bf16", processor) is not native
    assert not any(emulated(precision, processor) for precision in ("fp16", "fp32"))
    assert not emulated("bf16", other)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not emulated("bf16", processor)  # nothing is known


def test_every_sequence_comes_once_each_time_around_whatever_the_replicas(tmp_path: Path) -> None:
    def sequences(count: int) -> Sequences:
        folder = tmp_path / f"tokens-{count}"
        return Sequences(
            write_shards(folder, [list(range(count))], 512, shard_tokens=50), 8, 4, seed=3
        )

    found = sequences(8 * 20 + 1)
    alone = found.batch(6, 0, 1, 2)
    shared = [pair for rank in range(2) for pair in found.batch(6, rank, 2, 1)]
    assert [pair[0].tolist() for pair in alone] == [pair[0].tolist() for pair in shared]
    assert all((pair[1] - pair[0] == 1).all() for pair in alone)
    rounds = [
        [
            int(pair[0][0, 0]) // 8
            for step in range(first, first + 5)
            for pair in found.batch(step, 0, 1, 4)
        ]
        for first in (0, 5)
    ]
    assert [sorted(order) for order in rounds] == [list(range(20))] * 2
    assert rounds[0] != rounds[1]
    with pytest.raises(TrainError, match="the texts have 5 tokens"):
        sequences(5)


def test_a_line_without_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"words": "b"}\n')
    with pytest.raises(TrainError, match="line 2 is not a JSON object with a text"):
        [list(document) for document in documents(path)]


def test_the_rate_warms_up_and_falls_and_the_loss_scale_halves_after_an_overflow() -> None:
    asked = Optimizer(learning_rate=1.0, warmup_steps=4, least_rate_share=0.1)
    rates = [learning_rate(asked, step, 24) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert (rates[14], rates[24]) == pytest.approx((0.55, 0.1))
    scale = LossScale(used=True)
    first = scale.value
    scale.update(finite=False)
    assert scale.value == first / 2
    for _ in range(1000):
        scale.update(finite=True)
    assert scale.value == first


def test_metrics_go_on_after_the_step_that_is_resumed_and_prometheus_reads_them(
    tmp_path: Path,
) -> None:
    for done, steps in ((0, (1, 2, 3)), (2, (3,))):
        metrics = Metrics(tmp_path, "tiny", done)
        for step in steps:
            metrics.write(
                Row(step, 5.5, 1e-3, 1.0, 0.5, 100.0, 50.0, None, 1 << 20, 64 * step, 1.0)
            )
    assert [row["step"] for row in read_rows(tmp_path / "metrics.csv")] == ["1", "2", "3"]
    text = (tmp_path / "metrics.prom").read_text()
    assert 'recipe_training_tokens_total{run="tiny"} 192\n' in text
    assert prometheus({"loss": 1.5, "mfu": None}, 'a "b"') == (  # what is unknown is left out
        "# HELP recipe_training_loss Mean loss of the step's tokens, nats.\n"
        "# TYPE recipe_training_loss gauge\n"
        'recipe_training_loss{run="a \\"b\\""} 1.5\n'
    )


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


@pytest.mark.parametrize(
    ("kind", "names"),
    [("attention", "q k v o"), ("mlp", "gate up down"), ("all", "q k v o gate up down")],
)
def test_adapters_are_where_they_are_asked_for_and_the_base_is_in_four_bits_everywhere(
    tmp_path: Path, kind: str, names: str
) -> None:
    found = chosen(tmp_path, lora={"rank": 4, "alpha": 8, "targets": kind, "base": "nf4"})
    part = part_of(found)
    assert isinstance(found.lora, Lora)
    layer = part.layers[0]
    every = [name for name, _ in linears(layer)]
    aimed = [name for name, _ in targets(layer, found.lora)]
    assert [name.rpartition(".")[2] for name in aimed] == [f"{n}_proj" for n in names.split()]
    adapt(part, found.lora)
    assert all(isinstance(layer.get_submodule(name), AdaptedQuantized) for name in aimed)
    assert all(isinstance(layer.get_submodule(name), Quantized) for name in every)
    codes = sum(p.numel() for name, p in layer.named_parameters() if name.endswith("codes"))
    assert codes == (3 * 64 * 128 + 3 * 64 * 64) // 2  # hidden 64, between 128, half the key heads


def test_what_four_bits_cannot_do_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA torch 2.11 stopped in FSDP: only tensors of floating point require gradients."""
    from torch.torch_version import TorchVersion

    from recipe_core.trainer import task

    with pytest.raises(TrainError, match="96 inputs does not divide into blocks of 64"):
        shapes(64, 96)
    monkeypatch.setattr(task.torch, "__version__", TorchVersion("2.11.0+cu130"))
    with pytest.raises(TrainError, match=r"torch 2\.11\.0\+cu130 holds no packed bytes"):
        task._check_four_bits(1)
