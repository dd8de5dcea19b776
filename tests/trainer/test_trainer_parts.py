"""Pieces of the trainer, in this process."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import CONFIG, needs_torch, settings

pytestmark = needs_torch
pytest.importorskip("torch")

from recipe_core.trainer.data import Sequences
from recipe_core.trainer.errors import TrainError
from recipe_core.trainer.lora import adapt, narrow
from recipe_core.trainer.main import main
from recipe_core.trainer.mesh import degrees
from recipe_core.trainer.metrics import Metrics, Row, prometheus, read_rows
from recipe_core.trainer.model import Part, build, chunk_layers, read_config
from recipe_core.trainer.optimizer import LossScale, learning_rate
from recipe_core.trainer.parallel import emulated, gathered_units
from recipe_core.trainer.settings import Batch, Optimizer, Split, load_settings
from recipe_core.trainer.shards import write_shards
from recipe_core.trainer.tokens import documents


def write(folder: Path, value: Any) -> Path:
    path = folder / "train.json"
    path.write_text(json.dumps(value))
    return path


def test_settings_are_read_with_their_types(tmp_path: Path) -> None:
    found = load_settings(
        write(
            tmp_path,
            settings(split={"tp": 2, "schedule": "gpipe"}, figures={"peak_flops_per_s": 1}),
        )
    )
    assert found.split == Split(tp=2, schedule="gpipe")
    assert found.data == ("text.txt",)
    assert found.figures.peak_flops_per_s == 1.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": "4"}, "train.json.steps is '4', not int."),
        ({"batch": {"sequence_length": 32}}, "train.json.batch.global_batch is missing."),
        ({"split": {"tq": 2}}, "train.json.split.tq is unknown. Available: tp, pp,"),
        ({"precision": "fp8"}, "train.json.precision is 'fp8'. Use 'bf16' or 'fp16' or 'fp32'."),
        ({"data": "text.txt"}, "train.json.data is 'text.txt', not a list."),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainError) as error:
        load_settings(write(tmp_path, settings(**wrong)))
    assert str(error.value).startswith(said)


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    with pytest.raises(
        TrainError, match=r"global_batch\(64\) is not divisible by dp\(3\) × micro_batch\(2\) = 6"
    ):
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
    chosen = load_settings(
        write(
            tmp_path,
            settings(model={"config": CONFIG | {"tie_word_embeddings": tied}, "tokenizer": "data"}),
        )
    )
    part = Part(build(read_config(chosen, None), chosen), 0, 1)
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
    import torch

    from recipe_core.request.schema import PlanRequest
    from recipe_core.search.plans import plan_candidate

    chosen = load_settings(write(tmp_path, settings(lora={"rank": 4, "alpha": 8, "targets": kind})))
    part = Part(build(read_config(chosen, None), chosen), 0, 1)
    narrow(part, torch.bfloat16)
    assert chosen.lora is not None
    adapt(part, chosen.lora)
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 1, "micro_batch": 1}
    work = {
        "kind": "training",
        "method": "lora",
        "lora_rank": 4,
        "lora_targets": kind,
        "sequence_length": 32,
        "global_batch": 1,
    }
    asked = {
        "model": CONFIG,
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": work,
        "candidate": split,
    }
    plan, row = plan_candidate(PlanRequest.parse(asked))
    estimated = plan.memory([row])["optimizer"][0] / 8
    learning = [parameter for _, parameter in part.learning()]
    assert sum(parameter.numel() for parameter in learning) == estimated
    assert {parameter.dtype for parameter in learning} == {torch.float32}
    assert {parameter.dtype for _, parameter in part.named() if not parameter.requires_grad} == {
        torch.bfloat16
    }


@pytest.mark.parametrize("native", [True, False])
def test_only_bf16_on_a_processor_without_its_products_is_emulated(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    processor, other = torch.device("cpu"), torch.device("meta")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert emulated("bf16", processor) is not native
    assert not any(emulated(precision, processor) for precision in ("fp16", "fp32"))
    assert not emulated("bf16", other)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not emulated("bf16", processor)  # nothing is known


def token_file(folder: Path, count: int) -> Path:
    return write_shards(folder / f"tokens-{count}", [list(range(count))], 512, shard_tokens=50)


def test_sequences_of_a_step_do_not_depend_on_the_number_of_replicas(tmp_path: Path) -> None:
    path = token_file(tmp_path, 8 * 20 + 1)
    alone = Sequences(path, 8, 4, seed=3).batch(6, 0, 1, 2)
    shared = [
        pair for rank in range(2) for pair in Sequences(path, 8, 4, seed=3).batch(6, rank, 2, 1)
    ]
    assert [pair[0].tolist() for pair in alone] == [pair[0].tolist() for pair in shared]
    assert all((pair[1] - pair[0] == 1).all() for pair in alone)


def test_every_sequence_comes_once_each_time_around(tmp_path: Path) -> None:
    found = Sequences(token_file(tmp_path, 8 * 20 + 1), 8, 4, seed=3)
    rounds = [
        [
            int(pair[0][0, 0]) // 8
            for step in range(r * 5, r * 5 + 5)
            for pair in found.batch(step, 0, 1, 4)
        ]
        for r in range(2)
    ]
    assert [sorted(each) for each in rounds] == [list(range(20))] * 2
    assert rounds[0] != rounds[1]
    with pytest.raises(TrainError, match="the texts have 5 tokens"):
        Sequences(token_file(tmp_path, 5), 8, 4, seed=0)


def test_a_line_without_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"words": "b"}\n')
    with pytest.raises(TrainError, match="line 2 is not a JSON object with a text"):
        [list(document) for document in documents(path)]


def test_the_rate_warms_up_and_falls_to_its_least_share() -> None:
    o = Optimizer(learning_rate=1.0, warmup_steps=4, least_rate_share=0.1)
    rates = [learning_rate(o, step, 24) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[14] == pytest.approx(0.55)
    assert rates[24] == pytest.approx(0.1)


def test_the_loss_scale_halves_after_an_overflow() -> None:
    scale = LossScale(used=True)
    first = scale.value
    scale.update(finite=False)
    assert scale.value == first / 2
    for _ in range(1000):
        scale.update(finite=True)
    assert scale.value == first


def row(step: int) -> Row:
    return Row(step, 5.5, 1e-3, 1.0, 0.5, 100.0, 50.0, None, 1 << 20, 64 * step, 1.0)


def test_metrics_go_on_after_the_step_that_is_resumed(tmp_path: Path) -> None:
    first = Metrics(tmp_path, "tiny", 0)
    for step in (1, 2, 3):
        first.write(row(step))
    again = Metrics(tmp_path, "tiny", 2)
    again.write(row(3))
    assert [each["step"] for each in read_rows(tmp_path / "metrics.csv")] == ["1", "2", "3"]
    assert (
        'recipe_training_tokens_total{run="tiny"} 192\n' in (tmp_path / "metrics.prom").read_text()
    )


def test_prometheus_text_escapes_the_name_and_leaves_unknown_values_out() -> None:
    text = prometheus({"loss": 1.5, "mfu": None}, 'a "b"')
    assert text == (
        "# HELP recipe_training_loss Mean loss of the step's tokens, nats.\n"
        "# TYPE recipe_training_loss gauge\n"
        'recipe_training_loss{run="a \\"b\\""} 1.5\n'
    )
