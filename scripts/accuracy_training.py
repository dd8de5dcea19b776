"""Training estimates beside all published runs: the section on training of the accuracy page.

    python scripts/accuracy_training.py TRUTH_DIR

The comparison is that of ``recipe validate --training``, over the full data instead of the shipped
table. accuracy.py writes the section with the rest of the document; run alone, this replaces the
section only.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import publish_training
from long_tables import move_long_tables

from recipe_core.base.documents import read_document
from recipe_core.calibration.validation.comparison import CELL, Comparison, compare_training
from recipe_core.calibration.validation.validate import format_table, group_errors
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.measured.runs import (
    KNOWN_RUNS,
    TRAINING_RUNS,
    published_training_runs,
    read_training_runs,
)

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reference" / "accuracy.md"
LEFT_OUT = ROOT / "docs" / "reference" / "accuracy" / "training_left_out.json"
HEADING = "## Training"
# What is asked of this version: a title, the figure, how many of the cells' or sources' medians are
# taken together, and the aim.
TIME, MEMORY = "step_s", "peak_memory_gib"
TARGETS = (
    ("time of a step, median over cells", TIME, list(CELL), np.median, 0.12),
    ("time of a step, worst source", TIME, ["source"], np.max, 0.20),
    ("peak memory, all runs", MEMORY, [], np.median, 0.08),
    ("peak memory, worst source", MEMORY, ["source"], np.max, 0.20),
)


def training_markdown(table: pd.DataFrame) -> str:
    """A table of errors in Markdown."""
    words = format_table(table)
    lines = [f"| {' | '.join(map(str, words))} |", "|---" * len(words.columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in words.itertuples(index=False))])


def training_targets(figures: pd.DataFrame) -> str:
    """The aims, and whether they are met."""
    lines = ["| figure | aim | error | |", "|---|---|---|---|"]
    for title, figure, keys, together, aim in TARGETS:
        rows = figures[figures.figure.eq(figure)]
        error = float(together(rows.groupby(keys).error.median() if keys else rows.error))
        lines.append(
            f"| {title} | {100 * aim:.0f} % | {100 * error:.1f} % "
            f"| {'met' if error <= aim else 'missed'} |"
        )
    return "\n".join(lines)


def training_bands(figures: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """p10 and p90 of measured / estimated, each cell with the same weight."""
    out: dict[str, tuple[float, float]] = {}
    for figure, rows in figures.groupby("figure"):
        weight = 1.0 / rows.groupby(list(CELL)).ratio.transform("size")
        low, high = np.quantile(1.0 / rows.ratio, [0.1, 0.9], weights=weight, method="inverted_cdf")
        out[str(figure)] = (round(float(low), 2), round(float(high), 2))
    return out


def failures(truth: Path) -> tuple[int, int]:
    """Runs that failed, and how many of them are refused."""
    comparison = compare_training(publish_training.failed(truth))
    return comparison.runs, len(comparison.refused)


def compare_known_runs() -> str:
    """Runs that everybody knows: measured and estimated, none of them in the fit."""
    runs = read_training_runs(KNOWN_RUNS)
    comparison = compare_training(runs)
    refused = {run.id: reason for run, reason in comparison.refused}
    rows = comparison.figures.set_index("id")
    lines = [
        "| run | devices | measured | estimated | ratio | |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        devices = run.nodes * run.per_node
        tokens = run.global_batch * run.sequence_length / devices
        measured, estimated = tokens / rows.measured[run.id], tokens / rows.estimated[run.id]
        lines.append(
            f"| {run.model}, {run.sequence_length:,} tokens | {devices:,} × {run.device} | "
            f"{measured:,.0f} | {estimated:,.0f} | {estimated / measured:.2f} | "
            f"{refused.get(run.id, 'accepted')} |"
        )
    return "\n".join(lines)


def training_left_out() -> str:
    """Say what happens to a source's error when it takes no part in the fit."""
    if not LEFT_OUT.exists():
        return "Not measured for this version."
    lines = ["| source | runs | median | p90 |", "|---|---|---|---|"]
    rows = json.loads(LEFT_OUT.read_text())
    return "\n".join(
        [
            *lines,
            *(
                f"| {row['source']} | {row['runs']:,} | {100 * row['median']:.1f} % "
                f"| {100 * row['p90']:.1f} % |"
                for row in rows
            ),
        ]
    )


def training_sources() -> str:
    """Whose figures they are, and what to know of them."""
    sources_by_name = read_document(TRAINING_RUNS.with_name("training_sources.yaml"))
    lines = ["| source | what | what to know |", "|---|---|---|"]
    return "\n".join(
        [
            *lines,
            *(
                f"| {name} | [{of['title']}]({of['url']}) | {of['how']} |"
                for name, of in sources_by_name.items()
            ),
        ]
    )


def training_section(comparison: Comparison, truth: Path) -> str:
    """The section, heading first."""
    f = comparison.figures
    accepted = 1 - len(comparison.refused) / comparison.runs
    failed, caught = failures(truth)
    shown = ", ".join(
        f"{name} {low:.2f} to {high:.2f}" for name, (low, high) in training_bands(f).items()
    )
    return f"""{HEADING}

Written by `python scripts/accuracy_training.py TRUTH_DIR` (and by `scripts/accuracy.py` with the
rest). `recipe validate --training` does the same for the {len(published_training_runs())} runs that
come with the package, and for a table of your own.

{comparison.runs:,} runs that a request can express: {f.source.nunique()} sources,
{f.model.nunique()} models, {f.device.nunique()} devices, {f.engine.nunique()} engines. The time of
a step also stands for tokens per second. The constants of training were fitted to these same runs,
so these errors are in sample; each source's error in a fit without it is below.

{training_targets(f)}

By figure and source:

{training_markdown(group_errors(f, ["figure", "source"]))}

By device and engine:

{training_markdown(group_errors(f, ["figure", "device", "engine"]))}

p10 to p90 of measured / estimated, each cell alike: {shown}.

**Runs that everybody knows**, in tokens per second and device. They are in
`recipe_core/estimates/measured/published/known_training.csv` with what each source states and what
had to be chosen; no constant was fitted to them.

{compare_known_runs()}

**Verdicts.** {100 * accepted:.1f} % of the runs are accepted; where a source does not say what it
recomputed, with the least recomputation that fits. Of {failed} runs that ran out of memory, crashed
or timed out (one label), {100 * (caught / failed):.1f} % are refused. Memory estimated up to
{100 * training_data().figures.tight.value:.1f} % too high is accepted.

**Sources left out of the fit.** Each row is a fit without that source; which constants to fit, and
the form of the fit, were chosen with all of them in view.

{training_left_out()}

{training_sources()}
"""


def replaced(document: str, new: str) -> str:
    """The document with its section on training exchanged, or with it added at the end."""
    pattern = re.compile(rf"^{HEADING}$.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if not pattern.search(document):
        return f"{document.rstrip()}\n\n{new}"
    return pattern.sub(lambda _: f"{new}\n", document).rstrip() + "\n"


def main() -> None:
    truth = Path(sys.argv[1])
    comparison = compare_training(publish_training.published_training_runs(truth))
    text = replaced(REPORT.read_text(), training_section(comparison, truth))
    REPORT.write_text(move_long_tables(text, LEFT_OUT.parent))
    print(training_targets(comparison.figures))
    print(training_bands(comparison.figures))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
