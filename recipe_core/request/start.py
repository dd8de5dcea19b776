"""What a new replica finds when it starts: a node, an image, weights and compiled code, or none."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from recipe_core.base.documented import DESCRIBED
from recipe_core.base.types import Positive, Text


class Start(BaseModel):
    """Where a start begins, and what shortens it."""

    model_config = DESCRIBED

    node: Literal["new", "ready"] = "new"
    """Whether a node has to be provisioned first, as in an autoscaled cluster of a cloud."""

    image: Literal["pull", "streamed", "cached"] | None = None
    """How the node gets the image: it pulls it, streams it, or has it (``cached``); left out,
    ``pull`` on a new node and ``cached`` on a ready one."""

    weights: Text | None = None
    """Where weights are read from: a storage tier (``hw_profiles/storage/``), ``hub``, ``tmpfs`` or
    ``peer``; left out, the hub on a new node and a drive of the node on a ready one."""

    loader: Literal["default", "streamer", "fastsafetensors", "instanttensor"] = "default"
    """What reads the weights: the engine's own loader, or one that reads in parallel."""

    compile_cache: bool = False
    """Whether compiled code of an earlier start is there."""

    wake: Literal["cold", "sleep-1", "sleep-2", "snapshot"] = "cold"
    """What is waked: nothing (``cold``), an engine that sleeps with its weights in the host's
    memory (``sleep-1``) or without (``sleep-2``), or a snapshot of the process."""

    extra_s: Positive | None = None
    """Seconds that a start takes beside these phases, as measured in the user's own place."""
