"""What it takes to make a smaller checkpoint: time, memory and disk of the job, by its method.

Pure functions over numbers or arrays; ``estimate`` is the one call.
"""

from recipe_core.physics.compression.estimate import Job, estimate
from recipe_core.physics.compression.results import CompressionEstimate

__all__ = ["CompressionEstimate", "Job", "estimate"]
