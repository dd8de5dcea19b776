"""What was simulated, or sized, is what is rented: devices in the files of a bundle."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.documents import parse_yaml
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe import Additions, make_recipe
from recipe_core.recipe.decision import decide
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest
from recipe_core.scaling.answer import simulate_over_time
from recipe_core.scaling.policies.rows import replica_bounds_of
from recipe_core.scaling.scenario import prepare_deployment
from recipe_core.scaling.summary import request_with_policy
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.size import size_devices
from recipe_core.targets import each_target
from recipe_core.targets.layout import replica_devices
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.targets import with_parameters

POLICIES = table("targets_scaling", "policies")
WRITTEN_BY = table("targets_scaling", "written_by")
DENSE, EXPERTS = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"
SPLITS = {
    f"{engine}-tp{tp}-dp{dp}": (DENSE, {"engine": engine, "tp": tp, "pp": 1, "dp": dp})
    for engine, tp, dp in product(("vllm", "sglang"), (1, 2), (1, 2, 8))
    if tp * dp <= 8 and (engine == "vllm" or dp != 8)
}
SPLITS |= {
    "experts-apart": (EXPERTS, {"engine": "vllm", "tp": 2, "pp": 1, "dp": 2, "ep": 1}),
    "experts-shared": (EXPERTS, {"engine": "vllm", "tp": 1, "pp": 1, "dp": 4, "ep": 4}),
    "two-nodes": (DENSE, {"engine": "vllm", "tp": 8, "pp": 2, "dp": 1}),
}
POOLS = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "replicas": 2, "prefill": {"tp": 1}}
WHOLE = "aws-p5.48xlarge-h100-sxm-eu-north-1"
SPOT = "aws-p5.48xlarge-h100-sxm-us-east-1-spot"
"""Machines of eight, rented whole."""
ASKED = {"nvidia.com/gpu", "amd.com/gpu"}


def request_of(model, candidate, policy, **options):
    return PlanRequest.parse(
        {
            "model": model,
            "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 2},
            "workload": {
                "input_tokens": 512,
                "output_tokens": 64,
                "concurrency": 64,
                "over_time": {"rates": [2.0, 4.0], "days": 0.1},
            },
            "objective": {"optimize": "cost", "limits": {"ttft_ms": 8000, "tpot_ms": 200}},
            "candidate": candidate,
            "options": {"scaling": {"policy": policy, **POLICIES[policy]}, **options},
        }
    )


def bundle(request, **parameters):
    place = Parameters.model_validate({"gateway_metric": "requests_total", **parameters})
    return bundle_of(make_recipe(request, Additions(parameters=place)))


def written(context, target):
    """Documents of a target, and of what it scales; why there are none as a text."""
    key = "key" if target == "skypilot" else None  # a service answers the internet
    targets = each_target(with_parameters(context, api_key_secret=key))
    files = targets[target]
    if isinstance(files, str):
        return files
    if target in ("kubernetes-keda", "kubernetes-hpa"):
        files = {**targets["kubernetes"], **files}
    return [parse_yaml(text, path) for path, text in files.items() if path.endswith(".yaml")]


def requested(part):
    """Devices that the containers of a part of a manifest ask for."""
    if isinstance(part, list):
        return sum(map(requested, part))
    if not isinstance(part, dict):
        return 0
    limits = part.get("resources", {}).get("limits", {}) if "image" in part else {}
    own = sum(int(count) for name, count in limits.items() if name in ASKED)
    return own + sum(requested(value) for value in part.values())


def group(template):
    """Devices of one of a workload: a pod, or the pods of a group."""
    size = template.get("size", 1)
    if "workerTemplate" in template:
        worker = (size - 1) * requested(template["workerTemplate"])
        return requested(template["leaderTemplate"]) + worker
    return requested(template)


def rents(target, documents):
    """Devices that files can rent at their fewest and most replicas."""
    kinds = {document.get("kind", ""): document for document in documents}
    if target in ("kubernetes", "kubernetes-keda", "kubernetes-hpa"):
        workload = kinds.get("Deployment") or kinds["LeaderWorkerSet"]
        work = workload["spec"]
        each = group(work.get("leaderWorkerTemplate") or work["template"])
        if target == "kubernetes":
            return each * work["replicas"], each * work["replicas"]
        if target == "kubernetes-keda":
            bounds = kinds["ScaledObject"]["spec"]
            return each * bounds["minReplicaCount"], each * bounds["maxReplicaCount"]
        bounds = kinds["HorizontalPodAutoscaler"]["spec"]
        return each * bounds["minReplicas"], each * bounds["maxReplicas"]
    if target == "knative":
        template = kinds["Service"]["spec"]["template"]
        names = [f"autoscaling.knative.dev/{end}-scale" for end in ("min", "max")]
        each = requested(template["spec"])
        return tuple(each * int(template["metadata"]["annotations"][name]) for name in names)
    if target == "kserve":
        predictor = kinds["InferenceService"]["spec"]["predictor"]
        each = requested(predictor)
        return each * predictor["minReplicas"], each * predictor["maxReplicas"]
    if target == "kserve-llm":
        spec = kinds["LLMInferenceService"]["spec"]
        size = spec["parallelism"].get("pipeline", 1) if "worker" in spec else 1
        each = requested(spec["template"]) + (size - 1) * requested(spec.get("worker", {}))
        bounds = spec.get("scaling") or dict.fromkeys(
            ("minReplicas", "maxReplicas"), spec.get("replicas")
        )
        return each * bounds["minReplicas"], each * bounds["maxReplicas"]
    if target == "llm-d":
        decode = documents[0]["decode"]
        each = decode["parallelism"]["tensor"] * decode["parallelism"]["data"]
        assert requested(decode) in (0, each)
        return each * decode["replicas"], each * decode["replicas"]
    if target == "skypilot":
        (count,) = documents[0]["resources"]["accelerators"].values()
        each, service = count * documents[0]["num_nodes"], documents[0]["service"]
        bounds = service.get("replica_policy") or dict.fromkeys(
            ("min_replicas", "max_replicas"), service.get("replicas")
        )
        return each * bounds["min_replicas"], each * bounds["max_replicas"]
    if target == "ray-serve":
        (model,) = documents[0]["applications"][0]["args"]["llm_configs"]
        engine, config = model["engine_kwargs"], model["deployment_config"]
        each = engine["tensor_parallel_size"] * engine.get("pipeline_parallel_size", 1)
        assert engine.get("data_parallel_size", 1) == 1
        bounds = config.get("autoscaling_config") or dict.fromkeys(
            ("min_replicas", "max_replicas"), config.get("num_replicas")
        )
        return each * bounds["min_replicas"], each * bounds["max_replicas"]
    planner = documents[0]
    return planner["min_endpoint"] * planner["decode_engine_num_gpu"], planner["max_gpu_budget"]


def refused(split, target):
    """Whether a target has no place for such a server, whatever scales it."""
    if split == "two-nodes":
        return target in ("knative", "kserve", "skypilot", "ray-serve")
    return not split.startswith("vllm") and target in ("kserve-llm", "ray-serve")


@over("split, policy", list(product(SPLITS, WRITTEN_BY)), share=7)
def test_files_rent_the_devices_that_were_simulated_at_every_count(split, policy):
    request = request_of(*SPLITS[split], policy)
    devices = prepare_deployment(request).fleet.devices
    scaling, found = request.options.scaling, bundle(request)
    launch, facts = found.context.launch, found.recipe.estimate["scaling"]
    used = sum(len(process.devices) for process in launch.processes)
    assert facts["devices_per_replica"] == replica_devices(launch) == used == devices
    least, most = replica_bounds_of(scaling)
    for target in WRITTEN_BY[policy]:
        documents = written(found.context, target)
        if isinstance(documents, str):
            assert refused(split, target), documents
            continue
        low, high = rents(target, documents)
        assert high == most * devices == facts["devices_rented_at_most"], target
        assert low in (least * devices, max(least, 1) * devices), target
    money = f"${facts['usd_per_month_at_most']:,.0f}"
    readme = found.files["README.md"].decode()
    assert f"| at most | {most} | {most * devices} | {money} |" in readme


def test_pools_are_one_replica():
    request = request_of(DENSE, POOLS, "fixed")
    found = bundle(request)
    devices = found.recipe.estimate["scaling"]["devices_per_replica"]
    assert devices == 3 == replica_devices(found.context.launch)
    most = request.options.scaling.max_replicas
    assert rents("kubernetes", written(found.context, "kubernetes"))[1] == most * devices


def test_a_bundle_repeats_what_was_simulated_until_its_request_changes():
    """One policy, from a stated dp of 8 to the hours that its bundle's README states."""
    candidate = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 8}
    request = request_of(DENSE, candidate, "keda")
    answer = simulate_over_time(request)
    policy = answer.policy("keda")
    assert answer.candidate["dp"] == answer.devices_per_replica == 1
    assert answer.per_replica == {"workload.concurrency": 8}
    chosen = PlanRequest.parse(request_with_policy(request, answer, policy="keda").to_json())
    found = bundle(chosen)
    simulated = found.recipe.estimate["scaling"]["simulated"]
    assert simulated["current"]
    assert simulated["usd_per_month"] == pytest.approx(policy.usd_per_month)
    spent = policy.gpu_hours / (answer.load.span_s / 3600)
    assert simulated["device_hours_per_month"] == pytest.approx(spent * 730.5)
    readme = found.files["README.md"].decode()
    assert f"on average | ${policy.usd_per_month:,.0f} |" in readme
    other = chosen.options.scaling.model_copy(update={"max_replicas": 7})
    options = chosen.options.model_copy(update={"scaling": other})
    changed = bundle(chosen.model_copy(update={"options": options}))
    assert not changed.recipe.estimate["scaling"]["simulated"]["current"]
    assert "changed after its policy was simulated" in changed.files["README.md"].decode()


def test_whole_machines_are_paid_whole_and_shared_but_by_skyserve():
    offer = {"offer": WHOLE}
    request = request_of(DENSE, {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}, "fixed")
    request = request.model_copy(update={"hardware": request.hardware.model_copy(update=offer)})
    fleet = prepare_deployment(request).fleet
    assert [int(fleet.rented(count)) for count in (1.0, 8.0, 9.0)] == [8, 8, 16]
    answer = simulate_over_time(request, policies=["fixed", "skyserve"])
    shared, alone = answer.policy("fixed"), answer.policy("skyserve")
    assert alone.gpu_hours == pytest.approx(8 * alone.replica_hours)
    assert shared.gpu_hours < 8 * shared.replica_hours or shared.replicas.max == 1
    assert shared.usd == pytest.approx(shared.gpu_hours * answer.usd_per_replica_hour)


SPOT_ASKED = {
    "skypilot": "use_spot: true",
    "kubernetes": "eks.amazonaws.com/capacityType: SPOT",
}


def test_a_spot_price_is_said_and_asked_for_where_a_target_can():
    request = request_of(DENSE, {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}, "fixed")
    hardware = request.hardware.model_copy(update={"offer": SPOT})
    found = bundle(request.model_copy(update={"hardware": hardware}), api_key_secret="key")
    readme = found.files["README.md"].decode()
    (said,) = [line for line in readme.splitlines() if line.startswith("The price is a spot price")]
    asking, silent = said.split("These cannot ask for them")
    for target, words in SPOT_ASKED.items():
        assert any(words in text for text in found.targets[target].values()), target
        assert f"`{target}`" in asking
    for target, files in found.targets.items():
        if isinstance(files, dict) and target != "monitoring":
            assert (f"`{target}`" in asking) != (f"`{target}`" in silent), target
    assert "`slurm`" in silent
    assert "`docker`" in silent


@st.composite
def sizes(draw):
    """Requests whose hardware is open, of markets small enough to be sized at once."""
    devices = draw(st.lists(st.sampled_from(MARKET), min_size=1, max_size=2, unique=True))
    market = {"devices": devices, "most_devices": 24}
    if draw(st.booleans()):
        market["providers"] = ["Amazon Web Services"]  # machines that are rented whole
    return {
        "model": draw(st.sampled_from((DENSE, EXPERTS, "Qwen/Qwen2.5-72B-Instruct"))),
        "hardware": {"any": market},
        "workload": {
            "mode": "open",
            "input_tokens": 1024,
            "output_tokens": 128,
            "request_rate": draw(st.sampled_from((0.5, 4.0, 12.0, 40.0))),
        },
        "objective": {"limits": {"tpot_ms": draw(st.sampled_from((25, 60))), "ttft_ms": 6000}},
        "options": {"engines": [draw(st.sampled_from(("vllm", "sglang")))]},
    }


MARKET = ("h100-sxm", "l40s", "a100-sxm-80gb", "l4", "mi300x")


@settings(max_examples=examples(4), deadline=None)
@given(sizes())
def test_a_size_is_what_its_bundle_starts_and_its_readme_is_paid_for(values):
    sizing = size_devices(SizeRequest.parse(values))
    best = sizing.best
    if best is None:
        return
    row = Answer(sizing).device(best, ladder=False)
    decision = decide(sizing.choice)
    assert row["devices_rented"] == row["units"] * row["unit_devices"]
    assert row["devices_rented"] == row["count"] + row["idle"]
    cost = decision.estimate["cost"]
    assert decision.gpus == row["count"]
    assert cost["devices_rented"] == row["devices_rented"]
    assert cost["usd_per_hour"] == pytest.approx(row["usd_per_hour"])
    started = decision.started()
    assert sum(len(process.devices) for process in started.processes) == row["count"]
    for process in started.processes:  # a node is no larger than what is rented
        assert max(process.devices) < row["per_node"]
    if any(process.role == "worker" for process in started.processes):
        assert row["unit_devices"] >= row["per_node"] > 1  # full nodes, which have a network
    found = bundle(sizing.choice)
    readme = found.files["README.md"].decode()
    paid = f"{row['devices_rented']} device"
    assert paid in readme.partition("## What is rented")[2].splitlines()[2]
    assert f"${row['usd_per_month']:,.0f} a month" in readme
    kubernetes = written(found.context, "kubernetes")
    if not isinstance(kubernetes, str) and found.context.vendor in ("nvidia", "amd"):
        assert rents("kubernetes", kubernetes)[0] == row["count"]
