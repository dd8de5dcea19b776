"""Carry published figures of compressed models: write recipe_core/accuracy/published.csv.

    python scripts/compression_figures.py TRUTH_DIR

Reads ``compression_accuracy.csv`` (one row a published value beside that of the uncompressed model)
and says the same in this project's words: sources, models and benchmarks once each, in
``published.yaml``, and in each row their keys, what was done, and the two values. Bits, group and
removed share stand in a row only where they are not the technique's own. Left out are rows whose
two values are not comparable (quality C), and a score of 0, which is a failed run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from recipe_core.accuracy.published import FIGURES, FILE
from recipe_core.accuracy.technique import techniques
from recipe_core.base.documents import to_yaml

HEAD = """\
# What published.csv refers to: sources, models and benchmarks by the keys of its rows.
# Written by scripts/compression_figures.py. parameters_b: billions; active_b: used for a token.
# items: size of the test set, where it is known; better: higher, or lower (perplexity, loss).
"""
COLUMNS = (
    "model",
    "technique",
    "method",
    "weight_bits",
    "removed",
    "group",
    "retrained",
    "benchmark",
    "base_value",
    "value",
    "quality",
    "source",
)
_GITHUB = re.compile(r"github:(?P<repository>[\w.-]+/[\w.-]+) (?P<rest>.*)")
_FILE = re.compile(r"(?P<path>[\w./-]+\.\w+)(?:@(?P<commit>[0-9a-f]{7,40}))?")
_PULL = re.compile(r"(?P<kind>PR|issue)#(?P<number>\d+)")
_ARXIV = re.compile(r"arXiv (?P<id>\d{4}\.\d{5})")
_CARD = re.compile(r"model card (?P<model>[\w.-]+/[\w.-]+)(?P<rest>.*)")


def _url(reference: str) -> str | None:
    """The address of a source; None where its reference gives none."""
    if card := _CARD.fullmatch(reference):
        return None if card["rest"] else f"https://huggingface.co/{card['model']}"
    if page := _GITHUB.fullmatch(reference):
        return _github(f"https://github.com/{page['repository']}", page["rest"])
    paper = _ARXIV.match(reference)
    return f"https://arxiv.org/abs/{paper['id']}" if paper else None


def _github(repository: str, rest: str) -> str:
    if file := _FILE.match(rest):
        return f"{repository}/blob/{file['commit'] or 'HEAD'}/{file['path']}"
    if pull := _PULL.match(rest):
        folder = "pull" if pull["kind"] == "PR" else "issues"
        return f"{repository}/{folder}/{pull['number']}"
    commit = re.search(r"@([0-9a-f]{7,40})", rest)
    folder = re.match(r"(?:examples|docs)\b(?:/[\w./-]+)?", rest)
    if folder and commit:
        return f"{repository}/tree/{commit[1]}/{folder[0]}"
    return repository


def _source_key(reference: str) -> str:
    """A short name of a source."""
    if card := _CARD.fullmatch(reference):
        return f"card-{card['model'].rpartition('/')[2]}".lower()
    if page := _GITHUB.fullmatch(reference):
        words = _ARXIV.sub("", page["rest"].split("@")[0].split(" (PR")[0])
        words = re.sub(r"\.(md|rst)\b", "", words.split("(same")[0])
        last = re.findall(r"[\w.#-]+", words)[-2:]
        key = "-".join([page["repository"].rpartition("/")[2], *last])
        return key.replace("#", "-").lower()
    return re.sub(r"[^\w.]+", "-", reference).strip("-").lower()


def _with_keys(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows with the keys of their sources, and the sources."""
    sources: dict[str, Any] = {}
    keys: dict[tuple[str, str], str] = {}
    for reference, date in rows[["source", "date"]].drop_duplicates().itertuples(index=False):
        key = _source_key(reference)
        key = key if key not in sources else f"{key}-{date}"
        if key in sources:
            raise ValueError(f"two sources have the key {key}")
        keys[reference, date] = key
        url = {} if _url(reference) is None else {"url": _url(reference)}
        title = reference.removeprefix("github:")
        sources[key] = {"title": title, **url, "date": str(date)}
    pairs = zip(rows.source, rows.date, strict=True)
    return rows.assign(source=[keys[pair] for pair in pairs]), dict(sorted(sources.items()))


def _figure_models(rows: pd.DataFrame) -> dict[str, Any]:
    models = rows.drop_duplicates("model").sort_values("model")
    return {
        row.model: {"parameters_b": float(row.parameters_b)}
        | ({"active_b": float(row.active_b)} if row.active_b != row.parameters_b else {})
        for row in models.itertuples(index=False)
    }


def _benchmarks(rows: pd.DataFrame) -> dict[str, Any]:
    benchmarks = rows.drop_duplicates("benchmark").sort_values("benchmark")
    return {
        row.benchmark: {"kind": row.benchmark_kind}
        | ({"items": int(row.n_items)} if row.n_items > 0 else {})
        | ({"better": "lower"} if row.better == "lower" else {})
        for row in benchmarks.itertuples(index=False)
    }


def _differing(rows: pd.DataFrame) -> pd.DataFrame:
    """Bits, removed share and group, empty where they are those of the technique."""
    of = rows.technique.map(techniques())
    nominal = pd.DataFrame(
        {
            "weight_bits": [technique.weight_bits for technique in of],
            "removed": [technique.removed for technique in of],
            "group": [technique.group for technique in of],
        },
        index=rows.index,
    )
    own_settings = rows.rename(columns={"sparsity": "removed", "group_size": "group"})[
        list(nominal)
    ]
    return own_settings.where(own_settings.ne(nominal) & own_settings.notna())


def carried(truth: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows that are shipped, and what they refer to."""
    rows = pd.read_csv(truth / "compression_accuracy.csv", low_memory=False)
    rows = rows[rows.quality.isin(["A", "B"]) & (rows.value.gt(0) | rows.base_value.eq(0))]
    rows, sources = _with_keys(rows)
    texts = {
        "schema_version": 1,
        "sources": sources,
        "models": _figure_models(rows),
        "benchmarks": _benchmarks(rows),
    }
    table = rows.drop(columns=["weight_bits", "group_size", "sparsity"]).join(_differing(rows))
    table = table.assign(retrained=rows.retrained.eq("yes").map({True: "yes", False: ""}))
    order = ["source", "model", "technique", "method", "benchmark", "group", "weight_bits"]
    return table[list(COLUMNS)].sort_values(order, ignore_index=True), texts


def main() -> None:
    table, texts = carried(Path(sys.argv[1]))
    table.to_csv(FIGURES, index=False, float_format="%.6g", lineterminator="\n")
    FILE.path.write_text(HEAD + to_yaml(texts))
    print(
        f"{len(table)} figures of {len(texts['models'])} models from {len(texts['sources'])} "
        f"sources: {FIGURES}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    main()
