"""What engines settle by themselves: how many devices they take, what they leave to the host."""

from __future__ import annotations

from recipe_core.commands.verdict import Case
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine


def take_all_devices(case: Case, per_node: int | None) -> None:
    """Set the degree of a server that takes every device it sees and states none.

    That is what its container shows it, else ``per_node``; one device where neither is known.
    """
    unless, values = grammars()[case.launch.engine].all_devices, case.arguments.values
    degree = "pp" if engine(case.launch.engine).split.pipeline else "tp"
    if unless is None or degree not in case.meant.unstated:
        return
    if any(str(values.get(name)) in off for name, off in unless.items()):
        return
    devices = case.launch.visible_devices or per_node
    if devices is None:
        message = "takes every device it sees; judged on one."
        hint = "Set --gpus to the devices that it sees."
        case.say("note", "devices", f"{engine(case.launch.engine).title} {message}", hint)
    case.meant.candidate[degree] = devices or 1


def elasticity(case: Case) -> str:
    """Why a lack of memory in the estimate may not stop a server; empty where it does."""
    grammar, title = grammars()[case.launch.engine], engine(case.launch.engine).title
    if grammar.automatic and grammar.automatic.weights in case.meant.left_to_engine:
        flag = f"--{grammar.automatic.weights.replace('_', '-')}"
        return f"without {flag}, {title} leaves layers that do not fit in the host's memory."
    caches = {name for name, meaning in grammar.means.items() if meaning == "kv_dtype"}
    stored = {name: case.arguments.values.get(name) for name in caches}
    for name, value in stored.items():
        if value is not None and value not in grammar.words.get(name, {value: None}):
            return f"a {value} cache is counted as one of the model's own format, which is larger."
    return ""
