"""Errors of estimated start-ups: the numbers of estimates/serving/starts.yaml.

``python scripts/start_errors.py memory_facts.csv`` prints them: scales of Student's t with two
degrees of freedom, whose tails are those of the errors.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import GIB
from recipe_core.estimates.serving.memory import Memory
from recipe_core.models.catalog import catalog_ids, catalog_model, read_by_name
from recipe_core.models.spec import ModelSpec
from recipe_core.models.supplements import name_meanings
from recipe_core.plans.plan import Plan

sys.path.insert(0, str(Path(__file__).parent))
import accuracy_memory as logs

NAMES = {
    "weights": "weights_per_gpu",
    "cache": "available_kv_per_gpu",
    "tokens": "kv_cache_tokens",
}
TAIL = 2.92
"""Scales that one of twenty draws exceeds on each side: ``2·(p - 1/2)·sqrt(2 / (4·p·(1 - p)))``."""


def starts_at_release(path: Path) -> pd.DataFrame:
    """Every logged figure of a start-up beside the estimate's memory at the logged release."""
    facts = pd.read_csv(path)
    shares = logs.budget_shares(facts)
    out = []
    for row in facts.itertuples():
        if not logs.scored(row) or row.quantity not in logs.QUANTITIES or not logs.device_of(row):
            continue
        reading = logs.reading_of(row)
        release = reading.release or logs.release_of_start(row)
        change = next((d.change for d in logs.DIFFERENCES if d.source in str(row.source)), None)
        try:
            values = logs.start_request(row, shares, reading)
            if values is None:
                continue
            memory, table = logs.memory_of(values, release, change)
        except RecipeError:  # a model that is not known
            continue
        comparable = row.quantity not in logs.TOKENS or not logs._miscounted(table, release)
        if comparable:
            out.append(_row(values, row.quantity, logs.measured_memory(row), memory, table))
    for row in pd.read_csv(logs.BOOTS).itertuples():
        values = _boot(row)
        memory, table = logs.memory_of(values, row.release)
        out.append(_row(values, NAMES[row.quantity], row.value, memory, table))
    return pd.DataFrame(out)


def _boot(row: Any) -> dict[str, Any]:
    """A row of ``tests/data/vllm-boots.csv`` as a request."""
    candidate = {"engine": "vllm", "tp": row.tp, "pp": 1, "dp": 1}
    candidate["memory_fraction"] = row.memory_fraction
    if not pd.isna(row.max_num_seqs):
        candidate["max_num_seqs"] = int(row.max_num_seqs)
    lengths = {"input_tokens": 512, "output_tokens": 512, "max_context": row.max_context}
    return {
        "model": row.model,
        "hardware": {"device": row.device, "per_node": row.tp},
        "workload": lengths | {"concurrency": 1},
        "candidate": candidate,
    }


def _row(
    values: dict[str, Any], quantity: str, value: float, memory: Memory, table: Plan
) -> dict[str, Any]:
    candidate, pool = values["candidate"], memory.kv_cache_bytes[0]
    estimate = float(logs.QUANTITIES[quantity](memory)[0])
    if quantity == "kv_cache_tokens":
        block = table.blocks[0]
        estimate = logs.LAYOUT[quantity](block.setting, block.cases, float(pool))
    device = values["hardware"]["device"]
    return {
        "boot": (values["model"], device, candidate["tp"], round(pool / GIB, 3)),
        "quantity": quantity,
        "measured": value,
        "estimated": estimate,
        "pool": pool / GIB,
        "usable": memory.usable_bytes[0] / GIB,
    }


def nine_in_ten(errors: pd.Series) -> float:
    """The scale whose distribution holds nine in ten of some errors where they do."""
    return float(errors.abs().quantile(0.9)) / TAIL


def pool_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """One error of the cache's bytes a start-up, in GiB: of the bytes, or as its tokens tell."""
    tokens = rows.quantity.isin(logs.TOKENS)
    pool_rows = rows[tokens | (rows.quantity == "available_kv_per_gpu")]
    share = pool_rows.measured / pool_rows.estimated - 1
    pool_rows = pool_rows.assign(
        error=share * pool_rows.pool, by_tokens=pool_rows.quantity.isin(logs.TOKENS)
    )
    return pool_rows.sort_values("by_tokens").drop_duplicates("boot")


def coverage(errors: pd.Series, scale: float) -> str:
    """Return how many of some errors lie within the 50, 80 and 90 % intervals of a scale."""
    within = [float((errors.abs() < score * scale).mean()) for score in (0.8165, 1.8856, TAIL)]
    return ", ".join(f"{share:.0%}" for share in within)


def cache_share(rows: pd.DataFrame) -> float:
    """The scale of the logarithm of the bytes of a token in the cache."""
    tokens = rows[rows.quantity.isin(logs.TOKENS)].set_index("boot")
    pool = rows[rows.quantity == "available_kv_per_gpu"].drop_duplicates("boot").set_index("boot")
    pool = pool[["measured", "estimated"]].add_suffix("_pool")
    both = tokens.join(pool, how="inner")
    errors = np.log(both.measured / both.estimated / (both.measured_pool / both.estimated_pool))
    needed = rows[rows.quantity == "kv_needed_for_max_len"]
    return nine_in_ten(pd.concat([errors, np.log(needed.measured / needed.estimated)]))


def by_convention(model_id: str) -> ModelSpec | None:
    """Read a quantised copy off the ending of its name, whatever the catalog knows of it.

    None where no convention reads the name.
    """
    for name, convention in name_meanings(model_id):
        read = read_by_name(model_id, name, convention) if convention else None
        if read is not None:
            return read[0]
    return None


def named() -> tuple[float, float]:
    """Return what reading a format from a name misses where the catalog knows the config.

    The scale of the weights' logarithm, and the share of owners whose FP8 has no blocks.
    """
    errors, plain = [], defaultdict(list)
    for model_id in catalog_ids():
        model, by_name = catalog_model(model_id), by_convention(model_id)
        if by_name is None or model.quantization is None:
            continue
        errors.append(np.log(model.counted_bytes / by_name.counted_bytes))
        if model.weight_dtype.startswith("fp8"):
            stored = model.quantization
            plain[model_id.split("/")[0]].append(stored is None or stored.block is None)
    share = float(np.mean([np.mean(owner) for owner in plain.values()]))
    print(f"{len(errors)} models whose name says their format, {len(plain)} owners of FP8")
    return nine_in_ten(pd.Series(errors)), share


def main(path: Path) -> None:
    """Print the numbers, and how many start-ups they cover."""
    rows = starts_at_release(path)
    pools = pool_errors(rows)
    errors = pools.error / pools.usable
    share = nine_in_ten(errors)
    devices = len({boot[1] for boot in pools.boot})
    print(f"{len(pools)} start-ups on {devices} devices; within 50, 80, 90 %: ", end="")
    print(coverage(errors, share))
    by_name, plain = named()
    print(f"share {share:.2g}, cache {cache_share(rows):.2g}")
    print(f"named {by_name:.2g}, without_blocks {plain:.2g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
