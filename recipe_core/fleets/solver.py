"""Rows and variables of a mixed-integer program, and HiGHS, which solves it.

HiGHS: Q. Huangfu, J. A. J. Hall (2018), "Parallelizing the dual revised simplex method",
Mathematical Programming Computation 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Float


@dataclass
class ProgramRows:
    """Variables and rows of a program, as HiGHS takes them."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    offset: float = 0.0
    starts: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def variable(self, upper: float = np.inf, *, integer: bool = False) -> int:
        self.cost.append(0.0)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.low.append(low)
        self.high.append(high)
        self.index += terms.keys()
        self.value += terms.values()
        self.starts.append(len(self.index))

    def lp(self) -> Any:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.low)
        lp.offset_ = self.offset
        lp.col_cost_ = np.array(self.cost, dtype=float)
        lp.col_lower_ = np.zeros(len(self.cost))
        lp.col_upper_ = np.array(self.upper, dtype=float)
        lp.row_lower_, lp.row_upper_ = np.array(self.low), np.array(self.high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self.index, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self.value, dtype=float)
        kinds = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [kinds[0] if is_integer else kinds[1] for is_integer in self.integer]
        return lp


@dataclass(frozen=True, slots=True)
class Found:
    """Values of a program's variables, and how good they are."""

    values: Float
    objective: float
    bound: float
    gap: float
    proven: bool


# Is told the best objective so far, its bound and the seconds since the start.
Watch = Callable[[float, float, float], None]


def run_solver(lp: Any, gap: float, seconds: float, watch: Watch | None) -> Found | None:
    """Return the best values that were found in the time; None where there are none.

    Raises:
        Cancelled: where the caller has left.
    """
    solver = _run(lp, gap, seconds, watch)
    info, status = solver.getInfo(), solver.getModelStatus()
    if status == highspy.HighsModelStatus.kModelEmpty:
        return Found(np.zeros(lp.num_col_), 0.0, 0.0, 0.0, proven=True)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    values = np.asarray(solver.getSolution().col_value, dtype=float)
    has_gap = np.isfinite(info.mip_gap)
    return Found(
        values=values,
        objective=float(info.objective_function_value),
        bound=float(info.mip_dual_bound),
        gap=float(info.mip_gap) if has_gap else float("inf"),
        proven=status == highspy.HighsModelStatus.kOptimal,
    )


def proves_infeasible(lp: Any, seconds: float) -> bool:
    """Return whether it is proven in the time that a program has no values at all."""
    status = _run(lp, 1.0, seconds, None).getModelStatus()
    statuses = highspy.HighsModelStatus
    return status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible)


def _run(lp: Any, gap: float, seconds: float, watch: Watch | None) -> Any:
    """Solve a program in this thread; the caller's budget ends it between steps."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in {
        "output_flag": False,
        "mip_rel_gap": gap,
        "mip_abs_gap": 1e-9,
        "time_limit": seconds,
        "threads": 1,
        "random_seed": 0,
    }.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    ended: list[BaseException] = []

    def look(event: Any) -> None:
        try:
            budget.spend()
        except BaseException as error:
            ended.append(error)
            event.interrupt()

    def tell(event: Any) -> None:
        if watch is not None:
            out = event.data_out
            watch(out.mip_primal_bound, out.mip_dual_bound, out.running_time)

    solver.cbMipInterrupt.subscribe(look)
    solver.cbSimplexInterrupt.subscribe(look)
    solver.cbMipImprovingSolution.subscribe(tell)
    solver.run()
    if ended:
        raise ended[0]
    return solver
