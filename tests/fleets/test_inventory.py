"""Inventories of programs and people as pools, quotas, payments and prices."""

import json
import shlex

import pytest

from recipe_core.base.errors import InputError
from recipe_core.fleets.exports.labels import node_list, partition_name, scheduler_of
from recipe_core.fleets.inventory.read import merge_inventories, read_inventory
from recipe_core.fleets.inventory.tables import SINFO
from recipe_core.fleets.request import FleetRequest, Pool
from tests.fixtures import slurm as slurms
from tests.fixtures.rows import over, table


def node(name, labels, allocatable, spec=None, ready="True", **_):
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec or {},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def listed(*items):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def says(inventory, words):
    text = " ".join(inventory.notes)
    assert all(word in text for word in words), inventory.notes


def plain(pools):
    return [dict(pool) for pool in pools]


@over("row", table("fleet_inventory", "texts"))
def test_tables_and_documents_are_pools(row):
    inventory = read_inventory(row["text"], "it")
    assert inventory.kind == row["kind"]
    owned = [{"term": "owned"} | pool for pool in row["pools"]]
    assert plain(inventory.pools) == owned
    says(inventory, row["notes"])


@over("row", table("fleet_inventory", "nodes"))
def test_a_node_is_a_pool_of_whole_devices(row):
    inventory = read_inventory(listed(node("n1", **row)), "nodes")
    assert plain(inventory.pools) == ([row["pool"]] if row["pool"] else [])
    says(inventory, [row.get("note", "")])


def test_nodes_group_by_device_and_region_and_count_racks():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "topology.kubernetes.io/region": "eu",
        "topology.kubernetes.io/zone": "a",
    }
    rack = "topology.kubernetes.io/rack"
    nodes = [
        node(f"n{k}", labels | {rack: f"r{k // 4}"}, {"nvidia.com/gpu": "8"}) for k in range(12)
    ]
    nodes += [node("m1", labels | {rack: "r9"}, {"nvidia.com/gpu": "8"}, ready="Unknown")]
    nodes += [node("c1", {}, {"cpu": "64"})]
    inventory = read_inventory(listed(*nodes), "nodes")
    (pool,) = inventory.pools
    assert (pool["nodes"], pool["racks"], pool["region"]) == (12, 3, "eu")
    says(inventory, ["not ready are left out: m1", "offer no devices are left out: c1"])
    zones = [
        node(f"z{k}", labels | {"topology.kubernetes.io/zone": f"{k % 3}"}, {"nvidia.com/gpu": 8})
        for k in range(6)
    ]
    (pool,) = read_inventory(listed(*zones), "nodes").pools
    assert (pool["nodes"], pool["racks"]) == (6, 3)


def test_sky_tables_count_nodes_before_totals():
    inventory = read_inventory(table("fleet_inventory", "sky_nodes"), "sky")
    rows = [(pool["device"], pool["nodes"], pool["per_node"]) for pool in inventory.pools]
    assert rows == [("h100-sxm", 2, 8), ("l4", 1, 2)]
    says(inventory, ["10.0.0.4", "10.0.0.5"])
    totals = table("fleet_inventory", "sky_nodes").split("\n\n")[0]
    inventory = read_inventory(totals, "sky")
    rows = [(pool["device"], pool["nodes"], pool["per_node"]) for pool in inventory.pools]
    assert rows == [("h100-sxm", 2, 8), ("l4", 1, 2)]


def queue(name, cohort, **quotas):
    flavors = [
        {
            "name": flavor.replace("_", "-"),
            "resources": [
                {"name": "cpu", "nominalQuota": "900"},
                {"name": "nvidia.com/gpu", "nominalQuota": count, "borrowingLimit": limit},
            ],
        }
        for flavor, (count, limit) in quotas.items()
    ]
    groups = [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": flavors}]
    spec = {"cohortName": cohort, "resourceGroups": groups}
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def over_spec(item, **fields):
    return item | {"spec": item["spec"] | fields}


H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def kueue(*nodes):
    labels = H100
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "big"}, "spec": {"nodeLabels": labels}}
    queues = [queue("chat", "ml", big=(20, 4)), queue("batch", "ml", big=("12", None))]
    return read_inventory(listed(flavor, *queues, *nodes), "kueue")


def test_queues_are_quotas_and_bound_pools():
    inventory = kueue()
    assert (inventory.kind, inventory.pools) == ("kueue", ())
    quotas = [(q.queue, q.cohort, q.flavor, q.device, q.devices) for q in inventory.quotas]
    rows = [("chat", "ml", "big", "h100-sxm", 20), ("batch", "ml", "big", "h100-sxm", 12)]
    assert quotas == rows
    fleet = {"pools": [{"name": "mine", "device": "h100-sxm", "nodes": 6, "term": "reserved"}]}
    merged, notes = merge_inventories(fleet, [inventory])
    assert merged["pools"] == [fleet["pools"][0] | {"nodes": 4}]
    assert "6 machines are 4 by the quotas" in notes[0]
    assert fleet["pools"][0]["nodes"] == 6
    cohort = {**queue("ml", "org", big=(8, None), lost=(9, None)), "kind": "Cohort"}
    shared = kueue(cohort)
    assert [q.devices for q in shared.quotas] == [20, 12, 8]
    says(shared, ["flavours without a device do not count: lost"])
    both = kueue(*(node(f"n{k}", H100, {"nvidia.com/gpu": "8"}) for k in range(5)))
    assert (both.kind, both.pools[0]["nodes"], len(both.quotas)) == ("kubernetes", 5, 2)
    merged, _ = merge_inventories({}, [both])
    assert [pool["nodes"] for pool in merged["pools"]] == [4]
    stopped = kueue(over_spec(queue("old", "ml", big=(64, None)), stopPolicy="Hold"))
    assert len(stopped.quotas) == 2
    says(stopped, ["queues that are stopped are left out: old"])


def allocation(hours, gpu_hours, model=None, labels=None, namespace=None, **costs):
    window = {"start": "2026-11-01T00:00:00Z", "end": f"2026-11-01T{hours:02d}:00:00Z"}
    gpu = {"gpuModel": model} if model else None
    properties = {"namespace": namespace, "labels": labels or {}}
    return {
        "properties": properties,
        "window": window,
        "gpuHours": gpu_hours,
        "gpuAllocation": gpu,
        "totalCost": sum(costs.values()),
        **costs,
    }


def test_an_allocation_tells_what_teams_pay_and_devices_cost():
    h100 = "NVIDIA-H100-80GB-HBM3"
    costs = {
        "chat": allocation(10, 40, h100, {"team": "search"}, gpuCost=100.0, cpuCost=20.0),
        "rag": allocation(10, 10, h100, namespace="search", gpuCost=25.0, ramCost=5.0),
        "web": allocation(10, 0, namespace="web", cpuCost=7.0, pvCost=3.0),
        "__idle__": allocation(10, 0, gpuCost=50.0),
    }
    inventory = read_inventory(json.dumps({"code": 200, "data": [costs]}), "opencost")
    assert inventory.payments == pytest.approx({"search": 15.0, "idle": 5.0, "web": 1.0})
    says(inventory, ["paid in a month: search $10,950, idle $3,650, web $730."])
    assert inventory.prices == {"h100-sxm": pytest.approx(3.0)}
    fleet = {"pools": [{"name": "a", "device": "h100-sxm", "nodes": 1}]}
    fleet["pools"] += [{"name": "b", "device": "h100-sxm", "nodes": 1, "usd_per_device_hour": 2.0}]
    offered = {"name": "c", "device": "h100-sxm", "nodes": 1, "term": "spot", "offer": "x"}
    fleet["pools"] += [offered]
    merged, _ = merge_inventories(fleet, [inventory])
    assert [pool.get("usd_per_device_hour") for pool in merged["pools"]] == [3.0, 2.0, None]


def test_a_fleet_keeps_what_its_owner_stated():
    serving = {"mode": "open", "request_rate": 1.0, "input_tokens": 500, "output_tokens": 100}
    fleet = {
        "models": [{"name": "chat", "model": "llama-3.1-8b", "workload": serving}],
        "pools": [
            {"name": "big", "device": "h100-sxm", "nodes": 2, "region": "eu", "slices": ["any"]},
            {"name": "far", "device": "mi300x", "nodes": 1},
        ],
        "regions": [{"name": "eu"}],
    }
    text = "device,nodes,per_node,region,rack\nh100,3,8,eu,r1\nh100,3,8,eu,r2\nl40s,2,4,us,\n"
    merged, notes = merge_inventories(fleet, [read_inventory(text, "rows.csv")])
    assert [pool["name"] for pool in merged["pools"]] == ["big", "far", "l40s-us"]
    big = {"nodes": 6, "per_node": 8, "racks": 2, "region": "eu", "slices": ["any"]}
    assert merged["pools"][0] == {"name": "big", "device": "h100-sxm"} | big
    assert merged["regions"] == [{"name": "eu"}, {"name": "us"}]
    assert FleetRequest.parse(merged).pool("l40s-us").per_node == 4
    text = " ".join(notes)
    assert "2 machines are now 6" in text
    assert "not in rows.csv: far" in text
    slurm = "NODELIST PARTITION GRES STATE\nn1 gpu gpu:mi300x:8 idle\n"
    fleet["pools"][1]["labels"] = {"scheduler": "hand", "owner": "ml"}
    merged, _ = merge_inventories({"pools": fleet["pools"]}, [read_inventory(slurm, "sinfo")])
    labels = {"scheduler": "hand", "owner": "ml", "partition": "gpu", "nodes": "n1"}
    assert merged["pools"][1]["labels"] == labels
    with pytest.raises(InputError, match=r"the fleet is \[\]\. It is an object"):
        merge_inventories([], [])
    with pytest.raises(InputError, match="pools"):
        merge_inventories({"pools": "many"}, [])
    with pytest.raises(InputError) as error:
        merge_inventories({"pools": [{"name": "A B", "device": "h100-sxm", "nodes": 1}]}, [])
    assert (error.value.field, bool(error.value.hint)) == ("pools.A B.name", True)
    owned = {"name": "a", "device": "h100-sxm", "nodes": 1, "offer": "x"}
    with pytest.raises(InputError, match=r"pools\.a\.offer: goes with rented machines"):
        merge_inventories({"pools": [owned]}, [])


def test_close_names_are_not_sought_for_every_unknown_device(monkeypatch):
    sought = []
    monkeypatch.setattr("difflib.get_close_matches", lambda word, *_, **__: sought.append(word))
    rows = "".join(f"odd{k},1,8\n" for k in range(3))
    inventory = read_inventory(f"device,nodes,per_node\n{rows}rubin,1,8\n", "it")
    assert [pool["device"] for pool in inventory.pools] == ["vr200"]
    assert sought == []


@over("text, words", table("fleet_inventory", "refused"))
def test_what_is_no_inventory_is_refused(text, words):
    with pytest.raises(InputError) as error:
        read_inventory(text, "it")
    assert words in str(error.value)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None, {"spec": 5}], {"labels": []}])
def test_odd_values_in_objects_are_refused_or_count_for_nothing(value):
    for key in ("metadata", "spec", "status"):
        for kind in ("Node", "ClusterQueue"):
            item = {"kind": kind, "metadata": {"name": "n"}, "spec": {}, "status": {}}
            counts_for_nothing(item | {key: value})
    labels = {"nvidia.com/gpu.product": value}
    counts_for_nothing(node("n", labels, {"nvidia.com/gpu": value, "amd.com/gpu": "8"}))
    counts_for_nothing(queue("q", value))
    queues = queue("q", "ml")
    queues["spec"]["resourceGroups"] = [{"flavors": [{"resources": [{"name": value}]}, value]}]
    counts_for_nothing(queues)


def counts_for_nothing(item):
    try:
        inventory = read_inventory(listed(item), "it")
        outcome = (inventory.pools, inventory.quotas)
    except InputError as error:
        outcome = (error.field, bool(error.hint))
    assert outcome in (((), ()), ("inventory", True))


@pytest.mark.skipif(
    bool(slurms.missing()), reason=f"Slurm is not installed: {', '.join(slurms.missing())}"
)
def test_a_real_sinfo_is_read(tmp_path):
    with slurms.cluster(tmp_path, {"big": ("h100", 3), "amd": ("mi300x", 1)}) as slurm:
        slurm.run("scontrol", "update", "nodename=n1", "state=drain", "reason=fan")
        texts = [
            slurm.run("sinfo", *words).stdout
            for words in (
                shlex.split(SINFO)[1:],
                ["-N", "-o", "%N %P %G %t"],
                ["-N", "-O", "partition,gres,nodelist,statelong"],
            )
        ]
    for text in texts:
        inventory = read_inventory(text, "sinfo")
        rows = {p["name"]: (p["device"], p["nodes"], p["per_node"]) for p in inventory.pools}
        assert rows == {"h100-sxm-big": ("h100-sxm", 2, 8), "mi300x-amd": ("mi300x", 1, 8)}, text
        says(inventory, ["n1"])
        for values in inventory.pools:
            pool = Pool.model_validate(values)
            assert scheduler_of(pool) == "slurm"
            assert f"h100-sxm-{partition_name(pool)}" == pool.name or pool.device == "mi300x"
            assert len(node_list(pool).split(",")) == pool.nodes
