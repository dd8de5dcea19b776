"""The sampling of answers in reinforcement learning, as a request states it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Count, Degree, Text, Tokens

# A file on every node that runs: absolute, of letters that need no quotes anywhere.
NodeFile = Annotated[
    str,
    Field(pattern=r"^(/[\w@%+=,-][\w.@%+=,-]*|/\.[\w@%+=,-][\w.@%+=,-]*)+$", max_length=512),
]
# Methods that learn from answers which the model gives while it is trained.
REINFORCED = ("grpo", "ppo")


class Rollout(DescribedModel):
    """The sampling of answers in every step of reinforcement learning, and their scoring."""

    prompts: Count
    """Prompts of a step."""

    samples: Count = 8
    """Answers sampled for each prompt."""

    prompt_tokens: Tokens = 512
    """Mean length of a prompt, in tokens."""

    response_tokens: Tokens
    """Mean length of an answer, in tokens."""

    max_prompt_tokens: Tokens | None = None
    """Longest prompt that is kept, in tokens; left out, twice the mean."""

    max_response_tokens: Tokens | None = None
    """Longest answer, at which sampling stops, in tokens; left out, twice the mean."""

    placement: Literal["colocated", "apart"] = "colocated"
    """Where answers are sampled: on the devices that train, which wait meanwhile (``colocated``),
    or on ``devices`` of their own, one step ahead of the training (``apart``)."""

    devices: Count | None = None
    """Devices of the cluster that only sample; needed by ``placement: apart``, and only there."""

    engine: Text = "vllm"
    """Serving engine that samples, by name."""

    tp: Degree | None = None
    """Tensor-parallel ranks of a copy of the engine; left out, the fastest that fits."""

    memory_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a device's memory that the engine takes, above 0 up to 1; left out, its default, or
    what the states of the training leave of it."""

    offload: bool | None = None
    """Whether states of the training and frozen models wait in the host's memory while they are
    not used, so that what works has the device; left out, only where all does not fit."""

    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Times that the answers of a step are trained on."""

    reference: bool = True
    """Whether a frozen copy of the model scores every answer (for the KL divergence)."""

    old_log_probs: bool = True
    """Whether the model scores its own answers again before they are trained on, as its engine's
    numbers are not exact enough."""

    reward: Literal["rule", "model"] = "rule"
    """What rewards an answer: a program (``rule``), or a frozen model of the size of the trained
    one (``model``)."""

    reward_file: NodeFile | None = None
    """File on the nodes with the rule that rewards an answer, by its absolute path: a Python module
    as ``reward.py`` of the bundle is one, with ``compute_score`` for verl. Left out, the bundle's
    own rule, which reads the last number of an answer."""

    reward_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Time that a step waits for rewards besides such a model, in seconds."""

    @model_validator(mode="after")
    def _devices_fit_placement(self) -> Self:
        if self.placement == "apart" and self.devices is None:
            raise ValueError("placement apart needs devices: how many only sample")
        if self.placement == "colocated" and self.devices is not None:
            raise ValueError(
                f"placement colocated samples on all devices; leave devices {self.devices} out or "
                "set placement: apart"
            )
        return self

    @model_validator(mode="after")
    def _longest_is_longest(self) -> Self:
        for name in ("prompt", "response"):
            longest, mean = getattr(self, f"max_{name}_tokens"), getattr(self, f"{name}_tokens")
            if longest is not None and longest < mean:
                raise ValueError(
                    f"max_{name}_tokens {longest} is shorter than the mean, {name}_tokens {mean}; "
                    "raise it"
                )
        return self

    @property
    def longest_prompt(self) -> int:
        return self.max_prompt_tokens or 2 * self.prompt_tokens

    @property
    def longest_response(self) -> int:
        return self.max_response_tokens or 2 * self.response_tokens

    @property
    def longest_tokens(self) -> int:
        return self.longest_prompt + self.longest_response

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def mean_tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens

    @property
    def step_sizes(self) -> dict[str, int]:
        """Sequence length and sequences of a step, by field, that go with these answers."""
        return {"sequence_length": self.longest_tokens, "global_batch": self.sequences}
