"""The command line: which plan it means, and how its results are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import InputError, LauncherError
from .files import write_json
from .plan import FIRST, LaunchPlan, load_plan, unknown_nodes
from .report import complain, print_json


@dataclass(frozen=True, slots=True)
class Request:
    """The command line.

    ``drain``: seconds to let requests finish, 0 for those of the bundle, None to stop at once;
    ``limits`` of supervision by their fields; ``metrics_port`` 0 for no metrics.
    """

    root: Path
    command: str
    as_json: bool = False
    model: str | None = None
    host: str | None = None
    port: int | None = None
    foreground: bool = False
    timeout: float | None = None
    requests: int | None = None
    concurrency: int | None = None
    duration_limit: float | None = None
    node: int | None = None
    head: str | None = None
    data: str | None = None
    steps: int | None = None
    checkpoint: bool = False
    strict: bool = False
    choice: str | None = None
    name: str | None = None
    follow: bool = False
    lines: int | None = None
    output: str | None = None
    no_keep: bool = False
    metrics_port: int | None = None
    drain: float | None = None
    python: str | None = None
    again: bool = False
    no_verify: bool = False
    anyway: bool = False
    compress: bool = False
    names: list[str] = field(default_factory=list)
    limits: Mapping[str, float | int | None] = field(default_factory=dict)

    def plan(self, *, starts: bool = False) -> LaunchPlan:
        """The bundle's plan with this command line's parameters.

        What ``starts`` processes on several nodes must know the address of node 0.
        """
        plan = load_plan(
            self.root,
            choice=self.choice or FIRST,
            model=self.model,
            host=self.host,
            port=self.port,
            node=self.node,
            head=self.head,
            data=self.data,
        )
        if starts and plan.node is not None and self.head is None:
            hint = "Pass it on every node, node 0 included: --head ADDRESS."
            raise InputError(
                f"node {plan.node} of {plan.nodes} does not know the address of node 0.",
                field="--head",
                hint=hint,
            )
        if starts and (missing := unknown_nodes(plan)):
            hint = f"Pass those of all {plan.nodes} nodes, in order: --head ADDRESS0,ADDRESS1"
            raise InputError(
                f"the address of node {missing[0]} is unknown.", field="--head", hint=hint
            )
        return plan

    def show(self, data: Any, text: Callable[[], str]) -> None:
        """Print the result: JSON when asked for, else for a person."""
        if self.as_json:
            print_json(data)
        else:
            print(text(), flush=True)

    def show_measurement(
        self, plan: LaunchPlan, measurement: dict[str, Any], text: Callable[[dict[str, Any]], str]
    ) -> int:
        """Write ``run/measurement.json`` and print it; exit code 1 where it is only printed."""
        path = plan.run / "measurement.json"
        try:
            write_json(path, measurement)
        except LauncherError as error:
            self.show(measurement, lambda: text(measurement))
            complain(f"launch: {error}")
            return 1
        self.show(measurement, lambda: f"{text(measurement)}\n\nwritten: {path}")
        return 0
