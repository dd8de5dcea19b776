"""Questions about a whole training run: phases, evaluations, checkpoints and failures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import _common as common
import _numbers as numbers
import _session as session
import _workload as asking
import streamlit as st

from recipe_core.hardware.host import storage_names, storage_tier
from recipe_core.request.edit import TRAINING_TOKENS, range_of
from recipe_core.request.phases import Evaluation, Phase
from recipe_core.views.glossary import field_help

FIELDS = {
    "tokens": "Tokens",
    "global_batch": "Global batch",
    "sequence_length": "Sequence length",
    "cp": "cp",
}
RAMP = 0.1
"""Share of the run that a first phase takes, with half of the batch."""
EVALUATION = Evaluation(every_steps=1000, tokens=10e6)
CHECKPOINTS = {"synchronous": "Wait until written", "asynchronous": "Write in the background"}


def whole_run() -> None:
    """Phases of the run, evaluations, checkpoints, failures and spare nodes."""
    workload = session.request().workload
    has_run_fields = (
        workload.phases or workload.evaluation or workload.storage or workload.spare_nodes
    )
    with st.expander(
        "Phases, checkpoints and failures",
        icon=":material/timeline:",
        expanded=bool(has_run_fields),
        key="whole-run",
    ):
        _draw_phases(workload.phases or ())
        _draw_evaluation()
        _draw_checkpoints()
        _draw_failures()


def _draw_phases(phases: Sequence[Phase]) -> None:
    """A row of boxes for each phase, and buttons to add and remove them."""
    st.markdown("**Phases**", help=field_help("workload.phases"))
    for k, phase in enumerate(phases):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"Phase {k + 1}")
            st.button(
                "Remove",
                key=f"_remove_phase_{k}",
                icon=":material/delete:",
                type="tertiary",
                on_click=partial(_set_phases, [*phases[:k], *phases[k + 1 :]]),
                help=f"Take phase {k + 1} out of the run.",
            )
        with numbers.group_boxes(f"phase-{k}"), st.grid(len(FIELDS), min_column_width=105):
            for name, label in FIELDS.items():
                _phase_box(phases, k, name, label, getattr(phase, name))
    st.button(
        "Add a phase",
        key="_add_phase",
        icon=":material/add:",
        on_click=_add_phase,
        args=(phases,),
        help="A ramp of the batch, or a long context at the end.",
    )


def _phase_box(phases: Sequence[Phase], k: int, name: str, label: str, now: float | None) -> None:
    def take(value: float | None) -> None:
        changed = phases[k].model_copy(update={name: value})
        _change_phases([*phases[:k], changed, *phases[k + 1 :]])

    field = f"workload.phases.{k}.{name}"
    limits, needed = range_of(field), name == "tokens"
    empty = "" if needed else "as the run"
    numbers.box(
        label,
        f"_{field}",
        now,
        take,
        limits,
        optional=not needed,
        placeholder=empty,
        help=field_help(field),
        name=f"{label} of phase {k + 1}",
    )


def _add_phase(phases: Sequence[Phase]) -> None:
    """A first phase with half of the batch, before the rest; then a copy of the last one."""
    workload = session.request().workload
    tokens = workload.tokens or TRAINING_TOKENS
    ramp = Phase(tokens=RAMP * tokens, global_batch=max(workload.global_batch // 2, 1))
    first = [ramp, Phase(tokens=tokens - ramp.tokens)]
    _set_phases([*phases, phases[-1]] if phases else first)


def _set_phases(phases: Sequence[Phase]) -> None:
    session.apply_changes({"workload.phases": _phase_values(phases)})


def _change_phases(phases: Sequence[Phase]) -> None:
    session.change_to({"workload.phases": _phase_values(phases)})


def _phase_values(phases: Sequence[Phase]) -> tuple[dict[str, Any], ...] | None:
    return tuple(phase.model_dump(exclude_none=True) for phase in phases) or None


def _draw_evaluation() -> None:
    """Ask whether there are evaluations, and how often on how much."""
    now = session.request().workload.evaluation
    common.draw_choice(
        st.toggle,
        "Evaluate during the run",
        "_evaluation",
        now is not None,
        lambda on: {"workload.evaluation": EVALUATION.model_dump() if on else None},
        help=field_help("workload.evaluation"),
    )
    if now is not None:
        with numbers.group_boxes("evaluation"), st.grid(2, min_column_width=150):
            asking.draw_workload_number("Every (steps)", "evaluation.every_steps")
            asking.draw_workload_number("Tokens each", "evaluation.tokens")


def _draw_checkpoints() -> None:
    """Ask where checkpoints go, and how long training waits for them."""
    names = ["", *storage_names()]
    common.edit(
        st.selectbox,
        "Storage of checkpoints",
        "workload.storage",
        read=lambda value: value or "",
        write=lambda name: name or None,
        options=names,
        format_func=lambda name: storage_tier(name).title if name else "0.98 GB/s a node",
    )
    common.edit(
        st.segmented_control,
        "Checkpoints",
        "workload.checkpoints",
        options=CHECKPOINTS,
        required=True,
        wrap=True,
    )


def _draw_failures() -> None:
    """Ask how often devices fail, restarts, repairs and spare nodes."""
    with numbers.group_boxes("failures"), st.grid(3, min_column_width=150):
        asking.draw_optional_number("Device MTBF (h)", "device_mtbf_hours", "as published")
        asking.draw_optional_number("Restart (s)", "restart_s", "600")
        asking.draw_optional_number("Time limit (s)", "time_limit_s", "none")
        asking.draw_workload_number("Repair (s)", "repair_s")
        asking.draw_optional_number("Spare nodes", "spare_nodes", "none")
        asking.draw_optional_number("Slow nodes (share)", "slow_node_share", "none")
        asking.draw_optional_number("Storage $/GB/month", "storage_usd_per_gb_month", "not counted")
