"""The command ``compress``: make the checkpoint, whole or not at all, and hold it against its base.

The tool runs in a process of its own, with its log in ``run/compressed/``. It writes to a hidden
folder, which gets its name once it is whole and its files have digests: whenever this is killed,
nothing half-written is taken for a result. A finished output is kept.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import files, report, state
from .compress_run import (
    check_making,
    fetch_base_model,
    interpreter,
    put_output_in_place,
    remove_folder,
    run_making_tool,
    stop_leftover,
)
from .errors import InputError, LauncherError
from .files import read_object, write_json
from .machine import detect_machine
from .making import RECORD, RESULT, Making
from .measurement import measurement_head
from .plan import LaunchPlan
from .request import Request
from .supervisor import Progress

# Exit code of the check where more was lost than the job allows.
_LOST = 3


def run_compress(request: Request) -> int:
    """Make what is missing, and check it; 1 where more was lost than the job allows."""
    plan = request.plan()
    making = plan.making
    if making is None:
        raise InputError(
            "this bundle makes no checkpoint.",
            hint="Ask for one when it is built: options.compression.",
        )
    progress = Progress(request.as_json)
    with state.exclusive(making.output.parent):
        already = make_checkpoint(request, plan, making, progress)
        figures = None if request.no_verify else verify_output(request, plan, making, progress)
    data = {
        "state": "made",
        "already": already,
        "output": str(making.output),
        "model": making.served,
        "verification": figures,
    }
    request.show(data, lambda: _describe_making(plan, making, data))
    return 1 if figures is not None and not figures.get("passed", True) else 0


def make_checkpoint(request: Request, plan: LaunchPlan, making: Making, progress: Progress) -> bool:
    """Make the output unless it is there; returns whether it was.

    Raises:
        PreflightError: where the tool, memory or disk is missing.
        StartError: where the tool fails; the end of its log comes with it.
    """
    stop_leftover(making)
    digest = job_digest(plan, making)
    if making.finished and not request.again:
        if _made_by(making, digest):
            return True
        raise LauncherError(
            f"{making.output} was made by another job than this bundle's.",
            hint="Make it again: python launch.py compress --again",
        )
    python = interpreter(request, plan, making)
    checked = check_making(plan, making, python)
    progress.say(report.preflight_text(checked))
    checked.require(but=("memory", "disk") if request.anyway else ())
    source = fetch_base_model(request.model or making.source, python, making, progress)
    began = time.monotonic()
    remove_folder(making.part)
    job = _write_job(making, source, making.part)
    run_making_tool(making, python, _fill_tool_words(plan, making.argv, job), progress)
    seconds = time.monotonic() - began
    put_output_in_place(making, digest, source, seconds)
    progress.say(f"made {making.output} in {seconds:.0f} s")
    return False


def verify_output(
    request: Request, plan: LaunchPlan, making: Making, progress: Progress
) -> dict[str, Any] | None:
    """Hold the output against its base; the figures, which are kept in ``run/``."""
    path, record = plan.run / RESULT, read_object(making.output / RECORD)
    if path.is_file() and not request.again:
        last_result = read_object(path)
        if last_result.get("output_digest") == record["digest"]:
            return dict(last_result["verification"])
    if not making.verify:
        return None
    python = interpreter(request, plan, making)
    job = _write_job(making, record["source"], making.output, verify_only=True)
    result = job.with_name(f".{making.name}.result.json")
    result.unlink(missing_ok=True)
    words = [*_fill_tool_words(plan, making.verify, job), "--verify-only", "--result", str(result)]
    code = run_making_tool(making, python, words, progress, fails=(0, _LOST))
    figures = read_object(result)
    figures["passed"] = code == 0
    write_json(path, _measurement(plan, making, record, figures))
    return figures


def job_digest(plan: LaunchPlan, making: Making) -> str:
    """Say what decides the output: the digests of the job and of the tool's script."""
    listed = read_object(plan.root / files.NAME).get("files", {})
    folder = making.job.relative_to(plan.root).parts[0]
    names = sorted(name for name in listed if name.startswith(f"{folder}/"))
    return "-".join([making.tool, *(str(listed[name])[:16] for name in names)])


def _made_by(making: Making, digest: str) -> bool:
    """Return whether a finished output is this job's, with every file of the size that it had."""
    record = read_object(making.output / RECORD)
    sizes = {name: file["bytes"] for name, file in record.get("files", {}).items()}
    complete = all(
        (making.output / name).is_file() and (making.output / name).stat().st_size == size
        for name, size in sizes.items()
    )
    return record.get("job") == digest and complete


def _write_job(making: Making, source: str, output: Path, *, verify_only: bool = False) -> Path:
    """The job with its folders on this machine; paths of its texts become absolute."""
    job = read_object(making.job)
    job |= {"source": source, "output": str(output)}
    for part in ("calibration", "verify"):
        if (job.get(part) or {}).get("text"):
            job[part]["text"] = str((making.job.parent / job[part]["text"]).resolve())
    if not verify_only:
        job["verify"] = None
    path = making.output.with_name(f".{making.name}.job.json")
    write_json(path, job)
    return path


def _fill_tool_words(plan: LaunchPlan, argv: tuple[str, ...], job: Path) -> list[str]:
    values = {"${root}": str(plan.root), "${job}": str(job), "${run}": str(plan.run)}
    words = list(argv)
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


def _measurement(
    plan: LaunchPlan, making: Making, record: dict[str, Any], figures: dict[str, Any]
) -> dict[str, Any]:
    """Return ``run/compression.json``: what was made of what, on what, and how good it is."""
    return {
        **measurement_head(plan, detect_machine(), datetime.now(timezone.utc)),
        "kind": "compression",
        "source": making.source,
        "technique": making.technique,
        "method": making.method,
        "tool": making.title,
        "seconds": {"measured": record["seconds"], "predicted": making.seconds},
        "output_bytes": sum(file["bytes"] for file in record["files"].values()),
        "output_digest": record["digest"],
        "text": Path((read_object(making.job).get("verify") or {}).get("text") or "").name,
        "verification": figures,
    }


def _describe_making(plan: LaunchPlan, making: Making, data: dict[str, Any]) -> str:
    lines = ["already made" if data["already"] else "made", f"  {making.title}, {making.output}"]
    figures = data["verification"]
    if figures:
        lines += [f"  {line}" for line in _describe_retained(figures)]
        lines.append(f"written: {plan.run / RESULT}")
        if not figures.get("passed", True):
            lines.append("More was lost than the job allows (verify.least_retained).")
    return "\n".join([*lines, "Serve it: python launch.py up"])


def _describe_retained(figures: dict[str, Any]) -> list[str]:
    """Say what was measured, in words; figures that are missing are left out."""
    retained = figures.get("retained") or {}
    lines = []
    if "perplexity" in retained:
        lines.append(f"{100 * retained['perplexity']:.2f} % of the base's perplexity retained")
    if retained.get("agreement") is not None:
        lines.append(f"{100 * retained['agreement']:.1f} % of the tokens of greedy answers alike")
    if figures.get("base_bytes") and figures.get("bytes"):
        share = figures["bytes"] / figures["base_bytes"]
        lines.append(f"{100 * share:.1f} % of the base's bytes")
    return lines
