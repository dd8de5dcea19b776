"""Tokens as mapped shards, and batches made ahead: the same numbers whoever makes them."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Job, needs_torch

pytestmark = needs_torch
pytest.importorskip("torch")

from recipe_core.trainer.data import Sequences
from recipe_core.trainer.errors import TrainError
from recipe_core.trainer.prefetch import Ahead
from recipe_core.trainer.shards import Tokens, write_shards


def shards(folder: Path, count: int = 161, vocabulary: int = 512) -> Path:
    pieces = [list(range(start, min(start + 7, count))) for start in range(0, count, 7)]
    return write_shards(folder / "tokens", pieces, vocabulary, shard_tokens=50)


def test_numbers_are_as_wide_as_the_vocabulary_needs(tmp_path: Path) -> None:
    for vocabulary, width in ((512, 2), (65_536, 2), (65_537, 4), (200_000, 4)):
        folder = shards(tmp_path / str(vocabulary), vocabulary=vocabulary)
        sizes = [path.stat().st_size for path in sorted(folder.glob("*.bin"))]
        assert sizes == [width * count for count in (50, 50, 50, 11)]
        tokens = Tokens(folder)
        assert len(tokens) == 161
        for start, stop, end in ((45, 105, 105), (150, 400, 161), (7, 7, 7)):
            assert tokens[start:stop].tolist() == list(range(start, end))


def test_shards_appear_whole_and_are_made_once(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    before = (folder / "index.json").stat().st_mtime_ns

    def never() -> Any:
        raise AssertionError("made again")
        yield []

    assert write_shards(folder, never(), 512) == folder
    assert (folder / "index.json").stat().st_mtime_ns == before
    shutil.rmtree(folder)
    with pytest.raises(AssertionError):
        write_shards(folder, never(), 512)
    assert not folder.exists()


def test_a_writer_that_comes_second_drops_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_is_first() -> Any:
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: 1)  # another process
            shards(tmp_path)
        yield [1, 2, 3]

    folder = write_shards(tmp_path / "tokens", other_is_first(), 512)
    assert len(Tokens(folder)) == 161
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_processes_that_get_tokens_map_the_same_files(tmp_path: Path) -> None:
    tokens = Tokens(shards(tmp_path))
    text = pickle.dumps(tokens)
    assert len(text) < 1000
    assert pickle.loads(text)[140:161].tolist() == tokens[140:161].tolist()


def test_damaged_shards_are_named_with_a_way_out(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    for index in ("{}", "no", json.dumps({"dtype": "<u2", "tokens": [500]})):
        (folder / "index.json").write_text(index)
        with pytest.raises(TrainError, match=r"cannot read the tokens in .*tokens"):
            Tokens(folder)


def test_batches_made_ahead_are_those_made_in_place(tmp_path: Path) -> None:
    """Over four epochs, from a step in the middle: each epoch has an order of its own."""
    sequences = Sequences(shards(tmp_path), 8, 4, seed=3)
    for workers, prefetch in itertools.product((1, 3), (0, 1, 5)):
        ahead = Ahead(sequences, (1, 2, 1), workers, prefetch, steps=20)
        for step in range(3, 20):
            made, plain = ahead.batch(step), sequences.batch(step, 1, 2, 1)
            assert [pair[0].tolist() for pair in made] == [pair[0].tolist() for pair in plain]
        ahead.close()


@pytest.mark.torchrun
@pytest.mark.nightly
def test_a_run_is_bit_for_bit_the_same_with_and_without_prefetch_and_resumed(
    tmp_path: Path,
) -> None:
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
