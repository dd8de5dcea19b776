"""Compare estimates with all measured runs and logs: write docs/reference/accuracy.md.

    python scripts/accuracy.py TRUTH_DIR

The comparison is that of ``recipe validate``, over the full data instead of the shipped table. The
intervals come from scripts/fit_bands.py, which also writes how often they hold.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accuracy_memory
import accuracy_own_runs
import accuracy_pools
import accuracy_training
import numpy as np
import pandas as pd
import publish_runs
import publish_training
from long_tables import move_long_tables

from recipe_core.base.documents import read_document
from recipe_core.base.units import share_text
from recipe_core.calibration.validation.comparison import (
    CELL,
    Comparison,
    compare_training,
    compare_with_estimates,
)
from recipe_core.calibration.validation.regret import TITLES, regret_tables
from recipe_core.calibration.validation.validate import (
    CELL_SIZE,
    PAIRINGS,
    SCORED,
    format_table,
    group_errors,
    primary_score,
    scored_figures,
    split_pairs,
    split_ranking,
)
from recipe_core.estimates.measured.runs import SOURCES, Run, listing_ids, published_runs
from recipe_core.hardware.cluster import device_profile
from recipe_core.models.catalog import catalog_model, in_catalog

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reference" / "accuracy.md"
LEFT_OUT = ROOT / "docs" / "reference" / "accuracy" / "leave_one_out.json"
INTERVALS = ROOT / "docs" / "reference" / "accuracy" / "intervals.json"
VENDOR_FACTOR = 1.3
RANKED_RIGHT = 0.85
WORST = 8

# What is asked of this version: a title, mode and figure of the primary score of scored runs, and
# the most for the median and the p90 of the cells.
TARGETS = (
    ("time per output token, N users at once", "closed", "tpot_ms", 0.085, 0.18),
    ("time to first token, N users at once", "closed", "ttft_ms", 0.18, 0.42),
    ("throughput, all queued", "offline", "output_tokens_per_s", 0.105, 0.28),
    ("latency of a static batch", "static", "request_latency_ms", 0.12, 0.18),
)


def fitted_numbers(value: Any) -> int:
    """The number of fitted values in a data file; an ``any`` equal to a sibling does not count."""
    if isinstance(value, dict):
        if value.get("status") == "fitted":
            return sum(map(_figure_numbers, value.values()))
        return sum(
            fitted_numbers(part)
            for key, part in value.items()
            if not (key == "any" and list(value.values()).count(part) > 1)
        )
    return sum(map(fitted_numbers, value)) if isinstance(value, list) else 0


def _figure_numbers(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_figure_numbers, value.values()))
    return isinstance(value, int | float) and not isinstance(value, bool)


def counted() -> pd.DataFrame:
    """Fitted numbers by file: devices, fabrics, engines."""
    files = [
        *(ROOT / "hw_profiles").glob("**/*.yaml"),
        *(ROOT / "recipe_core" / "engines" / "serving").glob("*.yaml"),
    ]
    rows = [
        (path.relative_to(ROOT).as_posix(), fitted_numbers(read_document(path)))
        for path in sorted(files)
    ]
    return pd.DataFrame([row for row in rows if row[1]], columns=["file", "fitted numbers"])


def serving_markdown(table: pd.DataFrame) -> str:
    """A table in Markdown, as people read it."""
    words = format_table(table)
    lines = [list(map(str, words)), ["---"] * words.shape[1], *words.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Score:
    """The primary score of a figure: NaN and 0 where no cell counts."""

    median: float
    p90: float
    cells: int

    def __str__(self) -> str:
        return f"{100 * self.median:.1f} % / {100 * self.p90:.1f} %" if self.cells else "–"


def _scores(figures: pd.DataFrame) -> dict[tuple[str, str], Score]:
    """The primary score of scored runs, by mode and figure."""
    table = primary_score(figures)
    return {
        (row["mode"], row.figure): Score(row.cell_median, row.cell_p90, row.cells)
        for _, row in table[table.runs.eq(SCORED)].iterrows()
    }


NO_SCORE = Score(np.nan, np.nan, 0)


def _verdict(score: Score, median: float, p90: float, vendors: list[Score]) -> str:
    uneven = any(vendor.median > VENDOR_FACTOR * score.median for vendor in vendors)
    words = [
        f"{name} {'met' if reached <= aim else 'missed'}"
        for name, reached, aim in (("median", score.median, median), ("p90", score.p90, p90))
    ]
    return ", ".join([*words, *(["vendors uneven"] if uneven else [])])


def serving_targets(figures: pd.DataFrame) -> str:
    """The targets of this version, and what was reached."""
    lines = ["| what | target | all | NVIDIA | AMD | cells | |", "|---|---|---|---|---|---|---|"]
    parts = (figures, *(figures[figures.vendor.eq(name)] for name in ("nvidia", "amd")))
    of_parts = [_scores(part) for part in parts]
    for title, mode, figure, median, p90 in TARGETS:
        total, *vendors = (scores.get((mode, figure), NO_SCORE) for scores in of_parts)
        shown = " | ".join(map(str, (total, *vendors)))
        verdict = _verdict(total, median, p90, vendors)
        aims = f"{100 * median:.1f} % / {100 * p90:.1f} %"
        lines.append(f"| {title} | {aims} | {shown} | {total.cells} | {verdict} |")
    for pairing in PAIRINGS:
        ranked = split_pairs(scored_figures(figures), pairing)
        share, *vendors = (
            part.right.mean()
            for part in (ranked, ranked[ranked.vendor == "nvidia"], ranked[ranked.vendor == "amd"])
        )
        shown = " | ".join(
            "–" if np.isnan(part) else f"{100 * part:.0f} %" for part in (share, *vendors)
        )
        verdict = "met" if share >= RANKED_RIGHT else "missed"
        title = f"better layout known, {pairing.title}"
        lines.append(
            f"| {title} | {100 * RANKED_RIGHT:.0f} % | {shown} | {len(ranked)} pairs | {verdict} |"
        )
    return "\n".join(lines)


def worst(figures: pd.DataFrame) -> pd.DataFrame:
    """The cells with the largest median errors, of each figure that has a target."""
    cells = group_errors(figures, ["figure", *CELL, "engine"])
    parts = [
        cells[cells.figure.eq(figure)].nlargest(WORST, "median")
        for figure in ("tpot_ms", "output_tokens_per_s", "ttft_ms")
    ]
    return pd.concat(parts)[
        ["figure", "source", "device", "model", "engine", "n", "median", "bias"]
    ]


def apart(figures: pd.DataFrame) -> str:
    """Scores of sources whose engine another one stands for, and of the others in their modes."""
    standing = {name for name, of in read_document(SOURCES).items() if "asked_as" in of}
    in_standing = figures.source.isin(standing)
    same = figures["mode"].isin(figures["mode"][in_standing].unique())
    tables = {
        ", ".join(sorted(standing)): figures[in_standing],
        "all others": figures[same & ~in_standing],
    }
    parts = []
    for title, rows in tables.items():
        table = primary_score(rows)
        parts.append(table[table.runs.eq(SCORED)].drop(columns="runs").assign(sources=title))
    return serving_markdown(pd.concat(parts, ignore_index=True))


def peak_shares(runs: list[Run]) -> dict[str, float]:
    """By id, the share of its devices' peak arithmetic rate that a run's own figures imply: 2 flops
    a parameter and token.

    A lower bound, as attention is left out and the peak is that of the fastest dtype; runs of
    models not known are left out.
    """
    shares = {}
    for run in runs:
        if not in_catalog(run.model):
            continue
        latency_s = ((run.ttft_ms or 0.0) + (run.tpot_ms or 0.0) * (run.output_tokens - 1)) / 1e3
        closed = (
            run.load / latency_s if run.mode == "closed" and run.ttft_ms and run.tpot_ms else 0.0
        )
        requests_per_s = (
            run.output_tokens_per_s / run.output_tokens if run.output_tokens_per_s else closed
        )
        flops_per_s = (
            2
            * catalog_model(run.model).active_parameters
            * requests_per_s
            * (run.input_tokens + run.output_tokens)
        )
        peak = max(figure.value for figure in device_profile(run.device).peak_flops_per_s.values())
        shares[run.id] = flops_per_s / (peak * run.nodes * run.per_node)
    return shares


def beyond_peak(figures: pd.DataFrame, runs: list[Run]) -> str:
    """Runs that cannot have been as they are described, and the scores without them."""
    shares = {
        name: share
        for name, share in peak_shares(runs).items()
        if share > 1 and name in set(figures.id)
    }
    titles = {
        run.id: f"{run.title}, {run.load:,.0f} × "
        f"({run.input_tokens:,} + {run.output_tokens:,}) tokens"
        for run in runs
    }
    lines = [f"* {titles[name]}: {share:.2f} × the peak" for name, share in shares.items()]
    rest = _scores(figures[~figures.id.isin(set(shares))])
    scores = ", ".join(
        f"{title} {rest.get((mode, figure), NO_SCORE)}" for title, mode, figure, *_ in TARGETS
    )
    return "\n".join(
        [*(lines or ["* none"]), "", f"Primary score of scored runs without them: {scores}."]
    )


def serving_left_out() -> str:
    """Say what becomes of the scores when a model or a source is left out of the fit."""
    if not LEFT_OUT.exists():
        return "Not measured for this version."
    scores = json.loads(LEFT_OUT.read_text())
    names = [
        name
        for name in ("plain", *(f"leave_one_{part}_out" for part in ("model", "version", "source")))
        if name in scores
    ]
    lines = [
        f"| figure | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for figure in scores["plain"]:
        of_figure = [scores[name].get(figure) for name in names]
        cells = " | ".join(
            "–" if score is None else f"{100 * score['median']:.1f} % / {100 * score['p90']:.1f} %"
            for score in of_figure
        )
        lines.append(f"| {figure} | {cells} |")
    return "\n".join(lines)


def intervals() -> str:
    """Say how often measured runs of sources left out are inside their intervals."""
    report = json.loads(INTERVALS.read_text())
    parts = []
    for kind, title in (("serving", "Serving"), ("training", "Training")):
        for name, records in report[kind].items():
            if name not in ("comparisons", "regret"):
                parts.append(f"{title}, {name}:\n\n{serving_markdown(pd.DataFrame(records))}")
    pairs_of = serving_markdown(pd.DataFrame(report["serving"]["comparisons"]))
    tables = "\n\n".join(parts)
    return f"""## Intervals

Written by `python scripts/fit_bands.py TRUTH_DIR --write`; `recipe validate --bands` counts the
shipped runs, or a table of your own. Estimates have 50, 80 and 95 % intervals by figure, by what
the device's figures rest on, and by engine and device generation; groups with few cells are pooled
with wider ones. They come from runs left out of the fit
(`scripts/interval_fit.py`). Each source below is held against intervals
that the other sources give; cells count alike. "80 % is" has the ends of the 80 % interval around
its middle. `recipe validate --sizes` counts how often measured sizes lie in the ranges that these
intervals give ([sizing](../guide/size.md#does-it-hold)).

![Measured runs inside intervals](../images/intervals.svg)

{tables}

What runs of one device, engine and version have in common cancels where their layouts are compared.
How often the layout that is estimated to be better was better, by the probability that it is given
(runs of one source, device, model, engine version, workload and load that differ in layout):

{pairs_of}"""


def serving_sources() -> str:
    """Whose figures they are, and how they were measured."""
    sources_by_name = read_document(SOURCES)
    lines = ["| source | what | how it was measured |", "|---|---|---|"]
    return "\n".join(
        [
            *lines,
            *(
                f"| {name} | [{of['title']}]({of['url']}) | {of['how']} |"
                for name, of in sources_by_name.items()
            ),
        ]
    )


def refused_runs_text(comparison: Comparison) -> str:
    reasons = "\n".join(f"* {n:,} × {reason}" for reason, n in comparison.not_covered.most_common())
    wrong = "\n".join(f"* {run.title}: {reason}" for run, reason in comparison.refused)
    return (
        f"Not covered:\n\n{reasons or '* none'}\n\n"
        f"Called impossible although measured:\n\n{wrong or '* none'}"
    )


def accuracy_page(comparison: Comparison, runs: list[Run], memory: str, own_runs: str) -> str:
    """docs/reference/accuracy.md."""
    f = comparison.figures
    return (
        accuracy_introduction(comparison)
        + score_sections(f)
        + speed_sections(f)
        + f"""## With runs of your own

{own_runs}

## Models and sources left out of the fit

{serving_left_out()}

{intervals()}

"""
        + split_sections(f, runs)
        + source_sections(comparison, memory)
    )


def accuracy_introduction(comparison: Comparison) -> str:
    """Say what is compared, and how errors are counted."""
    f = comparison.figures
    return f"""# How wrong the numbers are

Written by `python scripts/accuracy.py TRUTH_DIR`, which compares estimates with every published
run of the calibration data. `recipe validate` does the same for the {len(published_runs())} runs
that come with the package, and for a table of your own.

Of {comparison.runs:,} runs {f.id.nunique():,} could be estimated: {f.source.nunique()} sources,
{f.model.nunique()} models, {f.device.nunique()} devices, {f.engine.nunique()} engines.
{comparison.not_covered.total():,} name a model or an engine that this version does not cover,
{len(comparison.refused)} are called impossible although somebody measured them
([which](#runs-without-an-estimate)).

An error is |estimated / measured - 1|; est/meas is the median of estimated / measured; in band is
the share of measurements inside the estimate's band. A cell is a source × device × model. The
primary score is the median, and the 90th percentile, over cells of {CELL_SIZE} figures or more of
the cell's median error: a source with thousands of runs counts no more than one with three. Scored
runs are those that the data do not exclude (copies, experiments, prompts from a cache, unstated
limits) and that are no example listings ({", ".join(sorted(listing_ids()))}); the targets and the
bands are of scored runs, every other table is of all. Nightly runs of one configuration differ by
5 % (median) to 30 % (p90) in time per output token, and engine versions by 1.1 to 1.3 × in
throughput, so errors under 8 % are within the noise.

"""


def score_sections(f: pd.DataFrame) -> str:
    """Scored runs against the targets, and the primary score."""
    return f"""## Against the targets

Scored runs: the primary score, median / p90 of cells, and pairs of layouts. No vendor's
median may be worse than {VENDOR_FACTOR} × that of all.

{serving_targets(f)}

## Primary score

{serving_markdown(primary_score(f))}

Sources whose engine is older than any here are asked as its successor, without overheads and
collectives of their own:

{apart(f)}

"""


def speed_sections(f: pd.DataFrame) -> str:
    """Errors by figure, vendor, engine, device and source."""
    generated = f[f.figure.ne("total_tokens_per_s")]
    return f"""## Speed

By figure:

{serving_markdown(group_errors(f, ["mode", "figure"]))}

By vendor:

{serving_markdown(group_errors(f, ["vendor", "mode", "figure"]))}

By engine:

{serving_markdown(group_errors(f, ["engine", "mode", "figure"]))}

By device:

{serving_markdown(group_errors(generated, ["device", "mode", "figure"]))}

By source:

{serving_markdown(group_errors(generated, ["source", "mode", "figure"]))}

"""


REGRETS = ("vendors", "compared", "worst", "prices")


def left_out_regrets() -> str:
    """Say what choices cost by estimates of fits that have not seen the source."""
    rows = json.loads(INTERVALS.read_text())["serving"]["regret"]
    ends = [
        (row["choice"], share_text(row["median"], 1), share_text(row["p90"], 1)) for row in rows
    ]
    return ", ".join(f"{choice} {median} / {p90}" for choice, median, p90 in ends)


def regret_section(f: pd.DataFrame) -> str:
    """Say what choosing by estimates costs beyond the best measured choice."""
    tables = regret_tables(f)
    shown = [(TITLES[name], tables[TITLES[name]]) for name in REGRETS]
    joined = "\n\n".join(f"{title}:\n\n{serving_markdown(table)}" for title, table in shown)
    return f"""## What a choice by estimates costs

`recipe validate --regret` counts the shipped runs, or a table of your own
([how](../guide/plan.md#what-does-the-choice-cost)). Median / 90th percentile, sweeps alike, in
sample; by estimates of fits without a run's source (`scripts/fit_bands.py`)
{left_out_regrets()}. Layouts of InferenceX are in doubt: its runs take no part. Of AMD's nine
sweeps four are of one nightly build, whose 4 devices are slower than half of its 8. TensorRT-LLM
0.14 holds fewer sequences than estimated where weights leave little memory, and gains less from TP
8.

{joined}"""


def split_sections(f: pd.DataFrame, runs: list[Run]) -> str:
    """The order of splits, and where estimates are worst."""
    return f"""## The better of two layouts

Pairs of runs that differ in layout, and by more than 10 % in the figure; all else is equal. Layouts
over different numbers of GPUs are compared by throughput per GPU, and by time without scaling.
Where versions differ, the pair measures the version as much as the layout; a pair whose estimates
tie (within 1 %) says nothing about either.

{serving_markdown(split_ranking(f))}

{regret_section(f)}

## The worst cells

The sources' own conditions, below, explain some of them.

{serving_markdown(worst(f))}

Runs whose figures imply more arithmetic than their devices' peak (2 flops per parameter and token):
prompts came from a cache, or the load is not the stated one. They count in every table here, but
not as scored runs where the data exclude them.

{beyond_peak(f, runs)}

"""


def source_sections(comparison: Comparison, memory: str) -> str:
    """Fitted numbers, sources, runs without an estimate, and memory."""
    numbers = counted()
    return f"""## Fitted numbers

{numbers["fitted numbers"].sum():,} numbers in data files have the status `fitted`: four per
operator family and dtype of a device, and what engines and fabrics add. None is keyed by a model
(`tests/calibration/test_validate.py` checks).

{serving_markdown(numbers)}

## Sources

{serving_sources()}

## Runs without an estimate

{refused_runs_text(comparison)}

## Memory

Weights and cache are also compared with the real transformers models on torch's meta device
(`tests/calibration/test_trace.py`, 28 model × layout cases: weights within 0.07 %, cache per token
exact).
Below: what vLLM logged at its start, against the estimate at the same limits.

{memory}
"""


def main() -> None:
    truth = Path(sys.argv[1])
    runs = publish_runs.as_runs(publish_runs.published_serving_runs(truth))
    comparison = compare_with_estimates(runs)
    capacities = accuracy_memory.capacity(truth / "kv_capacity_trtllm.csv")
    memory = accuracy_memory.memory_report(
        accuracy_memory.compare_memory(truth / "memory_facts.csv"), capacities
    )
    training = accuracy_training.training_section(
        compare_training(publish_training.published_training_runs(truth)), truth
    )
    own_runs = accuracy_own_runs.own_runs_section(truth)
    pools = accuracy_pools.pools_section(accuracy_pools.compare_pools(truth))
    text = accuracy_page(comparison, runs, memory, own_runs).rstrip()
    REPORT.write_text(move_long_tables(f"{text}\n\n{pools}\n{training}", LEFT_OUT.parent))
    print(serving_targets(comparison.figures))
    print(f"wrote {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
