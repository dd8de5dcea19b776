"""The rule that rewards answers to the bundle's tasks: 1 where the last number is the right one.

verl calls ``compute_score`` for each answer, OpenRLHF ``reward_func`` for several. Write your own
rule here for tasks of your own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def score(answer: str, truth: str) -> float:
    """1 where the last number of an answer is the true one, else 0."""
    numbers = NUMBER.findall(answer)
    return float(bool(numbers) and float(numbers[-1].replace(",", "")) == float(truth))


def compute_score(
    data_source: str,  # noqa: ARG001 - verl's arguments by name
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,  # noqa: ARG001
    **_more: Any,
) -> float:
    return score(solution_str, ground_truth)


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> dict[str, Any]:
    """The scores of several answers, each behind its prompt, as OpenRLHF asks for them."""
    import torch

    answers = (
        query[len(prompt) :] if query.startswith(prompt) else query
        for query, prompt in zip(queries, prompts, strict=True)
    )
    scores = torch.tensor([score(*pair) for pair in zip(answers, labels, strict=True)])
    return {"rewards": scores, "scores": scores, "extra_logs": {"right": scores}}
