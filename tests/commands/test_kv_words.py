"""Tiers below the devices' cache are started as they were estimated, and read back."""

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.commands.option_meanings import Meant
from recipe_core.recipe.build import make_recipe
from recipe_core.recipe.decision import decide
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.recipe_context import target_context
from recipe_core.targets.resources import container_resources
from tests.estimates.test_caches import LLAMA_8B, POINTS, lengths, request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table


def decided(offload, **more):
    value = request(LLAMA_8B, lengths(8000, 256, 16, POINTS), offload, **more)
    return decide(PlanRequest.parse(value))


def started(offload, **more):
    return decided(offload, **more).started()


def read_back(launch):
    """``options.kv_offload`` as every process that answers says it."""
    first, *others = (
        Meant(Arguments(process.argv[0], list(process.argv[2:])), process.env).kv_offload
        for process in launch.processes
    )
    assert all(tiers == first for tiers in others)
    return first


def test_lmcache_is_told_by_a_file_and_hicache_reads_a_folder_in_pages():
    launch = started(table("kv_words", "both"), tp=2)
    process = launch.processes[0]
    path = process.env["LMCACHE_CONFIG_FILE"].removeprefix("${root}/")
    assert parse_yaml(launch.files[path]) == table("kv_words", "lmcache")
    assert "LMCacheConnectorV1" in " ".join(process.argv)
    assert (process.env["PYTHONHASHSEED"], "lmcache" in launch.requires) == ("0", True)
    store = {"host_gib": 100, "disk": {"tier": "nvme", "gib": 900, "path": "/data/kv"}}
    process = started(store, engine="sglang").processes[0]
    words = " ".join(process.argv)
    assert "--page-size 64 --enable-hierarchical-cache --hicache-size 107" in words
    assert "--hicache-storage-backend file --hicache-storage-prefetch-policy wait_complete" in words
    assert process.env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == "/data/kv"
    # VLLM counts a server's ranks together (config/vllm.py, cpu_bytes_to_use).
    words = " ".join(started({"host_gib_per_device": 50}, tp=2).processes[0].argv)
    for option in ("--kv-offloading-size 100.0", "--kv-offloading-backend native"):
        assert option in words


def test_words_are_read_back_as_estimated_and_refused_where_the_node_or_options_contradict():
    for offload, more in table("kv_words", "started"):
        assert read_back(started(offload, **more)) == pytest.approx(offload), (offload, more)
    for words, env, tiers in table("kv_words", "read"):
        arguments = Arguments("vllm", [LLAMA_8B, *words.split()])
        assert Meant(arguments, env).kv_offload == tiers, words
    assert "whole GB" in str(refusal(started, {"host_gib": 0.2}, engine="sglang"))
    value = request(LLAMA_8B, lengths(1024, 64, 4), {"host_gib": 20})
    value["options"]["engine_options"] = {"kv_offloading_size": 40.0}
    assert "kv_offloading_size" in str(refusal(decide(PlanRequest.parse(value)).started))
    # a launch without tiers says nothing of them
    launch = started(None)
    assert (read_back(launch), bool(launch.files)) == (None, False)
    assert "kv" not in "".join(launch.processes[0].env).casefold()
    command = f"vllm serve {LLAMA_8B} --kv-offloading-size 9000 --max-model-len 8192"
    answer = str(
        judge_command(command, CommandContext.of(hardware="h100-sxm:1", input_tokens=2048))
    )
    assert "of a node's host memory" in answer
    assert "not in the estimate (cache in host memory)" not in answer
    # 16 GiB a device are for the engine, the rest for blocks.
    for offload, memory in ((None, "32Gi"), ({"host_gib": 100}, "132Gi")):
        decision = decided(offload, tp=2)
        launch = decision.started()
        context = target_context(make_recipe(decision.request), decision, launch)
        assert container_resources(context, launch.processes[0])["requests"]["memory"] == memory
