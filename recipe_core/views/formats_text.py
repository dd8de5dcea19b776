"""Advice on formats as text for a terminal."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator

from recipe_core.accuracy.retained import Retained
from recipe_core.base.columns import aligned
from recipe_core.base.units import significant
from recipe_core.compression.advisor.advise import Advice, title_of
from recipe_core.compression.advisor.combine import Pair
from recipe_core.compression.advisor.figures import Split
from recipe_core.compression.advisor.ranked import SURELY_KEPT
from recipe_core.compression.advisor.row import FormatRow

RATIOS = {
    "weights": "weights_bytes",
    "tokens held": "cache_tokens",
    "first token": "ttft_s",
    "token": "tpot_s",
    "tok/s": "output_tokens_per_s",
    "$/M": "usd_per_million_output_tokens",
    "J/token": "joules_per_token",
}
"""Columns of ratios to the base, by the figure's name."""
SHOWN_WORDS = 110


def formats_text(advice: Advice) -> str:
    """The verdict, techniques side by side, pairs, and what does not run with its reason."""
    return "\n".join(
        [verdict(advice), *_about(advice), _table(advice), *_pairs(advice), *_others(advice)]
    )


def verdict(advice: Advice) -> str:
    """The best technique in a sentence, or that none runs."""
    best = advice.best
    where = title_of(advice.base)
    if best is None or best.best is None:
        return f"No format runs for {where} within the limits."
    if advice.limit is not None and best.within is not True:
        return (
            f"No format for {where} is expected to keep {accuracy_share(advice.limit)} of the "
            f"accuracy. Nearest by the objective: {best.technique.title}, {kept_text(best.kept)}."
        )
    change = best.best.ratio("usd_per_million_output_tokens", advice.base.best)
    cost = "" if change is None else f", {ratio_text(change)} the cost of a token"
    return f"{where}: {best.technique.title}{cost}; accuracy kept {kept_text(best.kept)}"


def kept_text(kept: Retained) -> str:
    """``98.6 % (93.5 – 100.6)``; that it is unknown where no figure is near."""
    if not kept.known:
        return "unknown"
    value, low, high = (f"{share * 100:.1f}" for share in (kept.value, kept.low, kept.high))
    return f"{value} % ({low} – {high})"


def accuracy_share(share: float) -> str:
    """``99 %`` of a share."""
    return f"{share * 100:g} %"


def ratio_text(ratio: float | None) -> str:
    """``0.56 ×`` of a ratio; a dash without one."""
    return "–" if ratio is None else f"{significant(ratio, 2)} ×"


def _about(advice: Advice) -> Iterator[str]:
    base = advice.base
    setting = base.setting
    formats = f"{setting.weight_dtype} weights, {setting.kv_dtype} cache"
    yield f"base: {formats}, {_split_text(base.own)}; ratios below are to it on the same split"
    if base.stated and base.best.key != base.own.key:
        yield f"best split of the base: {_split_text(base.best)}"
    if advice.limit is None and "accuracy" not in advice.request.objective.goals:
        yield (
            "no least accuracy is asked for (objective.limits.accuracy_recovery): what may keep "
            f"less than {accuracy_share(SURELY_KEPT)} comes last"
        )
    yield from base.notes


def _split_text(split: Split) -> str:
    if not split.runs:
        return f"{split.title} (cannot run: {split.reasons[0]})" if split.reasons else split.title
    return split.title


def _table(advice: Advice) -> str:
    base = advice.base
    cells: dict[str, Callable[[FormatRow], str]] = {
        "technique": lambda row: row.technique.title,
        "runs": lambda row: row.support.verdict,
    }
    for name, figure in RATIOS.items():
        cells[name] = lambda row, figure=figure: _ratio(row, figure, base.own)  # type: ignore[misc]
    cells["best split"] = lambda row: "–" if row.best is None else row.best.title
    cells["$/M there"] = lambda row: _there(row, base.best)
    cells["accuracy kept"] = lambda row: kept_text(row.kept)
    cells["best at"] = lambda row: ", ".join(row.best_at)
    rows = [row for row in advice.rows if row.own is not None]
    width = max(shutil.get_terminal_size((200, 40)).columns, 120)
    shown = [[show(row) for show in cells.values()] for row in rows]
    return aligned(
        list(cells), shown, left=("technique", "runs", "best split", "best at"), width=width
    )


def _ratio(row: FormatRow, figure: str, base: Split) -> str:
    return "–" if row.own is None else ratio_text(row.own.ratio(figure, base))


def _there(row: FormatRow, base: Split) -> str:
    if row.best is None:
        return "–"
    return ratio_text(row.best.ratio("usd_per_million_output_tokens", base))


def pair_text(pair: Pair) -> str:
    """``first + second: what they do together``, with the product and the estimate of both."""
    text = f"{pair.first} + {pair.second}: {pair.effect}. {pair.sentence}"
    if pair.both and pair.product:
        name = "tpot_s"
        if name in pair.both and name in pair.product:
            text += (
                f" Time per token {ratio_text(pair.both[name])} together, "
                f"{ratio_text(pair.product[name])} by the product."
            )
    return text


def _pairs(advice: Advice) -> Iterator[str]:
    if advice.combinations:
        yield "together:"
        for pair in advice.combinations:
            yield f"  {pair_text(pair)}"


def _others(advice: Advice) -> Iterator[str]:
    """Techniques without figures, those with one reason in one line."""
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in advice.rows:
        if row.own is None:
            by_reason[row.state, row.why[:SHOWN_WORDS]].append(row.name)
    if by_reason:
        yield "without figures:"
    for (state, why), names in by_reason.items():
        yield f"  {', '.join(names)}: {state}. {why}"
