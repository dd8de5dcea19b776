"""Recipe Builder: from model, hardware, workload and objective to every split judged and one runnable bundle.

>>> from recipe_core.search.serving_plan import plan
>>> from recipe_core.request.schema import PlanRequest
>>> request = PlanRequest.parse({
...     "model": "Qwen/Qwen3-32B",
...     "hardware": {"device": "mi300x", "per_node": 8},
...     "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
... })
>>> table = plan(request)
>>> best = table.candidate(int(table.order[0]))
"""

__version__ = "0.1.0"
