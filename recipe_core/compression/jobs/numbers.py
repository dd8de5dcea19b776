"""``numbers.yaml``: the few numbers that estimates of compression jobs rest on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import ConfigDict

from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Quantity, Sourced

FILE = DataFile(Path(__file__).with_name("numbers.yaml"), "options.compression")


class Numbers(Sourced):
    """Each is explained by its note."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    matrix_share: Quantity
    single_share: Quantity
    cholesky_share: Quantity
    column_s: Quantity
    call_s: Quantity
    hook_s: Quantity
    start_s: Quantity
    load_bytes_per_s: Quantity
    link_share: Quantity
    grid: Quantity
    iterations: Quantity
    tuned_batch: Quantity
    tuned_bytes: Quantity
    value_passes: Quantity
    context_bytes: Quantity
    host_base_bytes: Quantity
    factor: Quantity


@cache
def job_numbers() -> Numbers:
    return FILE.read_as(Numbers)
