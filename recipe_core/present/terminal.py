"""Plans and estimates as text for a terminal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.base.columns import aligned
from recipe_core.base.text_rows import cost_text, memory_rows, serving_rows
from recipe_core.base.units import GIB, duration, rate, significant, usd
from recipe_core.search.advice import nearest, rule_rows
from recipe_core.search.serving_plan import PlanTable

if TYPE_CHECKING:  # what only names types here would triple the time until a plan is printed
    from recipe_core.recipe import Recipe
    from recipe_core.recipe.convert import Conversion
    from recipe_core.recipe.lockcheck import Difference
    from recipe_core.recipe.resolve import Resolved
    from recipe_core.search.sensitivity import Change

REFUSALS_SHOWN = 12
_NUMBER = re.compile(r"\d[\d.,]*")
_LEFT = ("split", "device", "engine", "weights")


def split_text(candidate: dict[str, Any]) -> str:
    """A split in one line."""
    shared = "".join(
        f" {name} {candidate[name]}" for name in ("ep", "cp") if candidate.get(name, 1) > 1
    )
    copies = f" × {candidate['replicas']} replicas" if candidate.get("replicas", 1) > 1 else ""
    text = f"tp {candidate['tp']} × pp {candidate['pp']} × dp {candidate['dp']}{shared}{copies}"
    return (
        f"{text} with a prefill pool of {split_text(candidate['prefill'])}"
        if "prefill" in candidate
        else text
    )


def plan_text(table: PlanTable, top: int, changes: Sequence[Change] | None = None) -> str:
    """The best splits as a table, then what would flip the decision where it was asked, then why others were refused."""
    found = table.found
    where = " or ".join(f"{each.devices} × {each.device.title}" for each in found.clusters)
    parts = [f"{found.model.name} on {where}: {len(table.ranked)} of {len(table)} splits can run"]
    if len(table.ranked):
        parts.append(_best(table, top))
        if table.tied:
            parts.append(
                f"{table.tied} more do as well as the first: it is the simplest of them (fewest devices, no pipeline, smallest tp)"
            )
    else:
        parts += _nearest(table)
    if changes is not None:
        parts += [
            "what would flip the decision:",
            *(f"  {change.what}: {_flip(change)}" for change in changes),
        ]
    parts.append(_refused(table))
    return "\n".join(part for part in parts if part)


def _flip(change: Change) -> str:
    if change.candidate is None:
        return "nothing can run"
    return f"{split_text(change.candidate)} is better" if change.flips else "stays"


def _nearest(table: PlanTable) -> list[str]:
    from recipe_core.recipe.decision import advice

    row = nearest(table)
    if row is None:
        return []
    return [
        f"nearest: {split_text(table.candidate(row))}",
        *(f"  {reason}" for reason in [*table.reasons(row), advice(table)] if reason),
    ]


def _best(table: PlanTable, top: int) -> str:
    options = table.request.options
    extra = [*(["device"] if options.hardware else []), *(["load"] if options.loads else [])]
    figures = (
        "GPUs",
        "engine",
        "weights",
        "TTFT",
        "TPOT",
        "tok/s",
        "tok/s/GPU",
        "GiB/GPU",
        "$/M tok",
        "front",
    )
    names = ("rank", "split", *extra, *figures)
    rows = [_best_row(table, rank, row) for rank, row in enumerate(map(int, table.ranked[:top]), 1)]
    return aligned(
        names, rows, left=_LEFT, width=max(shutil.get_terminal_size((140, 40)).columns, 100)
    )


def _best_row(table: PlanTable, rank: int, row: int) -> list[str]:
    """The cells of one ranked split."""
    options, candidate = table.request.options, table.candidate(row)
    c = {name: column[row] for name, column in table.columns.items()}
    return [
        str(rank),
        split_text(candidate),
        *([table.setting(row).cluster.device.name] if options.hardware else []),
        *([significant(c["load"])] if options.loads else []),
        str(c["gpus"]),
        candidate["engine"],
        candidate["weight_dtype"],
        duration(c["ttft_s"]),
        duration(c["tpot_s"]),
        significant(c["output_tokens_per_s"]),
        significant(c["output_tokens_per_s_per_gpu"]),
        significant(c["total_bytes"] / GIB),
        usd(c["usd_per_million_output_tokens"]),
        "●" if table.front[row] else "",
    ]


def _refused(table: PlanTable) -> str:
    """Refused splits: one of each kind of reason, with how many more there are."""
    rows = np.flatnonzero(~table.columns["feasible"])
    if not len(rows):
        return ""
    firsts, counts = _kinds([broken[rows] for broken in rule_rows(table).values()], len(rows))
    by_kind: dict[str, tuple[int, list[str], int]] = {}
    examples = [int(row) for row in rows[firsts]]
    for row, reasons, count in zip(
        examples, table.sentences(examples), counts.tolist(), strict=True
    ):
        kind = _NUMBER.sub("#", "; ".join(reasons))
        first, said, before = by_kind.get(kind, (row, reasons, 0))
        by_kind[kind] = first, said, before + count
    shown = list(by_kind.values())[:REFUSALS_SHOWN]
    lines = [
        f"  {split_text(table.candidate(row))}{_and_more(n - 1)}: {'; '.join(reasons)}"
        for row, reasons, n in shown
    ]
    rest = len(by_kind) - len(shown)
    more = f"\n  … and {rest} more reasons (--json or --all FILE for all)" if rest else ""
    return f"refused: {len(rows)}\n" + "\n".join(lines) + more


def _kinds(rules: Sequence[Bool], n: int) -> tuple[Int, Int]:
    """Rows that break the same rules as one kind: the first row of each, in order, and how many there are of it."""
    kinds = np.zeros(n, dtype=np.int64)
    for broken in rules:
        if kinds.max() >> 61:  # as many bits as there are: number the kinds so far anew
            kinds = np.unique(kinds, return_inverse=True)[1]
        kinds = 2 * kinds + broken
    firsts, counts = np.unique(kinds, return_index=True, return_counts=True)[1:]
    order = np.argsort(firsts)
    return firsts[order], counts[order]


def _and_more(others: int) -> str:
    return f" (and {others} more like it)" if others else ""


def estimate_text(candidate: dict[str, Any], answer: dict[str, Any]) -> str:
    """One estimate, with bands."""
    lines = [
        f"{split_text(candidate)}, {candidate['engine']}, {candidate['weight_dtype']} weights, {candidate['kv_dtype']} cache"
    ]
    if not answer["feasible"]:
        return "\n".join([*lines, "cannot run:", *(f"  {reason}" for reason in answer["reasons"])])
    lines += [f"  {label:26} {value:>14}" for label, value in memory_rows(answer)]
    lines.append(f"  {'KV cache holds':26} {answer['memory']['kv_cache_tokens']:>14,} tokens")
    lines += [
        f"  {row.label:26} {row.value:>14}   {row.low} – {row.high}, {row.basis}"
        for row in serving_rows(answer)
    ]
    price = cost_text(answer)
    lines += [f"  {'Cost':26} {price}"] if price else []
    return "\n".join([*lines, *(f"  note: {note}" for note in answer["notes"])])


def check_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons and what would be better."""
    verdict = "yes: it can run" if answer["ok"] else "no: it cannot run"
    lines = [verdict, estimate_text(answer["candidate"], answer["estimate"])]
    if answer.get("unread"):
        lines.append(f"not looked at: {' '.join(answer['unread'])}")
    better = answer["better"]
    if better is not None:
        s = better["estimate"]["serving"]
        lines.append(
            f"better: {split_text(better['candidate'])}: {rate(s['output_tokens_per_s'])}, {duration(s['tpot_s'])} per output token"
        )
    lines += [
        f"it works with {field}: {value}"
        for change in answer["changes"]
        for field, value in change["set"].items()
    ]
    return "\n".join(lines)


def build_text(recipe: Recipe, output: Path) -> str:
    """What was built and what comes next."""
    from recipe_core.present.training_text import training_text

    answer = {"candidate": recipe.candidate} | recipe.estimate
    said = (
        training_text(answer)
        if recipe.kind == "training"
        else estimate_text(recipe.candidate, recipe.estimate)
    )
    return f"{said}\nwrote {output}\nnext: recipe up {output} && recipe bench {output}"


def lock_text(found: Sequence[Difference]) -> str:
    """A lock against what is here, one line a thing."""
    words = {"same": "ok", "differs": "DIFFERS", "absent": "not here"}
    lines = []
    for each in found:
        here = "" if each.found in (None, each.locked) else f", here {each.found}"
        lines.append(f"{words[each.level]:8}  {each.what}: {each.locked}{here}")
    return "\n".join(lines)


def resolved_text(recipe: Recipe, found: Resolved) -> str:
    """What a recipe is on other hardware."""
    where = f"{found.machine.count} × {found.machine.device}"
    lines = [f"{recipe.name} on {where}: {', '.join(found.applied) or 'no variant applies'}"]
    before = {
        "candidate": recipe.candidate,
        "options": recipe.engine.options,
        "environment": recipe.environment,
    }
    for part, old in before.items():
        new = getattr(found.settings, part)
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                layer = found.provenance.get(f"{part}.{name}", "")
                lines.append(
                    f"  {part}.{name}: {old.get(name, '–')} → {new.get(name, '–')}{f' ({layer})' if name in new else ''}"
                )
    return "\n".join([*lines, *(f"  note: {said}" for said in found.kept)])


def conversion_text(found: Conversion, output: Path | None) -> str:
    """The recipe that came out, and what was lost."""
    recipe = found.recipe
    lines = [f"{recipe.name}: {recipe.model.id} on {recipe.device.count} × {recipe.device.title}"]
    lines.append(estimate_text(recipe.candidate, recipe.estimate))
    lines += [f"taken over: {' '.join(found.carried)}"] if found.carried else []
    lines += [f"not taken over: {each.what} ({each.why})" for each in found.lost]
    return "\n".join([*lines, *([f"wrote {output}"] if output else [])])
