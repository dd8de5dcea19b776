"""Speculative decoding: time of a step that verifies a draft, and the tokens it yields.

Of ``γ`` drafted tokens, each accepted with probability ``a`` if those before it were, a step yields
``(1 - a^(γ+1)) / (1 - a)`` tokens, the model's own included (Leviathan, Kalman, Matias 2023, "Fast
Inference from Transformers via Speculative Decoding", eq. 1). The model verifies ``γ + 1`` rows of
each sequence at once and reads its cache once. A draft takes ``γ`` passes of one layer and the
head, or none where drafts are looked up. Left out: tree drafts, a draft vocabulary, the sampler's
check.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.serving.kernels import Parts, Step, stack_steps, total
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.weights import draft_layer, draft_projection
from recipe_core.hardware.cluster import host_speed


def tokens_per_step(draft_tokens: Float, acceptance: Float) -> Float:
    """Tokens per sequence and step: ``1 + a + … + a^γ``; 1 without a draft. Needs ``a < 1``."""
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)


def engine_step(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Seconds of one step by part, with that of its draft; the parts add up to the step."""
    parts = serving_step_parts(setting, cases, step)
    if cases.draft_tokens.any():
        parts["draft"] = draft_s(setting, cases, step)
    return parts


def engine_steps(setting: Setting, cases: Cases, *steps: Step) -> tuple[Parts, ...]:
    """`engine_step` of several steps in one call, one result each."""
    parts = engine_step(setting, cases, stack_steps(steps))
    # a part with fewer axes follows from what the steps share
    axes = max(seconds.ndim for seconds in parts.values())
    return tuple(
        {name: seconds[k] if seconds.ndim == axes else seconds for name, seconds in parts.items()}
        for k in range(len(steps))
    )


def draft_s(setting: Setting, cases: Cases, step: Step) -> Float:
    """Seconds to draft for all sequences of a step (one per case).

    The first pass takes all rows of the step, so that the draft layer's cache keeps up with the
    model's; each further pass takes one token a sequence.
    """
    zero = np.zeros(len(cases))
    later = Step(zero, zero, step.sequences, step.context, step.sequences)
    first = replace(step, sampled=step.sequences)
    drafts = cases.draft_layers > 0
    passes = np.where(drafts & (step.sequences > 0), np.maximum(cases.draft_tokens - 1, 0.0), 0.0)
    first_s = np.where(drafts & (cases.draft_tokens > 0), _pass_s(setting, cases, first), 0.0)
    return first_s + np.where(passes > 0, passes * _pass_s(setting, cases, later), 0.0)


def _pass_s(setting: Setting, cases: Cases, step: Step) -> Float:
    """Seconds of one draft pass: a layer like the model's, the head, and the join of its inputs.

    The engine schedules once for all passes of a step, so a pass adds only a layer of its overhead.
    """
    model, device = setting.model, setting.cluster.device
    draft_setting = replace(setting, model=replace(model, layers=(draft_layer(model),), extras=()))
    parts = serving_step_parts(draft_setting, cases, step)
    layer_s = host_speed(device).layers * setting.engine.overhead(device.runtime).layer_s
    weights, b = draft_projection(model), setting.activation_bytes
    moved = weights * setting.stored_bytes("unquantized") + 3 * step.rows * model.hidden * b
    dtype = setting.stored_dtype("unquantized")
    join = operator_s(
        device, "gemm", dtype, 2 * step.rows * weights, moved, label="Join of a draft's inputs"
    )
    passed = total({name: seconds for name, seconds in parts.items() if name != "engine"})
    return passed + layer_s + join
