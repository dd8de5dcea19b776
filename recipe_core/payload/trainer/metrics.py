"""Loss, speed and memory of every step, as a CSV file and for Prometheus."""

from __future__ import annotations

import csv
import resource
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from .settings import Settings


@dataclass(frozen=True)
class Row:
    """One step. ``loss`` is the mean over its tokens (nats), memory that of the fullest device."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float | None
    peak_memory_bytes: int
    tokens: int
    loss_scale: float


@dataclass(frozen=True)
class Step:
    """The measured values of a step; ``scale`` is that of the loss under fp16."""

    number: int
    loss: float
    rate: float
    norm: float
    seconds: float
    memory_bytes: int
    scale: float = 1.0

    def row(self, settings: Settings, devices: int) -> Row:
        """The row of a step on so many devices."""
        batch, figures, mfu = settings.batch, settings.figures, None
        tokens = batch.global_batch * batch.sequence_length
        per_device = tokens / self.seconds / devices
        if figures.flops_per_token and figures.peak_flops_per_s:
            mfu = per_device * figures.flops_per_token / figures.peak_flops_per_s
        return Row(
            self.number,
            self.loss,
            self.rate,
            self.norm,
            self.seconds,
            tokens / self.seconds,
            per_device,
            mfu,
            self.memory_bytes,
            tokens * self.number,
            self.scale,
        )


_HELP = {
    "step": "Optimizer steps done.",
    "loss": "Mean loss of the step's tokens, nats.",
    "learning_rate": "Learning rate of the step.",
    "gradient_norm": "Norm of the gradient before clipping.",
    "step_s": "Seconds of the step.",
    "tokens_per_s": "Tokens trained per second, all devices.",
    "tokens_per_s_per_gpu": "Tokens trained per second per device.",
    "mfu": "Model flops utilisation, of the device's peak.",
    "peak_memory_bytes": "Peak memory of a device so far.",
    "tokens": "Tokens trained so far.",
    "loss_scale": "Scale of the loss under fp16.",
}


class Metrics:
    """Writes ``metrics.csv`` and ``metrics.prom`` in ``folder``.

    Rows after step ``start`` are dropped: a resumed run repeats those steps.
    """

    def __init__(self, folder: Path, name: str, start: int) -> None:
        self.csv, self.prom, self.name = folder / "metrics.csv", folder / "metrics.prom", name
        folder.mkdir(parents=True, exist_ok=True)
        names = [field.name for field in fields(Row)]
        earlier = [row for row in read_metrics_rows(self.csv) if int(row["step"]) <= start]
        self.earlier_losses = [float(row["loss"]) for row in earlier]
        with self.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(earlier)

    def write(self, row: Row) -> None:
        """Append the row to the CSV, and replace the file of Prometheus' textfile collector."""
        values = asdict(row)
        with self.csv.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(["" if value is None else value for value in values.values()])
        part = self.prom.with_suffix(".part")
        part.write_text(prometheus(values, self.name), encoding="utf-8")
        part.replace(self.prom)


def read_metrics_rows(path: Path) -> list[dict[str, str]]:
    """Complete rows of a metrics file, without those that a crash or a loss of power damaged."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace").replace("\0", "")
    lines = [line for line in text.splitlines() if "\ufffd" not in line]
    return [row for row in csv.DictReader(lines) if _is_whole(row)]


def _is_whole(row: dict[str, str]) -> bool:
    """Return whether a row has every value, its step and loss as numbers."""
    if None in row or None in row.values() or not row.get("step", "").isdecimal():
        return False
    try:
        float(row["loss"])
    except ValueError:
        return False
    return True


def prometheus(values: dict[str, float | None], name: str) -> str:
    """The values in Prometheus' exposition format."""
    run = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []
    for key, value in values.items():
        if value is not None:
            kind = "counter" if key == "tokens" else "gauge"
            full = f"recipe_training_{key}" + ("_total" if kind == "counter" else "")
            lines += [
                f"# HELP {full} {_HELP[key]}",
                f"# TYPE {full} {kind}",
                f'{full}{{run="{run}"}} {value}',
            ]
    return "\n".join([*lines, ""])


def peak_memory_bytes(device: torch.device) -> int:
    """Peak memory: of the allocator on a device, of the process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
