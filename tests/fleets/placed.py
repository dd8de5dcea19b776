"""A placed fleet by hand: two models over three pools, one cut, a training run and two periods."""

from dataclasses import replace

from recipe_core.fleets.answer import (
    Charge,
    CutDevices,
    FleetAnswer,
    NodeShare,
    PlacedJob,
    PlacedModel,
    Placement,
    PoolUse,
)
from recipe_core.fleets.request import FleetRequest

WORKLOAD = {"kind": "serving", "mode": "open", "input_tokens": 512, "output_tokens": 128}
LIMITS = {"optimize": "cost", "limits": {"ttft_ms": 2000, "tpot_ms": 50}}
MODEL, SMALL = "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"
HOSTILE = "R&D \"x\" 'y' $(touch pwned) ; # = , | © \u2028 **"
TRAINING = {"kind": "training", "tokens": 1e8, "sequence_length": 2048, "global_batch": 64}
HOURS = {"day": 14.0, "night": 10.0}


def fleet_request(**changes):
    pools = [
        {"name": "big", "device": "h100-sxm", "nodes": 2, "per_node": 8, "racks": 2},
        {"name": "amd", "device": "mi300x", "nodes": 1, "per_node": 8},
        {
            "name": "cut",
            "device": "a100-sxm-80gb",
            "nodes": 1,
            "per_node": 8,
            "slices": ["1g.10gb"],
            "labels": {"gpu-pool": "cut"},
        },
    ]
    models = [
        {"name": "chat", "model": MODEL, "team": HOSTILE, "project": "assist"},
        {"name": "tiny", "model": SMALL, "team": "search", "cost_centre": "CC 7"},
    ]
    for model in models:
        model |= {"workload": WORKLOAD | {"request_rate": 8}, "objective": LIMITS}
    job = {"name": "tune", "model": SMALL, "workload": TRAINING, "team": "search"}
    values = {
        "name": "prod",
        "models": models,
        "pools": pools,
        "jobs": [job],
        "periods": [{"name": "day", "hours": 14, "start": 7}, {"name": "night", "hours": 10}],
    }
    return FleetRequest.parse({**values, **changes})


def plan_request(model, device, candidate, workload=None, count=1):
    return {
        "model": model,
        "hardware": {"device": device, "per_node": count},
        "workload": workload or (WORKLOAD | {"request_rate": 2.0}),
        "objective": LIMITS if workload is None else {"optimize": "cost"},
        "candidate": candidate,
    }


def placement(pool, device, nodes, day, night, weight, *, count=1, cut=None, **changes):
    """Replicas of one device or slice each, or of ``count`` devices."""
    candidate = {"engine": "vllm", "tp": count, "pp": 1, "dp": 1}
    each = 1 / 7 if cut else float(count)
    values = {
        "pool": pool,
        "device": (cut and f"{device}-mig-{cut}") or device,
        "slice": cut,
        "layout": f"TP {count}",
        "engine": "vllm",
        "candidate": candidate,
        "request": plan_request(MODEL, device, candidate, count=count),
        "devices_each": each,
        "replicas": {"day": day, "night": night},
        "capacity_each": 4.0,
        "load_each": {"day": 2.0, "night": 1.0},
        "weight": weight,
        "figures": {"ttft_s": 0.21, "tpot_s": 0.012},
        "confidence": 0.93,
        "watts": 2000.0,
        "usd_per_hour": 4.0,
        "nodes": tuple(NodeShare(n, r, k, k * each) for n, r, k in nodes),
    }
    return Placement(**{**values, **changes})


def model_placements():
    chat = (
        placement(
            "big", "h100-sxm", [("big-0", "big-r0", 2), ("big-1", "big-r1", 1)], 3, 1, 0.6, count=2
        ),
        placement("amd", "mi300x", [("amd-0", "amd-r0", 2)], 2, 2, 0.4),
    )
    small = plan_request(
        SMALL, "a100-sxm-80gb-mig-1g.10gb", {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
    )
    tiny = (
        placement(
            "cut",
            "a100-sxm-80gb",
            [("cut-0", "cut-r0", 9)],
            9,
            9,
            1.0,
            cut="1g.10gb",
            request=small,
        ),
    )
    return chat, tiny


def job_placement():
    candidate = {"engine": "torchtitan", "tp": 1, "pp": 1, "dp": 4}
    tune = plan_request(SMALL, "h100-sxm", candidate, workload=TRAINING, count=4)
    shares = [("big-1", "big-r1", 1)]
    return placement(
        "big",
        "h100-sxm",
        shares,
        0,
        1,
        0.0,
        count=4,
        engine="torchtitan",
        layout="DP 4",
        candidate=candidate,
        request=tune,
        load_each={"day": 0.0, "night": 1.0},
    )


def pool_use(pool, used, **changes):
    values = {
        "name": pool.name,
        "device": pool.device,
        "term": pool.term,
        "region": pool.region,
        "nodes": pool.nodes,
        "per_node": pool.per_node,
        "racks": pool.racks or 1,
        "used": used,
        "paid": used,
        "reserved": 0,
        "usd_per_device_hour": 1.2,
        "price_basis": None,
        "usd_per_hour": 7.0,
        "watts": 4000.0,
        "power_kw": None,
    }
    return PoolUse(**{**values, **changes})


def placed_fleet(**changes):
    """The answer; ``changes`` to the request."""
    request = fleet_request(**changes)
    chat, tiny = model_placements()
    load = {"day": 10.0, "night": 6.0}
    owners = [
        PlacedModel(
            m.name, m.team, m.project, m.cost_centre, m.priority, "open", load, load, p, 0.91, 9.5
        )
        for m, p in zip(request.models, (chat, tiny), strict=True)
    ]
    job = PlacedJob("tune", "search", None, None, 24.0, 8.0, True, (job_placement(),), 2.0)
    cuts = (CutDevices(2, {"1g.10gb": 7}, {"1g.10gb": 9}, {"cut-0": 2}),)
    used = {"day": 6.0, "night": 6.0}
    pools = [
        pool_use(pool, used, cuts=cuts if pool.name == "cut" else ()) for pool in request.pools
    ]
    charges = (
        Charge(HOSTILE, "assist", None, 9.5, 6935.0, 7.0, ("chat",)),
        Charge("=SUM(A1)", None, "CC 7", 11.5, 8395.0, 6.0, ("tiny", "tune")),
    )
    return FleetAnswer(
        request,
        "optimal",
        0.004,
        "money",
        21.0,
        20.9,
        3.2,
        tuple(owners),
        (job,),
        tuple(pools),
        charges,
        21.0,
        12_000.0,
        5.5,
        0.87,
        None,
        ("Latency of amd is less certain.",),
        HOURS,
    )


def on_scheduler(word, **labels):
    """The answer with the pool ``big`` under another scheduler."""
    answer = placed_fleet()
    pools = [
        pool.model_copy(update={"labels": {"scheduler": word, **labels}})
        if pool.name == "big"
        else pool
        for pool in answer.request.pools
    ]
    return replace(answer, request=answer.request.model_copy(update={"pools": tuple(pools)}))


def over_nodes():
    """The answer with one model alone, each of whose replicas is on two nodes of ``big``."""
    answer = placed_fleet()
    candidate = {"engine": "vllm", "tp": 8, "pp": 2, "dp": 1}
    request = plan_request(MODEL, "h100-sxm", candidate, count=8)
    request["hardware"]["nodes"] = 2
    wide = placement("big", "h100-sxm", [], 2, 1, 1.0, count=16, candidate=candidate)
    model = replace(answer.models[0], placements=(replace(wide, request=request),))
    return replace(answer, models=(model,), jobs=())
