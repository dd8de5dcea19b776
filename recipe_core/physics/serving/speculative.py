"""Speculative decoding: what a step that verifies a draft takes, and how many tokens it yields.

Of ``γ`` drafted tokens, each accepted with probability ``a`` when those before it were, a step keeps ``(1 - a^(γ+1)) / (1 - a)`` tokens,
the one that the model adds included (Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding", eq. 1).
The model verifies ``γ + 1`` rows of each sequence at once and reads its cache once. A draft takes ``γ`` passes of one layer and the head,
or none where drafts are looked up. Left out: tree drafts, a draft with a vocabulary of its own, and the sampler's comparison.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.physics.roofline import operator_s
from recipe_core.physics.serving.operators import Parts, Step, side_by_side, step_parts, total
from recipe_core.physics.serving.weights import draft_layer, draft_projection
from recipe_core.space.serving import Cases, Setting


def tokens_per_step(draft_tokens: Float, acceptance: Float) -> Float:
    """Tokens that a step yields a sequence: ``1 + a + … + a^γ``; 1 without a draft. ``acceptance`` is below 1."""
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)


def engine_step(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Seconds of one step by cause, with the time of its draft where there is one; the values add up to the step."""
    parts = step_parts(setting, cases, step)
    if cases.draft_tokens.any():
        parts["draft"] = draft_s(setting, cases, step)
    return parts


def engine_steps(setting: Setting, cases: Cases, *steps: Step) -> tuple[Parts, ...]:
    """The same of several steps at once."""
    parts = engine_step(setting, cases, side_by_side(steps))
    axes = max(
        seconds.ndim for seconds in parts.values()
    )  # a part with fewer follows from what the steps share
    return tuple(
        {name: seconds[k] if seconds.ndim == axes else seconds for name, seconds in parts.items()}
        for k in range(len(steps))
    )


def draft_s(setting: Setting, cases: Cases, step: Step) -> Float:
    """Seconds to draft for all sequences of a step.

    The first pass takes all rows of the step, so that the draft layer's cache follows the model's; each further one a token a sequence.
    """
    zero = np.zeros(len(cases))
    later = Step(zero, zero, step.sequences, step.context, step.sequences)
    first = replace(step, sampled=step.sequences)
    drafts = cases.draft_layers > 0
    passes = np.where(drafts & (step.sequences > 0), np.maximum(cases.draft_tokens - 1, 0.0), 0.0)
    began = np.where(drafts & (cases.draft_tokens > 0), _pass_s(setting, cases, first), 0.0)
    return began + np.where(passes > 0, passes * _pass_s(setting, cases, later), 0.0)


def _pass_s(setting: Setting, cases: Cases, step: Step) -> Float:
    """Seconds of one pass of the draft: a layer of the model's shape, the head, and what joins the layer's inputs.

    The engine schedules once for all passes of a step: of its own time a pass takes a layer's.
    """
    model, device = setting.model, setting.cluster.device
    one = replace(setting, model=replace(model, layers=(draft_layer(model),), extras=()))
    parts = step_parts(one, cases, step)
    layer_s = setting.engine.overhead(device.runtime).layer_s
    weights, b = draft_projection(model), setting.activation_bytes
    moved = weights * setting.stored_bytes("unquantized") + 3 * step.rows * model.hidden * b
    join = operator_s(
        device, "gemm", setting.stored_dtype("unquantized"), 2 * step.rows * weights, moved
    )
    return (
        total({name: seconds for name, seconds in parts.items() if name != "engine"})
        + layer_s
        + join
    )
