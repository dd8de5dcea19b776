"""What a split would do: memory, latency, throughput, cost. Pure functions over arrays of cases."""

from recipe_core.physics.serving.estimates import Estimates, estimate
from recipe_core.space.serving import Cases, Setting, cases

__all__ = ["Cases", "Estimates", "Setting", "cases", "estimate"]
