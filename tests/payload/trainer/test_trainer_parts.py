"""Pieces of the trainer, in this process."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

import itertools
import json
import pickle
import shutil

import pytest

from tests.fixtures.needs import needs
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table
from tests.fixtures.training import training_request
from tests.payload.trainer.conftest import CONFIG, Job, needs_torch, settings

pytestmark = needs_torch
torch = pytest.importorskip("torch")

from recipe_core.payload.trainer.data import Ahead, Sequences, Tokens, write_tokens
from recipe_core.payload.trainer.errors import TrainError
from recipe_core.payload.trainer.main import main
from recipe_core.payload.trainer.metrics import Metrics, Row, prometheus, read_metrics_rows
from recipe_core.payload.trainer.model import (
    Part,
    build_meta_model,
    chunk_layers,
    load_model_config,
)
from recipe_core.payload.trainer.parallel import emulated, gathered_units, resolve_mesh_degrees
from recipe_core.payload.trainer.settings import Batch, Optimizer, Split, load_settings
from recipe_core.payload.trainer.steps import LossScale, learning_rate
from recipe_core.payload.trainer.tokens import documents
from recipe_core.plans.plans import plan_candidate


def chosen(folder, **parts):
    path = folder / "train.json"
    path.write_text(json.dumps(settings(**parts)))
    return load_settings(path)


def part_of(found):
    return Part(build_meta_model(load_model_config(found, None), found), 0, 1)


def written(folder, count=161, vocabulary=512):
    pieces = [list(range(start, min(start + 7, count))) for start in range(0, count, 7)]
    return write_tokens(folder, "tokens", pieces, vocabulary)


def test_settings_are_read_with_their_types_and_a_wrong_field_is_named(tmp_path, capsys):
    split, figures = {"tp": 2, "schedule": "gpipe"}, {"peak_flops_per_s": 1}
    found = chosen(tmp_path, split=split, figures=figures)
    assert found.split == Split(tp=2, schedule="gpipe")
    assert (found.data, found.figures.peak_flops_per_s) == (("text.txt",), 1.0)
    for message, wrong in table("trainer", "wrong_settings"):
        assert str(refusal(chosen, tmp_path, kind=TrainError, **wrong)).startswith(message)
    assert main(["--config", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith("train: cannot read")


def test_degrees_follow_the_plan_and_an_elastic_run_follows_the_devices():
    split, batch = Split(tp=2, pp=2, dp=8, shard=4), Batch(128, 64, 2)
    planned = resolve_mesh_degrees(split, batch, 32, elastic=False)
    assert (planned.replicate, planned.shard, planned.micro_batches) == (2, 4, 4)
    fewer = resolve_mesh_degrees(split, batch, 16, elastic=True)
    assert (fewer.replicate, fewer.shard, fewer.micro_batches) == (1, 4, 8)
    with pytest.raises(TrainError, match="TP 2 × PP 2 × DP 8 = 32 ≠ 16"):
        resolve_mesh_degrees(split, batch, 16, elastic=False)
    with pytest.raises(TrainError, match=r"global_batch 64 .* DP 3 × micro_batch 2 = 6"):
        resolve_mesh_degrees(split, batch, 12, elastic=True)
    # chunks hold every layer once
    assert [list(chunk_layers(7, chunk, 3)) for chunk in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


ENDS = ((False, ["embed_tokens", "norm lm_head"]), (True, ["embed_tokens norm lm_head"]))


@pytest.mark.parametrize(("tied", "ends"), ENDS)
def test_units_are_torchtitans(tmp_path, tied, ends):
    """Embedding, layers, norm and head, which stay whole; one table for both ends is one unit."""
    config = CONFIG | {"tie_word_embeddings": tied}
    part = part_of(chosen(tmp_path, model={"config": config, "tokenizer": "data"}))
    names = {module: name.rpartition(".")[2] for name, module in part.named_modules()}
    units = [
        (" ".join(names[module] for module in unit), reshards)
        for unit, reshards in gathered_units(part, reshard=True)
    ]
    layers = [(str(index), True) for index in range(4)]
    assert units == [*((unit, True) for unit in ends[:-1]), *layers, (ends[-1], False)]


ATTENTION, MLP = ["q", "k", "v", "o"], ["gate", "up", "down"]
KINDS = (("attention", ATTENTION), ("mlp", MLP), ("all", ATTENTION + MLP))


@needs("adapters", "peft")
@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_adapters_are_where_they_are_asked_for_and_as_many_as_are_estimated(tmp_path, kind, names):
    found = chosen(tmp_path, lora={"rank": 4, "alpha": 8, "targets": kind})
    part = part_of(found)
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 1, "micro_batch": 1}
    work = {"sequence_length": 32, "global_batch": 1, "lora_rank": 4, "lora_targets": kind}
    cpu = {"device": "cpu", "per_node": 1}
    plan, row = plan_candidate(training_request(split, 1, CONFIG, cpu, method="lora", **work))
    learning = dict(part.learning())
    estimated = plan.spec.memory(plan, [row])["optimizer"][0] / 8
    assert sum(parameter.numel() for parameter in learning.values()) == estimated
    assert {parameter.dtype for parameter in learning.values()} == {torch.float32}
    places = {name.split(".")[-4].removesuffix("_proj") for name in learning}
    assert places == set(names)


@pytest.mark.parametrize("native", [True, False])
def test_only_bf16_on_a_processor_without_its_products_is_emulated(native, monkeypatch):
    processor, other = torch.device("cpu"), torch.device("meta")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert emulated("bf16", processor) is not native
    assert not any(emulated(precision, processor) for precision in ("fp16", "fp32"))
    assert not emulated("bf16", other)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not emulated("bf16", processor)  # nothing is known


def test_every_sequence_comes_once_each_time_around_whatever_the_replicas(tmp_path):
    found = Sequences(written(tmp_path), 8, 4, seed=3)
    alone = found.batch(6, 0, 1, 2)
    shared = [pair for rank in range(2) for pair in found.batch(6, rank, 2, 1)]
    assert [pair[0].tolist() for pair in alone] == [pair[0].tolist() for pair in shared]
    assert all((pair[1] - pair[0] == 1).all() for pair in alone)
    steps = [found.batch(step, 0, 1, 4) for step in range(10)]
    order = [int(pair[0][0, 0]) // 8 for step in steps for pair in step]
    assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
    assert order[:20] != order[20:]
    with pytest.raises(TrainError, match="the texts have 5 tokens"):
        Sequences(written(tmp_path / "few", 5), 8, 4, seed=3)
    # a line without text is named
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"words": "b"}\n')
    with pytest.raises(TrainError, match="line 2 is not a JSON object with a text"):
        [list(document) for document in documents(path)]


def test_the_rate_warms_up_and_falls_and_the_loss_scale_halves_after_an_overflow():
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


def test_metrics_go_on_after_the_step_that_is_resumed_and_prometheus_reads_them(tmp_path):
    for done, steps in ((0, (1, 2, 3)), (2, (3,))):
        metrics = Metrics(tmp_path, "tiny", done)
        for step in steps:
            figures = (5.5, 1e-3, 1.0, 0.5, 100.0, 50.0, None, 1 << 20)
            metrics.write(Row(step, *figures, 64 * step, 1.0))
    record = tmp_path / "metrics.csv"
    assert [row["step"] for row in read_metrics_rows(record)] == ["1", "2", "3"]
    whole = record.read_bytes()
    for damage in (
        b"4,\xff\n",
        b"\0" * 100_000,
        b"4,no number" + b"," * 11 + b"\n",
        b"\xb2,1\n\n,\n",
    ):
        record.write_bytes(whole + damage)  # as a loss of power leaves it
        assert [row["step"] for row in read_metrics_rows(record)] == ["1", "2", "3"]
        Metrics(tmp_path, "tiny", 3)
        assert record.read_bytes() == whole
    text = (tmp_path / "metrics.prom").read_text()
    assert 'recipe_training_tokens_total{run="tiny"} 192\n' in text
    assert prometheus({"loss": 1.5, "mfu": None}, 'a "b"') == (  # what is unknown is left out
        "# HELP recipe_training_loss Mean loss of the step's tokens, nats.\n"
        "# TYPE recipe_training_loss gauge\n"
        'recipe_training_loss{run="a \\"b\\""} 1.5\n'
    )


# Tokens as mapped files, and batches made ahead: the same numbers whoever makes them


def test_numbers_are_as_wide_as_the_vocabulary_needs(tmp_path):
    for vocabulary, width in ((512, 2), (65_536, 2), (65_537, 4), (200_000, 4)):
        path = written(tmp_path / str(vocabulary), vocabulary=vocabulary)
        assert path.stat().st_size == width * 161
        tokens = Tokens(path)
        assert len(tokens) == 161
        for start, stop, end in ((45, 105, 105), (150, 400, 161), (7, 7, 7)):
            assert tokens[start:stop].tolist() == list(range(start, end))
    # processes that get tokens map the same file
    text = pickle.dumps(tokens)
    assert len(text) < 1000
    assert pickle.loads(text)[140:161].tolist() == tokens[140:161].tolist()


def test_a_token_file_appears_whole_and_is_written_once(tmp_path):
    path = written(tmp_path)
    before = path.stat().st_mtime_ns

    def never():
        raise AssertionError("made again")
        yield []

    assert write_tokens(tmp_path, "tokens", never(), 512) == path
    assert path.stat().st_mtime_ns == before
    path.unlink()
    with pytest.raises(AssertionError):
        write_tokens(tmp_path, "tokens", never(), 512)
    assert not path.exists()
    # one that cannot be read is named with a way out
    path.write_bytes(b"")
    with pytest.raises(TrainError, match=r"cannot read the tokens in .*tokens"):
        Tokens(path)


def test_batches_made_ahead_are_those_made_in_place(tmp_path):
    """Over four epochs, from a step in the middle: each epoch has an order of its own."""
    sequences = Sequences(written(tmp_path), 8, 4, seed=3)
    for workers, prefetch in itertools.product((1, 3), (0, 1, 5)):
        ahead = Ahead(sequences, (1, 2, 1), workers, prefetch, steps=20)
        for step in range(3, 20):
            made, plain = ahead.batch(step), sequences.batch(step, 1, 2, 1)
            assert [pair[0].tolist() for pair in made] == [pair[0].tolist() for pair in plain]
        ahead.close()


@pytest.mark.torchrun
@pytest.mark.nightly
def test_a_run_is_bit_for_bit_the_same_with_and_without_prefetch_and_resumed(tmp_path):
    parts = {"steps": 6, "checkpoints": {"every_steps": 3, "keep": 5}}
    plain = Job(tmp_path / "plain", **parts, loading={"workers": 1, "prefetch": 0})
    ahead = Job(tmp_path / "ahead", **parts, loading={"workers": 2, "prefetch": 3})
    Job.run_several([plain, ahead], 1)
    assert [row["step"] for row in plain.rows()] == [str(step) for step in range(1, 7)]
    assert ahead.losses() == plain.losses()
    shutil.rmtree(max((ahead.run_folder / "checkpoints").glob("step-*")))
    ahead.write(**parts, loading={"workers": 3, "prefetch": 2})
    shown = ahead.finish(1)
    assert "step 4 of 6" in shown
    assert "step 3 of 6" not in shown
    assert ahead.losses() == plain.losses()
    assert len(ahead.rows()) == 6
