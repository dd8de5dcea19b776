"""Bundles on slices: what pods and jobs ask for, by the clusters' schemas."""

from recipe_core.request.schema import PlanRequest
from recipe_core.targets.deployments.read import read_deployment
from recipe_core.targets.slurm import sbatch_directives
from tests.fixtures.cluster_schemas import assert_valid
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.rows import over
from tests.fixtures.targets import document, with_parameters


def bundle(device):
    load = {"mode": "closed", "input_tokens": 512, "output_tokens": 128, "concurrency": 4}
    hardware = {"device": device, "per_node": 1}
    values = {"model": "Qwen/Qwen2.5-7B-Instruct", "hardware": hardware, "workload": load}
    return bundle_for_request(PlanRequest.parse(values))


@over(
    "device, resource, label, gres",
    [
        ("h100-sxm-mig-2g.20gb", "nvidia.com/mig-2g.20gb", "NVIDIA-H100-80GB-HBM3", "2g.20gb:1"),
        ("mi300x-cpx-nps4", "amd.com/cpx_nps4", "AMD_Instinct_MI300X_OAM", "mi300x:1"),
    ],
)
def test_pods_and_jobs_ask_for_slices_of_the_devices_nodes(device, resource, label, gres):
    written = bundle(device)
    assert_valid(written.context)
    pod = document(written.context, "kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits[resource] == "1"
    assert not {"nvidia.com/gpu", "amd.com/gpu"} & set(limits)
    assert label in str(pod["affinity"])
    # its share of the node's memory, which whole devices' shares are several times of
    node = written.context.devices_of_node
    assert (node, limits["memory"]) == {24: (24, "85Gi"), 64: (64, "34Gi")}[node]
    options = sbatch_directives(written.context)
    assert options["gpus-per-node"] == gres
    mine = with_parameters(written.context, gpu_type="a100_1g.10gb")
    assert sbatch_directives(mine)["gpus-per-node"] == "a100_1g.10gb:1"
    assert f"Pods ask for {resource}" in written.files["README.md"].decode()
    # which is read as the same slice; without nodes' names nothing says whose it is
    text = written.files["targets/kubernetes/deployment.yaml"].decode()
    (engine,) = read_deployment(text, "deployment.yaml").engines
    assert (engine.place.device, engine.place.per_node, engine.place.notes) == (device, 1, ())
    (engine,) = read_deployment(text.replace("product", "other"), "deployment.yaml").engines
    assert engine.place.notes == (f"{resource} is a part of a device; judged on a whole one.",)
    assert not any(path.endswith("slurm/device.sh") for path in written.files)
