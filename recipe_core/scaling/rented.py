"""What a policy of scaling rents: devices and money at its bounds, and as it was simulated."""

from __future__ import annotations

import hashlib

from recipe_core.base.documents import to_json
from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.serving.feature_results import RentedReplicas, SimulatedReplicas
from recipe_core.hardware.cluster import Cluster
from recipe_core.plans.replicas import with_share
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import timed_limits
from recipe_core.request.over_time import Simulated
from recipe_core.request.scaling import Scaling
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.scaling.outcome import HOUR_S, MONTH_S
from recipe_core.scaling.result import OverTimeAnswer, PolicyAnswer
from recipe_core.scaling.scenario import with_load
from recipe_core.scaling.simulated import OWN_MACHINES
from recipe_core.scaling.traces.trace import Rates, Trace

# Of a month, as simulations count them.
HOURS = MONTH_S / HOUR_S


def rented_devices(place: Cluster, scaling: Scaling, replicas: int, devices: int) -> int:
    """Devices that are paid for while so many replicas run under a policy.

    Args:
        place: what is rented.
        scaling: the policy; of some each replica is a machine of its own.
        replicas: how many.
        devices: of each.
    """
    if scaling.policy in OWN_MACHINES:
        return replicas * int(place.rented(1, devices))
    return int(place.rented(replicas, devices))


def replica_bounds_of(scaling: Scaling) -> tuple[int, int]:
    """Fewest and most replicas of a policy; all of them where their number is fixed."""
    low = scaling.max_replicas if scaling.policy == "fixed" else scaling.min_replicas
    return low, scaling.max_replicas


def rented_replicas(request: PlanRequest, place: Cluster, devices: int) -> RentedReplicas:
    """What the policy of a request rents; money is not known without a price.

    Args:
        request: of one replica, with ``options.scaling``.
        place: its hardware.
        devices: of the replica.
    """
    scaling = request.options.scaling
    assert scaling is not None  # noqa: S101 - asked for where one is stated
    low, high = replica_bounds_of(scaling)
    fewest_devices, most_devices = (
        rented_devices(place, scaling, count, devices) for count in (low, high)
    )
    price = place.usd_per_device_hour
    simulated = request.options.simulated
    return RentedReplicas(
        policy=scaling.policy,
        min_replicas=low,
        max_replicas=high,
        devices_per_replica=devices,
        devices_rented_at_least=fewest_devices,
        devices_rented_at_most=most_devices,
        usd_per_month_at_least=_rented_usd(fewest_devices * HOURS, price),
        usd_per_month_at_most=_rented_usd(most_devices * HOURS, price),
        simulated=None if simulated is None else _price_simulated(simulated, request, price),
    )


def _price_simulated(
    simulated: Simulated, request: PlanRequest, price: float | None
) -> SimulatedReplicas:
    return SimulatedReplicas(
        current=simulated.of == digest_of(request),
        **simulated.model_dump(),
        usd_per_month=_rented_usd(simulated.device_hours_per_month, price),
    )


def _rented_usd(hours: float, price: float | None) -> float | None:
    return None if price is None else hours * price


def simulated_of(request: PlanRequest, policy: PolicyAnswer, span_s: float) -> Simulated:
    """What a policy came to, for the request that has it and the split that was simulated.

    Args:
        request: with the policy, the split and the load.
        policy: what was simulated.
        span_s: its time, in seconds.
    """
    counts = policy.replicas
    return Simulated(
        of=digest_of(request),
        min_replicas=counts.min,
        mean_replicas=counts.mean,
        max_replicas=counts.max,
        device_hours_per_month=policy.gpu_hours / span_s * MONTH_S,
        attainment=policy.attainment.value,
    )


def digest_of(request: PlanRequest) -> str:
    """A digest of what a simulation depends on: a changed request has another."""
    values, device = request.to_json(), request.hardware.device
    workload = {k: v for k, v in values["workload"].items() if k not in LOADS.values()}
    limits, options = values["objective"].get("limits", {}), values["options"]
    parts = {
        "model": values["model"],
        "device": device if isinstance(device, str) else device.get("name"),
        "candidate": values.get("candidate"),
        "workload": {k: v for k, v in workload.items() if k != "mode"},
        "limits": {name: limits.get(name) for name in timed_limits()},
        "scaling": options.get("scaling"),
        "start": options.get("start"),
    }
    text = to_json(parts, indent=None)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def request_with_policy(
    request: PlanRequest,
    answer: OverTimeAnswer,
    *,
    policy: str | None = None,
    trace: Trace | Rates | None = None,
    days: float | None = None,
) -> PlanRequest:
    """The request of one replica as it was simulated, with the load over time, and a policy.

    Args:
        request: the one that was simulated.
        answer: what came of it.
        policy: by name; the best unless given.
        trace: the load that was simulated in place of the request's own.
        days: time that was simulated, where it was given.

    Raises:
        NoAnswer: where the answer has no such policy, or none that reaches the wanted share.
    """
    policy_answer = answer.chosen if policy is None else answer.policy(policy)
    if policy_answer is None or policy_answer.scaling is None:
        raise NoAnswer(
            f"no policy keeps the limits for {answer.attainment_wanted:.2%} of requests."
            if policy is None
            else f"{policy} was not simulated.",
            field="policies",
            hint="Loosen a limit, or lower workload.over_time.attainment.",
        )
    options = request.options.model_copy(
        update={"scaling": policy_answer.scaling, "simulated": None}
    )
    candidate = CandidateRequest.model_validate(answer.candidate)
    replica_request = with_load(request, trace, days)
    replica_request = replica_request.model_copy(
        update={"options": options, "candidate": candidate}
    )
    replica_request = with_share(replica_request, answer.per_replica)
    simulated = simulated_of(replica_request, policy_answer, answer.load.span_s)
    options = options.model_copy(update={"simulated": simulated})
    return replica_request.model_copy(update={"options": options})
