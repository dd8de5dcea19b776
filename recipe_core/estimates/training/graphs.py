"""CUDA graphs of training: launches that the host no longer makes, and buffers that stay in place.

A graph replays kernels on the memory that it was captured with. The host's time for what is
captured is gone; experts' part stays, as the sizes of its groups are read and launched anew. Inputs
are copied to a captured layer's own buffer, one for every micro-batch in flight.
"""

from __future__ import annotations

from recipe_core.estimates.columns.training import TrainingSetting


def captured_launches(setting: TrainingSetting) -> float:
    """Share of a layer's launches, without those of its experts, that graphs take from the host."""
    attention = setting.calibration.attention_launches.value
    shares = {"none": 0.0, "attention": attention, "layer": 1.0, "iteration": 1.0}
    return shares[setting.cuda_graphs]
