"""What a split would do: memory, latency, throughput, cost. Pure functions over arrays of cases."""

from recipe_core.estimate.cases import Cases, Setting, cases
from recipe_core.estimate.result import Estimates, estimate

__all__ = ["Cases", "Estimates", "Setting", "cases", "estimate"]
