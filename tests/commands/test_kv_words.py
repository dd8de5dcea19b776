"""Tiers below the devices' cache are started as they were estimated, and read back."""

import pytest
import yaml

from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.commands.meaning import meaning_of
from recipe_core.recipe.build import make_recipe
from recipe_core.recipe.decision import decide
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.of_recipe import target_context
from recipe_core.targets.pod import resources
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.physics.test_kv_tiers import LLAMA_8B, POINTS, lengths, request
from tests.present.test_kv_charts import BOTH


def parsed(offload, **more):
    return PlanRequest.parse(request(LLAMA_8B, lengths(8000, 256, 16, POINTS), offload, **more))


def started(offload, **more):
    return decide(parsed(offload, **more)).started()


def read_back(launch):
    """``options.kv_offload`` as every process that answers says it."""
    told = []
    for process in launch.processes:
        engine, words = process.argv[0], list(process.argv[2:])
        told.append(meaning_of(read_arguments(engine, words), process.env).kv_offload)
    assert all(tiers == told[0] for tiers in told)
    return told[0]


@over(
    "offload, more",
    [
        ({"through": "native", "host_gib": 200.0}, {}),
        ({"through": "native", "host_gib": 80.0}, {"tp": 2}),
        ({"through": "native", "host_gib": 80.0}, {"dp": 2}),
        ({"through": "hicache", "host_gib_per_device": 200e9 / 2**30}, {"engine": "sglang"}),
    ],
)
def test_what_is_started_is_read_back_as_it_was_estimated(offload, more):
    assert read_back(started(offload, **more)) == pytest.approx(offload)


def test_lmcache_is_told_by_a_file_of_the_bundle():
    launch = started(BOTH, tp=2)
    process = launch.processes[0]
    path = process.env["LMCACHE_CONFIG_FILE"].removeprefix("${root}/")
    assert yaml.safe_load(launch.files[path]) == table("kv_words", "lmcache")
    assert "LMCacheConnectorV1" in " ".join(process.argv)
    assert process.env["PYTHONHASHSEED"] == "0"
    assert "lmcache" in launch.requires


def test_hicache_reads_a_folder_in_pages():
    store = {"host_gib": 100, "disk": {"tier": "nvme", "gib": 900, "path": "/data/kv"}}
    process = started(store, engine="sglang").processes[0]
    words = " ".join(process.argv)
    assert "--page-size 64 --enable-hierarchical-cache --hicache-size 107" in words
    assert "--hicache-storage-backend file --hicache-storage-prefetch-policy wait_complete" in words
    assert process.env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == "/data/kv"
    # VLLM counts a server's ranks together (config/vllm.py, cpu_bytes_to_use).
    launch = started({"host_gib_per_device": 50}, tp=2)
    words = launch.processes[0].argv
    assert words[words.index("--kv-offloading-size") + 1] == "100.0"
    assert words[words.index("--kv-offloading-backend") + 1] == "native"


def test_what_contradicts_the_tiers_or_is_too_little_is_refused():
    assert "whole GB" in str(refusal(started, {"host_gib": 0.2}, engine="sglang"))
    value = request(LLAMA_8B, lengths(1024, 64, 4), {"host_gib": 20})
    value["options"]["engine_options"] = {"kv_offloading_size": 40.0}
    error = refusal(decide(PlanRequest.parse(value)).started)
    assert "kv_offloading_size" in str(error)
    # a launch without tiers says nothing of them
    launch = started(None)
    assert read_back(launch) is None
    assert not launch.files
    assert "kv" not in "".join(launch.processes[0].env).casefold()


LMCACHE = '--kv-transfer-config {"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
NIXL = LMCACHE.replace("LMCacheConnectorV1", "NixlConnector")


@over(
    "words, env, told",
    [
        ("--kv-offloading-size 64", {}, {"through": "native", "host_gib": 64}),
        ("--kv-offloading-size 64 --kv-offloading-backend lmcache", {}, None),
        (LMCACHE, {"LMCACHE_MAX_LOCAL_CPU_SIZE": "60"}, {"host_gib_per_device": 60}),
        (LMCACHE, {}, {"host_gib_per_device": 5}),
        (NIXL, {}, None),
    ],
)
def test_commands_of_vllm_are_read(words, env, told):
    arguments = read_arguments("vllm", [LLAMA_8B, *words.split()])
    assert meaning_of(arguments, env).kv_offload == (told and {"through": "lmcache"} | told)


def test_a_command_with_more_memory_than_the_node_has_is_refused():
    command = f"vllm serve {LLAMA_8B} --kv-offloading-size 9000 --max-model-len 8192"
    answer = check_command(command, Ground.of(hardware="h100-sxm:1", input_tokens=2048))
    assert "of a node's host memory" in str(answer)
    assert "not in the estimate (cache in host memory)" not in str(answer)
    # 16 GiB a device are for the engine, the rest for blocks.
    memory = {}
    for offload in (None, {"host_gib": 100}):
        decision = decide(parsed(offload, tp=2))
        launch = decision.started()
        recipe = make_recipe(decision.request)
        context = target_context(recipe, decision, launch)
        memory[offload is None] = resources(context, launch.processes[0])["requests"]["memory"]
    assert memory == {True: "32Gi", False: "132Gi"}
