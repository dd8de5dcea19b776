"""Results of ``vllm bench serve`` (``benchmark_serving.py`` before): a JSON document a run.

Keys as in vLLM 0.32.0, ``vllm/benchmarks/serve.py``; with ``--append-result`` a line a run. Its
``backend`` is the client's protocol, so that the engine stays unstated.
"""

from __future__ import annotations

from recipe_core.calibration.importers.bench_clients import (
    client_figures,
    client_load,
    completed_requests,
    day_of_timestamp,
    failed_requests_reason,
)
from recipe_core.calibration.importers.content import Content, Fields
from recipe_core.calibration.importers.formats import Format
from recipe_core.calibration.importers.imported import Imported

NAME = "vllm-bench"
SIGNS = ("completed", "total_token_throughput", "request_throughput")


def _is_vllm_bench(content: Content) -> bool:
    if not content.text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return False
    return any(all(sign in values for sign in SIGNS) for _, values in content.records[:1])


def _read_vllm_bench(content: Content) -> list[Imported]:
    return [
        _parse_vllm_bench_run(content.fields(values, place), place)
        for place, values in content.records
    ]


def _parse_vllm_bench_run(fields: Fields, place: str) -> Imported:
    requests = completed_requests(fields)
    figures = client_figures(fields, "e2el")
    load, notes, excluded = client_load(fields, figures, requests)
    return Imported(
        format=NAME,
        place=place,
        model=fields.text("model_id"),
        date=day_of_timestamp(fields.text("date")),
        figures=figures,
        load=load,
        settings={"requests": requests},
        notes=notes,
        excluded=failed_requests_reason(fields, requests) or excluded,
    )


FORMAT = Format(NAME, "vllm bench serve", _is_vllm_bench, _read_vllm_bench)
