"""The time of an embedding or a score: the parts of its step, its overhead, and what it waits."""

from __future__ import annotations

from collections.abc import Mapping

from recipe_core.base.labels import CAUSES
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.serving.estimates import Estimates
from recipe_core.views.explanations.line import Line
from recipe_core.views.explanations.operators import time_text

TITLE = "Parts of the request latency"


def pooled_lines(setting: Setting, estimates: Estimates, k: int) -> Mapping[str, list[Line]]:
    """Each part of the latency of case ``k``, as ``physics.serving.pooling`` makes it."""
    served, cases = estimates.serving, estimates.cases
    prompts, tokens = float(served.resident[k]), float(cases.input_tokens[k])
    latency, step_s = float(served.request_latency_s[k]), float(served.step_s[k])
    parts = {name: float(seconds[k]) for name, seconds in served.prefill.items()}
    overhead = setting.engine.overhead(setting.cluster.device.runtime)
    each_s = time_text(overhead.input_token_s)
    step = f"{prompts:.4g} prompts × {tokens:,.0f} tokens"
    lines = [
        Line(CAUSES.get(name, name), "in the step of its prompt", step, time_text(seconds))
        for name, seconds in parts.items()
        if seconds > 0 and name not in ("request", "engine_queue")
    ]
    if parts["request"] > 0:
        numbers = f"{time_text(overhead.request_s)} + {tokens:,.0f} × {each_s}"
        formula = "of a request + tokens · of a token"
        name = CAUSES.get("request", "request")
        lines.append(Line(name, formula, numbers, time_text(parts["request"])))
    if parts["engine_queue"] > 0:
        numbers = " - ".join(map(time_text, (latency, step_s, parts["request"])))
        name = CAUSES.get("engine_queue", "engine_queue")
        formula = "latency - step - overhead"
        lines.append(Line(name, formula, numbers, time_text(parts["engine_queue"])))
    return {TITLE: lines}
