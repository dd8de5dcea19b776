"""Estimates of compression jobs beside published times: the table of docs/method/compression.md.

python scripts/compression_jobs.py
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from recipe_core.compression.jobs import Job, estimate_job
from recipe_core.estimates.serving.feature_results import CompressionEstimate
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_model

TABLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "compression_jobs.csv"


def published() -> list[dict[str, str]]:
    """Read the jobs that were published."""
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def job_estimate(row: dict[str, str]) -> CompressionEstimate:
    """Return what a row of the table is estimated to take."""
    job = Job(
        model=catalog_model(row["model"]),
        tool="",
        technique="int4_weight_only",
        method=row["method"],
        samples=int(row["samples"]),
        tokens=int(row["tokens"]),
        weight_bits=4,
        observed=row["observed"] == "yes",
        everywhere=row["everywhere"] == "yes",
    )
    return estimate_job(job, device_profile(row["device"]))


def main() -> int:
    """Print the table."""
    write = sys.stdout.write
    write("| model | method | texts | published min | predicted min | ratio | GB: published, ")
    write("predicted | source |\n|---|---|---|---|---|---|---|---|\n")
    for row in published():
        estimate, minutes = job_estimate(row), float(row["minutes"])
        texts = f"{row['samples']} × {row['tokens']}" if int(row["samples"]) else "none"
        memory = (
            f"{row['gigabytes']}, {estimate.device_bytes / 1e9:.0f}" if row["gigabytes"] else ""
        )
        predicted = estimate.seconds.value / 60
        observed = " with activations" if row["observed"] == "yes" else ""
        write(f"| {row['model'].rpartition('/')[2]} | {row['method']}{observed} | {texts} ")
        write(f"| {minutes:g} | {predicted:.1f} | {predicted / minutes:.2f} | {memory} ")
        write(f"| {row['source']} |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
