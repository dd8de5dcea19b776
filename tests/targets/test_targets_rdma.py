"""Pods on several nodes: the network that the estimate assumes, and the volumes that they share."""

import json
from types import SimpleNamespace

import pytest

from recipe_core.base.errors import InputError
from recipe_core.bundle.write import bundle_files
from recipe_core.hardware.cluster import fabric, fabric_names
from recipe_core.recipe import with_parameters as recipe_with
from recipe_core.recipe.place import Parameters
from recipe_core.targets import form, target_files, target_refusals
from recipe_core.targets.names import cluster_names
from recipe_core.targets.notes import cluster_notes
from recipe_core.targets.recipe_context import place_launch
from tests.fixtures.recipes import recipe_of
from tests.fixtures.rows import over, table
from tests.fixtures.targets import (
    AMD,
    EXAMPLES,
    ROCM,
    context,
    document,
    documents,
    mappings,
    pools,
    single,
    spread,
    training,
    with_parameters,
)

TRAINING = EXAMPLES["training-two-nodes"]
POOLS, INSTINCT = EXAMPLES["pools-two-nodes"], context(spread(2), AMD, image=ROCM)
SEVERAL = (context(spread(2)), POOLS, TRAINING, INSTINCT)
NODES_OF = ("kubernetes/", "kserve-llm/", "jobset/", "kubeflow", "volcano/")


def pods(value):
    """Path, metadata and specification of every pod template with devices in it."""
    return [
        (path, node.get("metadata", node), spec)
        for path, found in documents(value).items()
        if any(f"targets/{target}" in path for target in NODES_OF)
        for node in mappings(found)
        for spec in node.values()
        if isinstance(spec, dict) and {"containers", "volumes"} <= spec.keys()
    ]


def devices(container):
    return container.get("resources", {}).get("limits", {})


@over("value", SEVERAL)
def test_pods_on_several_nodes_ask_for_what_the_estimate_assumes(value):
    resource = {"nvidia": "rdma/ib", "amd": "rdma/rdma_shared_device_a"}[value.vendor]
    looked_at = set()
    for path, _, spec in pods(value):
        for container in spec["containers"]:
            limits = devices(container)
            if "trainjob" in path:  # its devices are the trainer's, beside the patch of the pod
                trainer = document(value, "trainjob.yaml")["spec"]["trainer"]
                limits = trainer["resourcesPerNode"]["limits"]
            if container["name"] == "router":
                continue
            looked_at.add(path)
            assert limits[resource] == "1"
            capabilities = {"drop": ["ALL"], "add": ["IPC_LOCK"]}
            assert container["securityContext"]["capabilities"] == capabilities
            assert spec["securityContext"]["runAsUser"] == 0
    assert looked_at
    (note, *_) = cluster_notes(value, ["kubernetes"])
    assert f"`{resource}`" in note
    assert value.network_title in note
    # without the resource the notes say TCP
    value = with_parameters(value, rdma_resource="none")
    text = "".join(target_files(value).values())
    assert not [word for word in ("rdma/", "IPC_LOCK") if word in text]
    assert {spec["securityContext"]["runAsUser"] for _, _, spec in pods(value)} == {1000}
    (note, *_) = cluster_notes(value, ["kubernetes"])
    assert "over TCP" in note
    assert "`hardware.network: ethernet-100`" in note


@over("launch", [single(), pools()])
def test_pods_on_one_node_ask_for_nothing_more(launch):
    value = with_parameters(context(launch), host_network=True, networks="rdma-0")
    for path, about, spec in pods(value):
        if "kserve-llm" not in path:
            assert spec["securityContext"]["runAsNonRoot"], path
            assert ("hostNetwork" in spec, "annotations" in about) == (False, False)
            keys = [key for container in spec["containers"] for key in devices(container)]
            assert not any("rdma" in key for key in keys)


def test_pools_that_kserve_takes_apart_ask_for_the_network():
    """Prefill and decode of one node are pods of their own there."""
    value = context(pools())
    (note,) = [note for note in cluster_notes(value, ["kserve-llm"]) if "rdma/ib" in note]
    assert note.startswith("On KServe each pod asks")
    assert cluster_notes(value, ["kubernetes"]) == []


def test_a_network_of_the_kernel_needs_nothing():
    value = context(spread(2), network="ethernet-100", network_title="100 Gigabit Ethernet")
    assert all(spec["securityContext"]["runAsNonRoot"] for _, _, spec in pods(value))
    assert not any("TCP" in note for note in cluster_notes(value, ["kubernetes"]))


@over("value", SEVERAL)
def test_pods_are_on_the_networks_of_their_place(value):
    stated = {"rdma_resource": "nvidia.com/hostdev", "networks": "rdma-0,rdma-1"}
    value = with_parameters(value, **stated)
    for path, about, spec in pods(value):
        if any("nvidia.com/hostdev" in devices(container) for container in spec["containers"]):
            assert about["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma-0,rdma-1", path
    text = "".join(target_files(value).values())
    assert text.count("k8s.v1.cni.cncf.io/networks: rdma-0,rdma-1") >= 2
    assert "rdma/ib" not in text


def test_pods_use_the_network_of_their_host_and_the_variables_of_communication():
    value = with_parameters(TRAINING, host_network=True)
    for path, _, spec in pods(value):
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet"), path
    assert "JobSet" in target_refusals(value)["kubeflow-trainjob"]
    variables = {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0"}
    decision = SimpleNamespace(started=lambda: pools(2), deployment=None)
    launch = place_launch(decision, Parameters(communication=variables))
    for process in launch.processes:
        assert (process.env.items() >= variables.items()) == bool(process.devices)
    files = target_files(context(launch, devices_per_node=4))
    assert "NCCL_IB_HCA=mlx5" in files["targets/slurm/node.sh"]
    assert files["targets/kubernetes/deployment-decode-0.yaml"].count("NCCL_IB_HCA") == 1


def test_parameters_of_clusters_are_checked_and_networks_with_a_resource_are_networks():
    known = {name for name in fabric_names() if fabric(name).kind == "scale-out"}
    assert set(cluster_names().networks) <= known
    assert "ethernet-100" in known - set(cluster_names().networks)
    for field, value in table("targets", "refused_parameters"):
        with pytest.raises((ValueError, InputError), match=field):
            Parameters.model_validate({field: value})


def test_shared_volumes_without_a_class_are_said_to_wait():
    value = context(training(2))
    waits = [note for note in cluster_notes(value, ["jobset"]) if "pending" in note]
    assert any("`shared_storage_class`" in note for note in waits)
    mounted = with_parameters(context(spread(2)), model="/data/llama")
    for other, target in (
        (with_parameters(value, shared_storage_class="nfs"), "jobset"),
        (context(single()), "kubernetes"),
        (mounted, "kubernetes"),
    ):
        assert not any("storage" in note for note in cluster_notes(other, [target]))
    assert cluster_notes(value, ["slurm", "skypilot"]) == []


def test_a_bundle_says_what_its_pods_ask_for():
    recipe = recipe_of(nodes=2, candidate={"tp": 8, "pp": 2, "dp": 1})
    text = bundle_files(recipe)["README.md"].decode()
    assert "each pod asks for 1 `rdma/ib`" in text
    assert "`shared_storage_class`" in text
    place = {"rdma_resource": "none", "shared_storage_class": "nfs"}
    place |= {"communication": {"NCCL_SOCKET_IFNAME": "eth0"}}
    files = bundle_files(recipe_with(recipe, Parameters.model_validate(place)))
    text = files["README.md"].decode()
    assert "so nodes talk over TCP" in text
    assert "shared_storage_class" not in text
    processes = json.loads(files["launch.json"])["processes"]
    assert all(process["env"]["NCCL_SOCKET_IFNAME"] == "eth0" for process in processes)
    assert "NCCL_SOCKET_IFNAME=eth0" in files["targets/slurm/node.sh"].decode()
    one_node = bundle_files(recipe_of())["README.md"].decode()
    assert not [word for word in ("RDMA", "TCP") if word in one_node]


def test_the_form_shows_what_is_asked_for_while_it_is_left_open():
    value = context(spread(2))
    open_ = {"rdma_resource": "rdma/ib", "gpu_type": "h100", "host_network": "false"}
    assert {name: form.parameter_default(name, value) for name in open_} == open_
    assert form.parameter_default("rdma_resource", context(single())) == ""
    offered = {
        field.name for fields in form.form_groups(value, ["slurm"]).values() for field in fields
    }
    assert {"gpu_type", "constraint", "communication"} <= offered
    assert "rdma_resource" not in offered
