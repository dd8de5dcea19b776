"""The request whose bundle is scaled as the chosen policy was simulated."""

from __future__ import annotations

from recipe_core.base.errors import NoAnswer
from recipe_core.plans.replicas import with_share
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from recipe_core.scaling.rented import simulated_of
from recipe_core.scaling.result import OverTimeAnswer
from recipe_core.scaling.setup import with_load
from recipe_core.scaling.traces.rates import Rates
from recipe_core.scaling.traces.trace import Trace


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
