"""Words of tools that scale by a metric of each replica: a policy is written in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.targets.scale.policy import fewest_replicas, refuse_fields, refuse_policy


@dataclass(frozen=True, slots=True)
class ReplicaWords:
    """The ``title`` of a tool, and its names.

    ``fixed``: the field of a fixed number, ``scaled`` of a policy, whose ``target`` counts
    ``metric`` a replica; ``times`` by field of the request's policy.
    """

    title: str
    name: str
    metric: Metric
    fixed: str
    scaled: str
    target: str
    times: Mapping[str, str]

    def fixed_number(self, scaling: Scaling) -> dict[str, Any] | None:
        """The part that sets a fixed number; None where the tool's own policy does.

        Raises:
            NoAnswer: for another policy, and for fields that its row does not have.
        """
        refuse_policy(scaling, self.name, self.title)
        if scaling.policy == "fixed":
            return {self.fixed: fewest_replicas(scaling)}
        refuse_fields(scaling, self.title)
        return None

    def scaled_number(
        self, scaling: Scaling, trigger: Trigger | None, times: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """The part that sets a policy; ``times`` by the tool's names.

        Raises:
            NoAnswer: for a trigger by another metric than the tool's.
        """
        if trigger is not None and trigger.metric != self.metric:
            raise NoAnswer(
                f"{self.title} scales by {self.metric}, not by {trigger.metric}.",
                field="options.scaling.triggers.0.metric",
            )
        policy = {
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            self.target: trigger.target if trigger else None,
            **times,
        }
        return {self.scaled: {name: value for name, value in policy.items() if value is not None}}
