"""Training plans and estimates as text for a terminal."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from recipe_core.base.units import duration, gib, per_second, rate, significant, usd
from recipe_core.physics.training.memory import PARTS
from recipe_core.search.training_plan import TrainingTable


def _render(table: Table) -> str:
    console = Console(width=max(shutil.get_terminal_size((140, 40)).columns, 100), no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def training_split(candidate: dict[str, Any]) -> str:
    """A split in one line."""
    shown = [
        f"{name} {candidate[name]}"
        for name in ("tp", "pp", "cp", "dp", "ep")
        if candidate[name] > 1 or name == "dp"
    ]
    chunks = f" × {candidate['virtual_stages']} chunks" if candidate["virtual_stages"] > 1 else ""
    more = f"zero {candidate['zero_stage']}, micro-batch {candidate['micro_batch']}, recompute {candidate['recompute']}"
    more += "".join(
        f", {name} {candidate[name]}"
        for name in ("recompute_layers", "offload", "gradient_sync")
        if name in candidate
    )
    return f"{' × '.join(shown)}{chunks}, {more}"


def training_plan_text(table: TrainingTable, top: int) -> str:
    """The best splits as a table, and why others were refused."""
    asked, e, c = table.asked, table.estimates, table.columns
    where = f"{asked.cluster.devices} × {asked.cluster.device.title}"
    out = [
        f"{asked.model.name} on {where} with {e.setting.framework.title}: {len(table.ranked)} of {len(table)} splits can run"
    ]
    if len(table.ranked):
        rows = Table(box=SIMPLE)
        for name in (
            "rank",
            "split",
            "devices",
            "step",
            "per device",
            "memory",
            "bubble",
            "$/M tokens",
        ):
            rows.add_column(name, justify="left" if name == "split" else "right")
        for rank, i in enumerate(map(int, table.ranked[:top]), 1):
            bubble = f"{e.parts['bubble'][i] / e.step_s[i]:.0%}"
            figures = [
                duration(c["step_s"][i]),
                rate(c["tokens_per_s_per_gpu"][i]),
                gib(c["peak_memory_bytes"][i]),
                bubble,
            ]
            rows.add_row(
                str(rank),
                training_split(e.candidate(i)),
                str(c["gpus"][i]),
                *figures,
                usd(c["usd_per_million_tokens"][i]),
            )
        out.append(_render(rows))
    elif (near := table.nearest) is not None:
        out.append(
            f"nearest: {training_split(e.candidate(near))}: {'; '.join(table.reasons(near))}"
        )
        out += [
            f"can run with {each.field} {each.value}: {training_split(each.candidate)}"
            for each in table.remedies
        ]
    codes = Counter({refusal.code: int(refusal.broken.sum()) for refusal in e.refusals})
    said = [f"  {n:,} by {code}: {_first(table, code)}" for code, n in codes.most_common() if n]
    return "\n".join(
        [*out, *(["refused (a split can break several rules):", *said] if said else [])]
    )


def _first(table: TrainingTable, code: str) -> str:
    refusal = next(each for each in table.estimates.refusals if each.code == code)
    return refusal.say(int(np.flatnonzero(refusal.broken)[0]))


def training_text(answer: dict[str, Any]) -> str:
    """One estimate: verdict, figures, memory of the fullest stage, parts of a step, the run."""
    out = [training_split(answer["candidate"])]
    out += [f"  cannot run: {reason}" for reason in answer["reasons"]]
    if "memory" in answer:
        m = answer["memory"]
        out.append(
            f"memory of stage {m['fullest_stage']}: {gib(m['total_bytes'])} of {gib(m['usable_bytes'])}"
        )
        out += [
            f"  {name:12} {gib(m[f'{name}_bytes'])}" for name in PARTS if m[f"{name}_bytes"] > 0
        ]
    if "training" in answer:
        t = answer["training"]
        flops = per_second(t["flops_per_s_per_gpu"], "FLOP")
        out.append(
            f"step {duration(t['step_s'])}, {rate(t['tokens_per_s_per_gpu'])} per device, {flops} per device, MFU {t['mfu']:.1%}"
        )
        parts = sorted(answer["breakdown_s"]["step"].items(), key=lambda item: -item[1])
        out += [
            f"  {name:24} {duration(seconds):>10} {seconds / t['step_s']:6.1%}"
            for name, seconds in parts
            if seconds > 0.001 * t["step_s"]
        ]
        r, c = answer["run"], answer["cost"]
        if r["wall_s"]:
            price = f", {usd(c['usd'])}" if c["usd"] else ""
            out.append(
                f"run: {r['steps']:,.0f} steps, {significant(r['wall_s'] / 86400)} days{price}"
            )
        every = f"checkpoint of {gib(r['checkpoint_bytes'])} every {duration(r['checkpoint_interval_s'])}"
        out.append(f"{every}; goodput {r['goodput']:.1%}")
    return "\n".join(out)
