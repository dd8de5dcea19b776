"""Errors of estimates against measured runs: by figure, by group, and of the order of splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.errors import InputError, unknown
from recipe_core.base.intervals import BAND, LEVELS
from recipe_core.base.units import share_text
from recipe_core.calibration.validation.comparison import CELL, Comparison
from recipe_core.estimates.measured.runs import LIMITS, SHOWN, SPLIT, listing_ids
from recipe_core.hardware.cluster import device_profile

BY = ("device", "model", "source", "engine")
# Measured figures from which a cell counts in the primary score.
CELL_SIZE = 3
ALL, SCORED = "all", "scored"
RANKED = ("output_tokens_per_s", "tpot_ms", "request_latency_ms")
# Measured difference from which splits are compared; less is within the noise of benchmarks.
MARGIN = 0.10
# Estimated difference below which two splits count as tied.
TIE = 0.01


def group_errors(figures: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Errors of groups of figures.

    Columns: ``n``; ``median``, ``mean`` and ``p90`` of |estimated / measured - 1|; ``bias``, the
    median of estimated / measured; ``inside``, the share of measurements inside the band; ``cells``
    and ``cell_mean``, the number of source × device × model cells and the mean of the cells'
    medians, in which a large source counts no more than a small one.
    """
    keys = list(by)
    inside = figures.measured.between(figures.low, figures.high)
    grouped = figures.assign(inside=inside).groupby(keys, sort=True)
    out = grouped.agg(
        n=("error", "size"),
        median=("error", "median"),
        mean=("error", "mean"),
        p90=("error", lambda error: error.quantile(0.9)),
        bias=("ratio", "median"),
        inside=("inside", "mean"),
    )
    cells = figures.groupby(list(dict.fromkeys([*keys, *CELL]))).error.median().groupby(level=keys)
    return out.assign(cells=cells.size(), cell_mean=cells.mean()).reset_index()


def scored_figures(figures: pd.DataFrame) -> pd.DataFrame:
    """The figures without those of excluded runs and of sources that list examples."""
    return figures[figures.exclude.eq("") & ~figures.source.isin(listing_ids())]


def primary_score(figures: pd.DataFrame) -> pd.DataFrame:
    """The score that counts: errors over cells of ``CELL_SIZE`` figures or more.

    Columns: ``runs`` (``ALL``, or ``SCORED`` as `scored_figures` says), ``mode`` (with the
    scenario, if a run has one), ``figure``; ``cells``; ``cell_median`` and ``cell_p90``, the median
    and the 90th percentile of the cells' median errors; ``n``, ``median`` and ``within_20``, the
    share of errors up to 20 %, of all figures, those of smaller cells too. What has no such cell
    has no row.
    """
    tables = [_primary_table(figures, ALL), _primary_table(scored_figures(figures), SCORED)]
    return pd.concat(tables, ignore_index=True)


def _primary_table(figures: pd.DataFrame, runs: str) -> pd.DataFrame:
    scenario = figures["mode"].where(
        figures.scenario.eq(""), figures["mode"] + ", " + figures.scenario
    )
    figures, keys = figures.assign(mode=scenario), ["mode", "figure"]
    in_cell = figures.groupby([*keys, *CELL]).error.transform("size")
    medians = figures[in_cell >= CELL_SIZE].groupby([*keys, *CELL]).error.median()
    cells = medians.groupby(level=keys).agg(
        cells="size", cell_median="median", cell_p90=lambda error: error.quantile(0.9)
    )
    single = figures.groupby(keys).agg(
        n=("error", "size"),
        median=("error", "median"),
        within_20=("error", lambda error: (error <= 0.2).mean()),
    )
    table: pd.DataFrame = cells.join(single).reset_index()
    table.insert(0, "runs", runs)
    return table


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairs of runs that are compared as splits of one problem, all else being equal."""

    title: str
    same_devices: bool
    same_version: bool


PAIRINGS = (
    Pairing("same GPUs, same version", True, True),
    Pairing("same GPUs, any version", True, False),
    Pairing("any number of GPUs, same version", False, True),
)


def split_pairs(figures: pd.DataFrame, pairing: Pairing) -> pd.DataFrame:
    """Pairs of runs that differ only in split and, by more than ``MARGIN``, in a measured figure.

    Both have the source, model, device, engine, dtypes, limits, lengths and load in common and, as
    ``pairing`` says, the number of devices and the engine's version. The better of two splits has
    the higher throughput per device or the shorter time. Columns: ``source``, ``vendor``,
    ``figure``; ``measured`` and ``estimated``, the log of the measured better one over the other;
    ``right``, whether the estimate ranks it first, too, and ``tied``, whether the estimates differ
    by less than ``TIE`` (right or not).
    """
    rows = figures[figures.figure.isin(RANKED)]
    rows = rows.assign(devices=rows.nodes * rows.per_node)
    rate = rows.figure.eq("output_tokens_per_s")
    for name in ("measured", "estimated"):
        rows[name] = np.where(rate, np.log(rows[name] / rows.devices), -np.log(rows[name]))
    keys = [
        *CELL,
        "engine",
        "weight_dtype",
        "kv_dtype",
        *LIMITS,
        "mode",
        "input_tokens",
        "output_tokens",
        "load",
        "figure",
    ]
    keys += ["devices"] * pairing.same_devices + ["version"] * pairing.same_version
    groups = [_pairs_of(group) for _, group in rows.groupby(keys, dropna=False) if len(group) > 1]
    columns = ["source", "vendor", "figure", "measured", "estimated", "right", "tied"]
    # the empty frame gives the columns where there are no pairs
    parts = [pd.DataFrame(columns=columns), *(group for group in groups if len(group))]
    out = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
    return out.astype({"right": bool, "tied": bool})


def _pairs_of(group: pd.DataFrame) -> pd.DataFrame:
    """All pairs of splits in a group that differ enough, the measured better one first."""
    first, second = np.triu_indices(len(group), 1)
    splits = group[list(SPLIT)].to_numpy()
    gaps = {
        name: group[name].to_numpy()[first] - group[name].to_numpy()[second]
        for name in ("measured", "estimated")
    }
    different = (splits[first] != splits[second]).any(axis=1)
    pairs = different & (np.abs(gaps["measured"]) > math.log1p(MARGIN))
    sign = np.sign(gaps["measured"][pairs])
    measured, estimated = gaps["measured"][pairs] * sign, gaps["estimated"][pairs] * sign
    columns = {
        **{name: group[name].iloc[0] for name in ("source", "vendor", "figure")},
        "measured": measured,
        "estimated": estimated,
        "right": estimated > 0,
        "tied": np.abs(estimated) < TIE,
    }
    return pd.DataFrame(columns, index=range(len(sign)))


def split_ranking(figures: pd.DataFrame) -> pd.DataFrame:
    """Return how often the better of two splits is ranked first, by pairing and figure.

    Columns: ``compared``, ``figure``, ``pairs``, and the shares ``right`` and ``tied``.
    """
    rows: list[tuple[str, str, int, float, float]] = []
    for pairing in PAIRINGS:
        compared = split_pairs(figures, pairing)
        parts = [*compared.groupby("figure"), ("all", compared)] if len(compared) else []
        rows += [
            (pairing.title, str(figure), len(part), part.right.mean(), part.tied.mean())
            for figure, part in parts
        ]
    return pd.DataFrame(rows, columns=["compared", "figure", "pairs", "right", "tied"])


def validation_sections(comparison: Comparison, by: str | None = None) -> dict[str, pd.DataFrame]:
    """Tables by name; ``by_<column>`` if asked for.

    Of serving ``primary``, ``figures``, ``vendors`` and ``ranking``, of training ``figures`` and
    ``sources``.

    Raises:
        InputError: ``by`` is not one of ``BY``.
    """
    figures = comparison.figures
    if by is not None and by not in BY:
        message, hint = unknown("column", by, BY)
        raise InputError(message, field="by", hint=hint)
    if comparison.kind == "training":
        tables = {
            "figures": group_errors(figures, ["figure"]),
            "sources": group_errors(figures, ["figure", "source"]),
        }
        return tables | ({f"by_{by}": group_errors(figures, ["figure", by])} if by else {})
    groups = {"figures": [], "vendors": ["vendor"]} | ({f"by_{by}": [by]} if by else {})
    return {
        "primary": primary_score(figures),
        **{name: group_errors(figures, [*keys, "mode", "figure"]) for name, keys in groups.items()},
        "ranking": split_ranking(figures),
    }


def validation_view(comparison: Comparison, by: str | None = None) -> dict[str, Any]:
    """The comparison as JSON values; errors and shares are fractions."""
    return {
        "runs": comparison.runs,
        "estimated": int(comparison.figures.id.nunique()),
        "not_covered": [
            {"reason": reason, "runs": n} for reason, n in comparison.not_covered.most_common()
        ],
        "refused": [
            {"id": run.id, "what": run.title, "reason": reason}
            for run, reason in comparison.refused
        ],
        **{
            name: table.to_dict(orient="records")
            for name, table in validation_sections(comparison, by).items()
        },
    }


TITLES = {
    "primary": f"Primary score: cells of {CELL_SIZE} figures or more",
    "figures": "By figure",
    "vendors": "By vendor",
    "sources": "By source",
    "ranking": "Pairs of layouts that differ by more than 10 %: is the better one ranked first?",
    "all": "All figures",
    "engines": "By engine and architecture",
}
HEADINGS = {
    "cell_median": "median of cells",
    "cell_p90": "p90 of cells",
    "within_20": "within 20 %",
    "bias": "est/meas",
    "inside": "in band",
    "cell_mean": "mean of cells",
    "inside_50": "in 50 %",
    "inside_80": "in 80 %",
    "inside_95": "in 95 %",
    "width": "80 % is",
    "better": "was better",
    "right": "ranked right",
    "tied": "estimates tie",
}


_NOTES = {
    "serving": (
        "Errors are |estimated / measured - 1|. A cell is a source × device × model; in band is\n"
        "the share of measurements inside the estimated range. The primary score takes the median\n"
        "error of each cell; scored runs are all but those that the table excludes and sources\n"
        "that list examples. Layouts on different numbers of GPUs are compared by throughput per\n"
        "GPU."
    ),
    "training": (
        "Errors are |estimated / measured - 1| of seconds per step (also where tokens per second\n"
        "were measured) and of GiB. A cell is a source × device × model; in band is the share of\n"
        "measurements inside the estimated range."
    ),
}


def validation_text(comparison: Comparison, by: str | None = None) -> str:
    tables = _titled_tables(validation_sections(comparison, by))
    return "\n\n".join([validation_summary(comparison), *tables, _NOTES[comparison.kind]])


def _titled_tables(tables: dict[str, pd.DataFrame]) -> list[str]:
    titles = {name: name.replace("_", " ").capitalize() for name in tables} | TITLES
    return [f"{titles[name]}\n{align_table(table)}" for name, table in tables.items()]


def validation_summary(comparison: Comparison) -> str:
    """Return how many runs were compared with estimates, and why others were not."""
    figures = comparison.figures
    counts = [
        f"{figures[name].nunique()} {name}s" for name in ("source", "model", "device", "engine")
    ]
    lines = [f"{comparison.runs:,} runs, {figures.id.nunique():,} estimated: {', '.join(counts)}"]
    lines.append(f"not covered: {comparison.not_covered.total():,}")
    lines += [f"  {n:,} × {reason}" for reason, n in comparison.not_covered.most_common(SHOWN)]
    lines.append(f"refused though measured: {len(comparison.refused):,}")
    lines += [f"  {run.id}: {run.title}: {reason}" for run, reason in comparison.refused[:SHOWN]]
    return "\n".join(lines)


_SHARES = ("inside", "inside_50", "inside_80", "inside_95", "right", "tied")
_SHOW: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(
        ("median", "mean", "p90", "cell_mean", "cell_median", "cell_p90"),
        lambda share: share_text(share, 1),
    ),
    **dict.fromkeys((*_SHARES, "within_20", "probability", "better"), share_text),
    "width": lambda share: f"± {share_text(share)}",
    **dict.fromkeys(("from", "to"), "{:g}".format),
    **dict.fromkeys(("n", "cells", "pairs"), "{:,}".format),
    "bias": "{:.2f}".format,
}


def format_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table of ``validation_sections`` as text cells, with readable headings."""
    names = [str(name) for name in table]
    return pd.DataFrame(
        {HEADINGS.get(name, name): table[name].map(_SHOW.get(name, str)) for name in names}
    )


def align_table(table: pd.DataFrame) -> str:
    """A table as lines of text: words to the left, numbers to the right."""
    if table.empty:
        return "  none"
    words, columns = format_table(table), []
    for heading, name in zip(words, table, strict=True):
        cells = [str(heading), *words[heading]]
        width = max(map(len, cells))
        columns.append(
            [cell.rjust(width) if name in _SHOW else cell.ljust(width) for cell in cells]
        )
    return "\n".join("  " + "  ".join(line).rstrip() for line in zip(*columns, strict=True))


# How often measured figures are inside their intervals

COVERAGE = {
    "all": (),
    "figures": ("figure",),
    "vendors": ("vendor",),
    "engines": ("engine", "architecture"),
    "modes": ("mode", "vendor", "figure"),
}


def interval_coverage(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The share of measured runs inside each interval, cells alike, by some columns.

    ``rows`` have ``measured``, ``estimated``, ``weight``, and by level ``low_…`` and ``high_…`` as
    factors. Columns: ``runs``, ``cells``, ``inside_50``, ``inside_80``, ``inside_95``, and
    ``width``: by what the ends of the 80 % interval differ from its middle, √(high / low) - 1, the
    median.
    """
    ratio, keys = rows.measured / rows.estimated, [*by] or ["of"]
    inside = {
        f"inside_{level}": ratio.between(rows[f"low_{level}"], rows[f"high_{level}"]) * rows.weight
        for level in LEVELS
    }
    width = np.sqrt(rows[f"high_{BAND}"] / rows[f"low_{BAND}"]) - 1
    table = rows.assign(**inside, width=width, **({} if by else {"of": "all"}))
    grouped = table.groupby(keys)
    out = grouped[[*inside, "weight"]].sum()
    out = out[[*inside]].div(out.weight, axis=0).assign(width=grouped.width.median())
    out.insert(0, "runs", grouped.size())
    out.insert(1, "cells", table.drop_duplicates([*keys, *CELL]).groupby(keys).size())
    return out.reset_index()


def coverage_tables(figures: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return how often measured figures are inside their intervals, as tables by name.

    ``figures`` are those of a comparison of serving or training.
    """
    rows = figures[figures.figure.ne("total_tokens_per_s")]
    profiles = rows.device.map({name: device_profile(name) for name in rows.device.unique()})
    rows = rows.assign(
        weight=1.0 / rows.groupby(["figure", *CELL]).measured.transform("size"),
        vendor=[profile.vendor for profile in profiles],
        architecture=[profile.architecture for profile in profiles],
        **{f"low_{BAND}": rows.low, f"high_{BAND}": rows.high},
    )
    for level in LEVELS:
        for end in ("low", "high"):
            rows[f"{end}_{level}"] = rows[f"{end}_{level}"] / rows.estimated
    return {name: interval_coverage(rows, by) for name, by in COVERAGE.items()}


def coverage_view(figures: pd.DataFrame) -> dict[str, Any]:
    """The tables of ``coverage_tables`` as JSON values; shares are fractions."""
    return {
        "levels": {f"inside_{level}": int(level) / 100 for level in LEVELS},
        **{
            name: table.to_dict(orient="records")
            for name, table in coverage_tables(figures).items()
        },
    }


def coverage_text(figures: pd.DataFrame) -> str:
    parts = _titled_tables(coverage_tables(figures))
    parts.append(
        "Shares of measured figures inside the 50, 80 and 95 % intervals, each source × device ×\n"
        "model alike; 80 % is: the ends of the 80 % interval around its middle, the median. The\n"
        "engines' numbers were fitted to the published runs; docs/reference/accuracy.md has the\n"
        "shares of sources that were left out."
    )
    return "\n\n".join(parts)
