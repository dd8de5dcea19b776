"""What is estimated of data loading is what every framework is told."""

from __future__ import annotations

import json

import pytest

from recipe_core.launch.process import Launch
from tests.launch.test_training_launch import flags, plan_candidate, request, training_launch

LOADING = {"workers": 3, "prefetch": 4}


def launched(engine: str, **loading: int) -> Launch:
    asked = request(engine, candidate={"engine": engine}).model_dump(mode="json")
    asked["workload"]["loading"] = {**LOADING, **loading}
    table, row = plan_candidate(type(request(engine)).parse(asked))
    return training_launch(*table.detail(row))


@pytest.mark.parametrize("engine", ["torch", "accelerate", "deepspeed"])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_the_trainers_of_the_bundle_read_it_from_their_settings(engine: str, prefetch: int) -> None:
    settings = json.loads(launched(engine, prefetch=prefetch).files["train.json"])
    assert settings["loading"] == {"workers": 3, "prefetch": prefetch}


def test_megatron_gets_workers_and_builders() -> None:
    words = flags(launched("megatron").processes[0].argv)
    assert (words["num-workers"], words["num-dataset-builder-threads"]) == ("3", "3")
    assert flags(launched("megatron", prefetch=0).processes[0].argv)["num-workers"] == "0"


def test_torchtitan_gets_one_process_that_prefetches() -> None:
    words = flags(launched("torchtitan").processes[0].argv)
    assert words["dataloader.num-workers"] == "1"
    assert words["dataloader.prefetch-factor"] == "4"
    assert {"dataloader.pin-memory", "dataloader.persistent-workers"} <= set(words)
    off = flags(launched("torchtitan", prefetch=0).processes[0].argv)
    assert not [name for name in off if "num-workers" in name or "prefetch" in name]


@pytest.mark.nightly
def test_transformers_gets_processes_and_what_each_makes_ahead() -> None:
    pytest.importorskip("torch", reason="NOT TESTED: transformers' trainer, torch is missing")
    pytest.importorskip("transformers", reason="NOT TESTED: transformers is missing")
    from recipe_core.trainer.hf import loader_arguments
    from recipe_core.trainer.settings import Loading

    for workers, prefetch, processes, each in ((3, 4, 3, 2), (2, 2, 2, 1), (2, 0, 0, None)):
        told = loader_arguments(Loading(workers, prefetch))
        assert told["dataloader_num_workers"] == processes
        assert told["dataloader_prefetch_factor"] == each
        assert told["dataloader_persistent_workers"] is (processes > 0)
