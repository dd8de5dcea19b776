"""Fields of a serving candidate that follow from its split, and that its engine is told.

A row makes such a field a meaning of the engines' options (``means`` in ``options/*.yaml``):
launches state it, and commands are read back as it. The field itself is in
``request/candidate.py``, its column in `space.serving.Cases`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CandidateOption:
    """One field, by its ``name`` in the candidate and in ``means``, and its ``column`` of a case.

    ``usual``: what engines do where it is not stated, which a launch leaves out; None where each
    engine has a default of its own, and launches state it. ``layer``: what sets it where the user
    does not. ``fixed``: whether other splits for a command have it too.
    """

    name: str
    column: str
    usual: float | None = None
    integral: bool = True
    layer: Literal["base", "device"] = "base"
    fixed: bool = True


OPTIONS = (
    CandidateOption("max_batched_tokens", "max_batched_tokens", layer="device", fixed=False),
    CandidateOption("max_num_seqs", "max_num_seqs", layer="device", fixed=False),
    CandidateOption("memory_fraction", "memory_fraction", integral=False),
    CandidateOption("block_size", "block_tokens"),
    CandidateOption("stream_interval", "stream_interval", usual=1),
    CandidateOption("scheduler_recv_interval", "recv_interval", usual=1),
)
# Those that every launch states.
STATED = tuple(option for option in OPTIONS if option.usual is None)
# Those that a launch states where they are not as usual, and what they are then.
USUAL = {option.name: option.usual for option in OPTIONS if option.usual is not None}
COLUMNS = {option.name: option.column for option in OPTIONS}
