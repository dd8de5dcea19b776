"""What it takes to make a smaller checkpoint: time, memory and disk of the job, by its method.

Pure functions over numbers or arrays. From a model's layers to the matrices that a tool rounds,
from these to seconds and bytes by method; ``estimate_job`` is the one call.
"""

from recipe_core.compression.jobs.estimate import Job, estimate_job
from recipe_core.estimates.serving.feature_results import CompressionEstimate

__all__ = ["CompressionEstimate", "Job", "estimate_job"]
