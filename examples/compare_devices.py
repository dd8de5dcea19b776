"""The device that serves a model best: read this file cell by cell, as a notebook, or run it.

python examples/compare_devices.py
"""

# %% A question: Qwen3-32B for 64 requests in flight, at most 50 ms a token, as cheap as possible.
import recipe_core as rb
from recipe_core.views.plan_words import figures_phrase

QUESTION = {
    "model": "Qwen/Qwen3-32B",
    "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
    "objective": {"optimize": "cost", "limits": {"tpot_ms": 50}},
}


def planned(device: str) -> rb.Plan:
    """The plan on eight devices of a kind."""
    return rb.plan({**QUESTION, "hardware": {"device": device, "per_node": 8}})


plans = {device: planned(device) for device in ("h100-sxm", "mi300x", "l40s")}

# %% The best split on each, and what it would do.
for device, plan in plans.items():
    if plan.best is None:
        print(f"{device}: nothing can run; {plan.changes()[0]}")
    else:
        print(f"{device}: {plan.best} ({figures_phrase(plan, plan.best.row)})")

# %% The tradeoff on one of them: time per token against throughput per device.
front = plans["h100-sxm"].to_frame().query("pareto").sort_values("tpot_s")
print(front[["tp", "dp", "tpot_s", "output_tokens_per_s_per_gpu", "usd_per_million_output_tokens"]])

# %% Why the others cannot run.
for split in plans["l40s"].refused[:3]:
    print(split, "-", "; ".join(split.reasons))

# %% A bundle of the best: `recipe up qwen3-32b.zip` starts it, `recipe bench` measures it.
if __name__ == "__main__":
    best = min(
        (plan.best for plan in plans.values() if plan.best is not None),
        key=lambda split: float(split.plan.score[split.row]),
    )
    print("wrote", rb.write(rb.build(best), "qwen3-32b.zip"))
