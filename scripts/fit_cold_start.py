"""Fit the numbers of cold starts, and say how far they are off on sources that were not used.

    python scripts/fit_cold_start.py [TRUTH_DIR] [--write]

Reads the shipped table of measured starts
(``recipe_core/estimates/measured/published/cold_starts.csv``), or makes it from
``TRUTH_DIR/cold_start.csv`` by the rules below. Every source is left out once: the numbers are
fitted on the others, and held against it; how far its starts are off then are what bands are
counted on, and these are judged by bands that were counted without it too. ``--write`` fits all and
puts values and bands into ``cold_start.yaml``.

The fit: least squares of ``log(estimate / measured)`` under a Cauchy loss, every source weighing
as the square root of its rows, and each number held near its order of magnitude (``START``) with a
standard deviation of a factor of ``PRIOR``, so that what no row tells keeps it.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from recipe_core.base.provenance import Quantity
from recipe_core.estimates.serving.cold_start import kernels_of
from recipe_core.estimates.serving.start_numbers import (
    FILE,
    StartBands,
    StartNumbers,
    start_numbers,
)
from recipe_core.hardware.cluster import device_profile

sys.path.insert(0, str(Path(__file__).parent))
from start_bands import LeftOut, counted_starts, estimate_of, fit_bands, start_report
from start_prediction import (
    PUBLISHED_STARTS,
    MeasuredStart,
    published_starts,
)

Array = NDArray[np.float64]
PRIOR = 1.25
GB = 1e9

START: dict[str, float] = {
    "node_s": 100,
    "device_plugin_s": 60,
    "pull_bytes_per_s": 100e6,
    "streamed_s": 5,
    "container_s": 5,
    "process_s": 12,
    "download_bytes_per_s": 30e6,
    "stream_bytes_per_s.drive": 5e9,
    "stream_bytes_per_s.network": 0.33e9,
    "stream_bytes_per_s.object": 0.1e9,
    "stream_bytes_per_s.memory": 30e9,
    "copy_bytes_per_s": 5e9,
    "disk_bytes_per_s": 1e9,
    "read_share": 0.7,
    "compile_s": 30,
    "compile_cached_s": 5,
    "kernels_s.native": 15,
    "kernels_s.other": 100,
    "profile_s": 4,
    "graphs_s": 10,
    "build_s_per_gb": 3,
    "warm_up_s": 3,
    "wake_s": 0.2,
    "wake_share": 0.7,
    "restore_s": 3,
    "restore_bytes_per_s": 3e9,
}
"""Orders of magnitude, from which a fit begins."""


# Reading the table of published figures

PHASES = {
    "node_provision": "node",
    "device_plugin": "device plugin",
    "image_pull": "image",
    "container_start": "container",
    "imports": "process",
    "weights_download": "download",
    "weights_load": "weights",
    "model_load": "weights",
    "torch_compile": "compilation",
    "torch_compile_cached": "compilation",
    "profile_warmup": "memory profile",
    "profile_kv": "memory profile",
    "graph_capture": "graphs",
    "warm_up": "warm-up",
    "first_request": "warm-up",
    "wake": "wake",
    "restore_total": "restore",
    "engine_init": "engine init",
    "engine_build_total": "engine build",
    "total": "total",
}
ENGINES = ("sglang", "tensorrt-llm", "vllm")
LOADERS = {
    "streamer": "streamer",
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "serverlessllm": "instanttensor",
    "prefetch": "streamer",
}
PLACES = (
    ("page cache|host ram|pinned|again", "tmpfs"),
    ("gp3", "ebs-gp3"),
    ("io2", "ebs-io2"),
    ("nfs|volume", "superpod-good"),
    ("^s3|object", "s3"),
    ("hub|all cold|warm node", "hub"),
    ("not stated|fixed disk|local disk$|ssd", "disk"),
)
"""Words of a storage, and the place that they mean; any other is an NVMe drive of the node."""
FORMATS = (("nvfp4|fp4", "nvfp4"), ("fp8|deepseek-v3", "fp8"), ("gpt-oss|deepseek-v4", "mxfp4"))
WORDS_OF_CACHE = r"fresh load|warm caches|from (disk )?cache|second (start|restore)"
EMPTIED = r"empty|cleared|first start"
DEVICE_BYTES = 64e9  # of weights, where the number of devices is not stated
COMPILES_FROM = "2025-02"  # vLLM's engine that compiles by default (0.8) came then
DEVICES = {
    "A100": "a100-sxm-80gb",
    "A800": "a100-sxm-80gb",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "H20": "h20",
    "B200": "b200-sxm",
    "B300": "b300-sxm",
    "L4": "l4",
    "A10G": "a10g",
    "RTX 5090": "rtx-5090",
    "RTX A6000": "rtx-a6000",
    "DGX Spark (GB10)": "dgx-spark",
    "gfx950 (MI350 series)": "mi350x",
}


def starts_of(path: Path) -> Iterator[MeasuredStart]:
    """The figures of the table as measured starts; what no phase of ours is, is left out."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    cached = _cached_sources(rows)
    for number, row in enumerate((row for row in rows if row["phase"] in PHASES), 1):
        yield MeasuredStart.model_validate({"id": f"{number}", **start_fields(row, cached)})


def start_fields(row: dict[str, str], cached: set[str]) -> dict[str, Any]:
    """The fields of a measured start, by rules that look at words of the row."""
    engine, note, storage = (row[name].casefold() for name in ("engine", "note", "storage"))
    if (
        "fresh load" in note or "level 2" in note
    ):  # of a machine that has run it: its files are in the kernel's cache
        storage = f"{storage}, again"
    phase, size = row["phase"], re.search(r"([\d.]+) gb image", note)
    streamed = "streamed image" in storage
    return {
        "engine": next((name for name in ENGINES if name in engine), "vllm"),
        "version": row["version"],
        "model": row["model"],
        "weights_bytes": _bytes(row),
        "device": DEVICES.get(row["device"], ""),
        "devices": _start_devices(row),
        "place": next((name for words, name in PLACES if re.search(words, storage)), "nvme"),
        "place_bytes_per_s": _rate(storage),
        "loader": next((name for word, name in LOADERS.items() if word in engine), "default"),
        "streams": _streams(engine),
        "image": _image(phase, storage, streamed),
        "image_bytes": float(size[1]) * GB if size else None,
        "compiles": _compiles(row, note),
        "captures": "eager" not in note,
        "compile_cache": _cached(row, note) or row["source"] in cached,
        "kernels": _kernels(row, note),
        "wake": _wake(row, note),
        "begins": _begins(engine, storage, note),
        "ends": "answer" if "response" in note else "ready",
        "phase": PHASES[phase],
        "seconds": float(row["seconds"]),
        "source": row["source"],
        "date": row["date"],
        "exclude": _exclude(row, engine, note),
    }


def _bytes(row: dict[str, str]) -> float | None:
    if "dummy" in row["storage"]:
        return 0.0
    return float(row["weights_gb"]) * GB if row["weights_gb"] else None


def _start_devices(row: dict[str, str]) -> int:
    """As stated, else the smallest power of two that holds the weights."""
    if row["gpus"].isdigit():
        return max(1, int(row["gpus"]))
    needed = (_bytes(row) or 0.0) / DEVICE_BYTES
    return int(2 ** np.ceil(np.log2(max(1.0, needed))))


def _rate(storage: str) -> float | None:
    """The rate that the storage's words state, or several drives of the usual one."""
    drives, rate = re.search(r"(\d+)x", storage), re.search(r"([\d.]+) gb/s", storage)
    if rate:
        return float(rate[1]) * GB
    return int(drives[1]) * 6.5 * GB if drives else None


def _streams(engine: str) -> int | None:
    streams = re.search(r"\bc=(\d+)", engine)
    if streams:
        return int(streams[1])
    return 8 if "prefetch" in engine else None


def _image(phase: str, storage: str, streamed: bool) -> str:
    if streamed:
        return "streamed"
    return "pull" if phase == "image_pull" or "all cold" in storage else "cached"


def _compiles(row: dict[str, str], note: str) -> bool:
    if "eager" in note or "no torch.compile" in note:
        return False
    says_compiled = "-o3" in note or "level 3" in note or row["phase"].startswith("torch_compile")
    return says_compiled or ("vllm" in row["engine"] and row["date"] >= COMPILES_FROM)


def _cached(row: dict[str, str], note: str) -> bool:
    if row["phase"] == "torch_compile_cached":
        return True
    emptied = re.search(EMPTIED, note)
    return bool(re.search(WORDS_OF_CACHE, note)) and not emptied


def _cached_sources(rows: Sequence[dict[str, str]]) -> set[str]:
    """Sources whose rows that say so, say that compiled code was there: then it was for all."""
    empty = {row["source"] for row in rows if re.search(EMPTIED, row["note"])}
    warm = {row["source"] for row in rows if _cached(row, row["note"].casefold())}
    return warm - empty


def _wake(row: dict[str, str], note: str) -> str:
    if row["phase"] == "wake":
        return "sleep-2" if "level 2" in note else "sleep-1"
    return "snapshot" if "snapshot" in row["engine"] else "cold"


def _begins(engine: str, storage: str, note: str) -> str:
    if "all cold" in storage:
        return "node"
    pod = re.search(r"\bon (gke|eks)|kserve", engine) or re.search(r"pod|container", note)
    return "container" if pod and "excluded" not in note else "process"


def _kernels(row: dict[str, str], note: str) -> str:
    """As the model's name tells its format, and the profile whether the device multiplies it."""
    name = row["model"].casefold()
    dtype = next((dtype for words, dtype in FORMATS if re.search(words, name)), None)
    profile = DEVICES.get(row["device"])
    kernels = kernels_of(dtype, device_profile(profile) if profile else None)
    return "other" if kernels == "native" and "no native" in note else kernels


def _exclude(row: dict[str, str], engine: str, note: str) -> str:
    if "pathological" in note:
        return "pathological by its own account"
    if "tensorizer" in engine:
        return "a loader that options.start does not have"
    if note.startswith("up to"):
        return "a bound, not a time"
    if "slow disk" in row["storage"]:
        return "a disk that was replaced as faulty"
    return ""


# The fit


def with_start_values(numbers: StartNumbers, values: dict[str, float]) -> StartNumbers:
    """Numbers with other values, by name; ``a.b`` is entry b of a."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        field, _, entry = name.partition(".")
        current = changes.get(field, getattr(numbers, field))
        if entry:
            changes[field] = dict(current) | {entry: _spread(current[entry], value)}
        else:
            changes[field] = _spread(current, value)
    return numbers.model_copy(update=changes)


def _spread(spread: Quantity, value: float) -> Quantity:
    return spread.model_copy(update={"value": value})


def fit_start_numbers(
    runs: Sequence[MeasuredStart], start: StartNumbers | None = None
) -> StartNumbers:
    """The numbers that fit the runs that count; ``start``: those of a fit to nearly the same."""
    counted = counted_starts(runs)
    rows = Counter((run.source, run.phase) for run in counted)
    weights = np.array([rows[run.source, run.phase] ** -0.25 for run in counted])
    names, base = list(START), start_numbers()

    def numbers_at(x: Array) -> StartNumbers:
        return with_start_values(base, {n: START[n] * np.exp(x[i]) for i, n in enumerate(names)})

    def residuals(x: Array) -> Array:
        numbers = numbers_at(x)
        logs = [np.log(estimate_of(run, numbers).seconds / run.seconds) for run in counted]
        return np.concatenate([weights * np.array(logs), 0.5 * x / np.log(PRIOR)])

    first = np.zeros(len(names))
    if start is not None:
        first = np.array([np.log(_value(start, name) / START[name]) for name in names])
    solution = least_squares(residuals, first, loss="cauchy", f_scale=0.25)
    return numbers_at(solution.x)


def _value(numbers: StartNumbers, name: str) -> float:
    field, _, entry = name.partition(".")
    current = getattr(numbers, field)
    return float((current[entry] if entry else current).value)


def left_out_starts(runs: Sequence[MeasuredStart]) -> list[LeftOut]:
    """Each run that counts, estimated without its source."""
    counted, fitted = counted_starts(runs), fit_start_numbers(runs)
    left_out = []
    for source in sorted({run.source for run in counted}):
        rest_runs = [run for run in counted if run.source != source]
        numbers = fit_start_numbers(rest_runs, fitted)
        left_out += [
            LeftOut(run, estimate_of(run, numbers)) for run in counted if run.source == source
        ]
    return left_out


# What is printed and written


def write_table(runs: Sequence[MeasuredStart]) -> None:
    """The measured starts as the package ships them; a cell that has the default is empty."""
    names = list(MeasuredStart.model_fields)
    with PUBLISHED_STARTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for run in runs:
            writer.writerow(run.model_dump(mode="json"))


def write_numbers(numbers: StartNumbers, bands: StartBands) -> None:
    """The fitted values and bands into ``cold_start.yaml``, which keeps all else."""
    text = FILE.path.read_text()
    for name in START:
        field, _, entry = name.partition(".")
        before = rf"(^{field}:\n(?:  .*\n)*?  {entry}: " if entry else rf"(^{field}: "
        pattern = before + r"\{value: )[^,]+"
        text = re.sub(pattern, rf"\g<1>{_value(numbers, name):.3g}", text, flags=re.M)
    factors = ", ".join(f"{name}: {factor:g}" for name, factor in bands.phases.items())
    text = re.sub(r"^  phases: .*", f"  phases: {{{factors}}}", text, flags=re.M)
    for side in ("sooner", "later"):
        text = re.sub(rf"^  {side}: .*", f"  {side}: {getattr(bands, side):g}", text, flags=re.M)
    FILE.path.write_text(text)


def main() -> None:
    """Parse, fit, print; write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("truth", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs: Sequence[MeasuredStart] = published_starts() if options.truth is None else ()
    if options.truth is not None:
        runs = list(starts_of(options.truth / "cold_start.csv"))
    if options.write:
        write_table(runs)
        write_numbers(fit_start_numbers(runs), start_numbers().bands)
        start_numbers.cache_clear()
    left_out = left_out_starts(runs)
    if options.write:
        write_numbers(start_numbers(), fit_bands(left_out))
        start_numbers.cache_clear()
    print(start_report(left_out, runs))


if __name__ == "__main__":
    main()
