"""Networks of Google Kubernetes Engine: daemons, annotations, libraries and variables of pods."""

import json
import re

import pytest

from recipe_core.targets import target_files, target_refusals
from recipe_core.targets.notes import cluster_notes
from recipe_core.targets.rdma import ACCELERATOR, gke_networks
from tests.fixtures.cluster_schemas import assert_valid
from tests.fixtures.targets import (
    context,
    documents,
    mappings,
    single,
    spread,
    training,
    with_parameters,
)

DEVICE = {"tcpx": "h100-sxm", "tcpxo": "h100-sxm", "rdma": "h200-sxm"}
JOBS = ("jobset/", "kubeflow-pytorchjob/", "volcano/")


def on_gke(name, launch, **more):
    value = context(launch, device=DEVICE[name], devices_per_node=8)
    return with_parameters(value, gke_network=name, **more)


def templates(value, *folders):
    """Path, metadata and specification of every pod template of these targets."""
    return [
        (path, node["metadata"], node["spec"])
        for path, found in documents(value).items()
        if any(f"targets/{folder}" in path for folder in folders)
        for node in mappings(found)
        if "containers" in (node.get("spec") or {}) and "metadata" in node
    ]


@pytest.mark.parametrize("name", DEVICE)
@pytest.mark.parametrize(("launch", "folders"), [(training, JOBS), (spread, ("kubernetes/",))])
def test_pods_have_what_each_network_needs(name, launch, folders):
    network, value = gke_networks().networks[name], on_gke(name, launch(2))
    assert_valid(value)
    found = templates(value, *folders)
    assert {path.split("/")[1] + "/" for path, _, _ in found} == {*folders}
    for path, about, spec in found:
        listed = json.loads(about["annotations"]["networking.gke.io/interfaces"])
        pairs = [(entry["interfaceName"], entry["network"]) for entry in listed]
        expected = zip(network.interfaces, network.networks, strict=True)
        assert pairs == [("eth0", "default"), *expected], path
        (program,) = spec["containers"]
        variables = {entry["name"]: entry.get("value") for entry in program["env"]}
        assert network.env.items() <= variables.items()
        mounted = {entry["name"]: entry["mountPath"] for entry in program["volumeMounts"]}
        assert network.mounts.items() <= mounted.items()
        assert {*mounted} <= {volume["name"] for volume in spec["volumes"]}
        assert spec["nodeSelector"][ACCELERATOR] == network.accelerators[DEVICE[name]]
        assert "affinity" not in spec
        assert not any("rdma/" in key for key in program["resources"]["limits"])
        assert (program["command"][0] == "/bin/bash") is (network.profile is not None)
        daemons = [one["name"] for one in spec.get("initContainers", [])]
        assert daemons == ([network.daemon.name] if network.daemon else [])
        devices = f"devices.gke.io/container.{name}-daemon"
        assert (devices in about["annotations"]) is (network.daemon is not None)


@pytest.mark.parametrize("name", ["tcpx", "tcpxo"])
def test_daemons_end_with_the_program_and_never_move(name):
    (_, _, spec), *_ = templates(on_gke(name, training(2)), "jobset/")
    (daemon,) = spec["initContainers"]
    assert daemon["restartPolicy"] == "Always"
    assert re.search(r":v\d+\.\d+\.\d+$", daemon["image"])
    assert {entry["name"] for entry in daemon["volumeMounts"]} <= {
        volume["name"] for volume in spec["volumes"]
    }
    assert "privileged" not in daemon["securityContext"]


def test_networks_have_the_names_of_the_cluster():
    named = ",".join(f"gpu-nic{n}" for n in range(4))
    (_, about, _), *_ = templates(on_gke("tcpx", training(2), networks=named), "jobset/")
    listed = json.loads(about["annotations"]["networking.gke.io/interfaces"])
    assert [entry["network"] for entry in listed] == ["default", *named.split(",")]
    assert "k8s.v1.cni.cncf.io/networks" not in about["annotations"]
    refused = target_refusals(on_gke("tcpx", training(2), networks="gpu-nic0"))
    assert "names 1, but a3-highgpu-8g has 4 interfaces" in refused["jobset"]


def test_what_cannot_have_the_network_is_refused():
    refused = target_refusals(on_gke("tcpxo", training(2)))
    assert "a TrainJob cannot attach pods to GKE's tcpxo networks" in refused["kubeflow-trainjob"]
    for value in (
        with_parameters(context(training(2), device="h200-sxm"), gke_network="tcpx"),
        on_gke("tcpx", training(2, 4)),
    ):
        assert "GPUDirect-TCPX is of a3-highgpu-8g" in target_refusals(value)["jobset"]


def test_one_node_needs_nothing_and_the_readme_says_what_the_cluster_needs():
    alone = on_gke("tcpx", single())
    assert "networking.gke.io" not in "".join(target_files(alone).values())
    (note, *_) = cluster_notes(on_gke("tcpxo", training(2)), ["jobset"])
    assert "tcpgpudmarxd-dev:v1.0.21" in note
    assert "gpudirect-tcpxo" in note
