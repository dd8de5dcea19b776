"""Words of tools that scale by a metric of each replica: a policy is written in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling
from recipe_core.scaling.policies.rows import policy_row
from recipe_core.targets.scale.policy import (
    fewest_replicas,
    only_trigger,
    refuse_fields,
    refuse_policy,
)


@dataclass(frozen=True, slots=True)
class ReplicaWords:
    """The ``title`` of a tool, its target's ``name``, and its fields.

    ``fixed``: the field of a fixed number, ``scaled`` of a policy, whose ``target`` counts
    ``metric`` a replica. Times have the names of the policy's row.
    """

    title: str
    name: str
    metric: Metric
    fixed: str
    scaled: str
    target: str

    def write_replicas(
        self, scaling: Scaling, read_time: Callable[[Scaling, str], float | None] = getattr
    ) -> dict[str, Any]:
        """Return the part that sets the number of replicas: fixed, or by the tool's own policy.

        Args:
            scaling: the request's policy.
            read_time: reads a field of it as the tool takes it.

        Raises:
            NoAnswer: for another policy, for fields that its row does not have, and for a trigger
                by another metric than the tool's.
        """
        refuse_policy(scaling, self.name, self.title)
        if scaling.policy == "fixed":
            return {self.fixed: fewest_replicas(scaling)}
        refuse_fields(scaling, self.title)
        trigger = only_trigger(scaling, self.title)
        if trigger is not None and trigger.metric != self.metric:
            raise NoAnswer(
                f"{self.title} scales by {self.metric}, not by {trigger.metric}.",
                field="options.scaling.triggers.0.metric",
            )
        times = policy_row(scaling.policy).fields
        policy = {
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            self.target: trigger.target if trigger else None,
            **{name: read_time(scaling, field) for field, name in times.items()},
        }
        return {self.scaled: {name: value for name, value in policy.items() if value is not None}}
