"""Addresses and ports of other processes, filled in where pools stand behind a router."""

from __future__ import annotations

from pathlib import Path

from recipe_core.bundle.write import write_bundle
from recipe_core.launcher.plan import load_plan, unknown_nodes
from recipe_core.recipe import make_recipe
from tests.conftest import make_request

POOLS = {"engine": "vllm", "pp": 1, "dp": 1, "replicas": 2}


def bundle_of_pools(tmp_path: Path, nodes: int) -> Path:
    candidate = POOLS | {"tp": 2 * nodes, "prefill": {"tp": 2 * nodes, "replicas": 2}}
    request = make_request("Qwen/Qwen3-32B", "h100-sxm", 8, nodes, candidate=candidate)
    return write_bundle(make_recipe(request), tmp_path / "bundle")


def test_pools_of_one_node_find_each_other(tmp_path: Path) -> None:
    plan = load_plan(bundle_of_pools(tmp_path, 1), port=9000)
    router = plan.processes[0]
    assert unknown_nodes(plan) == []
    assert [word for word in router.argv if word.startswith("http")] == [
        f"http://127.0.0.1:{9001 + n}" for n in range(4)
    ]


def test_pools_over_nodes_need_every_address(tmp_path: Path) -> None:
    bundle = bundle_of_pools(tmp_path, 2)
    assert unknown_nodes(load_plan(bundle, node=0, head="10.0.0.1")) == [1]
    plan = load_plan(bundle, node=0, head="10.0.0.1,10.0.0.2")
    assert unknown_nodes(plan) == []
    assert any(word.startswith("http://10.0.0.2:") for word in plan.processes[0].argv)
