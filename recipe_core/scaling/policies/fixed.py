"""A number of replicas that never changes."""

from __future__ import annotations

from collections.abc import Sequence

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.policies.columns import Paced
from recipe_core.scaling.policies.defaults import default_of
from recipe_core.scaling.signals import Signals


class Fixed(Paced):
    """A batch of numbers: ``max_replicas`` of each."""

    def __init__(self, scalings: Sequence[Scaling]) -> None:
        super().__init__(scalings, default_of("fixed", "interval_s"))

    def _look(self, _signals: Signals, /) -> Float:
        return self._high
