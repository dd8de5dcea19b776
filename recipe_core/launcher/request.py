"""The command line: which plan it means, and how its results are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError, LauncherError
from .files import json_text, write_json
from .plan import LaunchPlan, load_plan, unknown_nodes


@dataclass(frozen=True, slots=True)
class Request:
    """The command line."""

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

    def plan(self, *, starts: bool = False) -> LaunchPlan:
        """The bundle's plan with this command line's parameters.

        What ``starts`` processes on several nodes must know the address of node 0.
        """
        plan = load_plan(
            self.root,
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
    ) -> None:
        """Write ``run/measurement.json`` and print it.

        Raises:
            LauncherError: where it cannot be written; it is printed all the same.
        """
        path = plan.run / "measurement.json"
        written = f"\n\nwritten: {path}"
        try:
            write_json(path, measurement)
        except LauncherError:
            self.show(measurement, lambda: text(measurement))
            raise
        self.show(measurement, lambda: text(measurement) + written)


def print_json(data: Any) -> None:
    """Print JSON on standard output, in letters that it takes."""
    print(json_text(data, getattr(sys.stdout, "encoding", None) or "utf-8"), flush=True)
