"""The script that every node runs, and a launch's words as texts of it and of other targets.

A placeholder (``${model}``, ``${head}``) becomes a text, which is quoted as every other text is, or
a ``Variable``, which only the target knows when it runs. So no text is ever taken for a reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recipe_core.base import texts
from recipe_core.base.errors import NoAnswer
from recipe_core.base.texts import pieces
from recipe_core.launch.process import Process, engine_words
from recipe_core.payload.launcher.api import is_loopback
from recipe_core.targets.context import Context
from recipe_core.targets.layout import port_values
from recipe_core.targets.objects import make_script


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that is known when a launch runs, by the name that its target has for it."""

    name: str


Values = Mapping[str, "str | Variable"]


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax of a language: a text, a reference to a variable, and nothing at all."""

    text: Callable[[str], str]
    reference: Callable[[str], str]
    nothing: str = ""


def _shell_reference(name: str) -> str:
    return f'"${{{name}}}"' if "[" in name else f'"${name}"'


def _kubernetes_reference(name: str) -> str:
    return f"$({name})"


def _compose_reference(name: str) -> str:
    return f"${{{name}}}"


IN_SHELL = Syntax(texts.quote_shell, _shell_reference, nothing="''")
IN_KUBERNETES = Syntax(texts.quote_kubernetes, _kubernetes_reference)
IN_COMPOSE = Syntax(texts.quote_compose, _compose_reference)
# Words that are quoted later, by a target whose values are all texts.
PLAIN = Syntax(str, str)


def fill_placeholders(template: str, values: Values, syntax: Syntax) -> str:
    """``template`` in a language, with every placeholder replaced.

    Raises:
        NoAnswer: for a placeholder that the target has no value for.
    """
    parts = (
        _write_piece(_placeholder_value(values, text) if is_name else text, syntax)
        for is_name, text in pieces(template)
    )
    return "".join(parts) or syntax.nothing


def _write_piece(value: str | Variable, syntax: Syntax) -> str:
    return syntax.reference(value.name) if isinstance(value, Variable) else syntax.text(value)


def _placeholder_value(values: Values, name: str) -> str | Variable:
    if name not in values:
        available = ", ".join(values)
        message = f"the launch needs ${{{name}}}, which this target lacks. Available: {available}."
        raise NoAnswer(message, hint="Choose another target.")
    return values[name]


VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}
NOT_FOUND = 127  # as shells end where a program is missing: trying again helps nobody
_INDENT = "    "


def node_script(context: Context, number: str, *, visible_given: bool = False) -> str:
    """A bash script for all nodes; the variable ``number`` holds the node's number.

    ``visible_given``: a scheduler already limits the visible devices, so processes that share a
    node divide those.
    """
    processes = context.launch.processes
    by_node = {
        node: [p for p in processes if p.node == node]
        for node in sorted({p.node for p in processes})
    }
    shared = any(len(of_node) > 1 for of_node in by_node.values())
    cases = []
    for node, of_node in by_node.items():
        alone = len(of_node) == 1
        commands = [
            _node_command(context, p, alone=alone, visible_given=visible_given) for p in of_node
        ]
        cases.append(f"{node})\n{''.join(commands)}{_INDENT};;\n")
    variable = context.key_variable
    script = make_script(
        "node",
        number=number,
        uses_nodes=any("nodes[" in case for case in cases),
        visible_given=visible_given,
        rocm=context.runtime == "rocm",
        cuda=context.runtime == "cuda",
        shared=shared,
        devices=",".join(map(str, range(context.devices_per_node))),
        variable=variable,
        key_needed=texts.quote_shell(f"{variable} is not set: export the key that callers send"),
        folders=_folder_commands(processes),
        programs=_program_checks(processes),
        cases="".join(cases),
    )
    return script + (make_script("shared_end") if shared else "")


def listening_host(context: Context, process: Process | None = None) -> str:
    """Return where a server on a node listens, by default where clients call it.

    On all addresses where callers need a key, and where a router on another node calls it; else
    where the parameters say, which is the loopback unless they say otherwise.
    """
    host = context.parameters.host
    called = process is not None and context.nodes > 1 and process.role in ("prefill", "decode")
    if called or (context.key_variable and is_loopback(host)):
        return "0.0.0.0"  # noqa: S104 - other nodes call it
    return host


def _folder_commands(processes: Sequence[Process]) -> str:
    """Commands that make caches inside the run folder before an engine looks for them."""
    inside = {
        value.removeprefix("${run}/")
        for p in processes
        for value in p.env.values()
        if value.startswith("${run}/")
    }
    return "".join(f'mkdir -p "$run"/{texts.quote_shell(folder)}\n' for folder in sorted(inside))


def _program_checks(processes: Sequence[Process]) -> str:
    """Commands that fail at once when a program is not installed on the node."""
    lines = []
    started = [(p.argv[0], engine_words(p.argv)[0]) for p in processes]
    for name in dict.fromkeys(name for names in started for name in names):
        message = texts.quote_shell(f"{name} is not installed on this node")
        check = f"command -v {texts.quote_shell(name)} >/dev/null"
        lines.append(f"{check} || {{ echo {message} >&2; exit {NOT_FOUND}; }}\n")
    return "".join(lines)


def _node_command(context: Context, process: Process, *, alone: bool, visible_given: bool) -> str:
    first_node = min(p.node for p in context.launch.processes if p.group == process.group)
    values: Values = {
        "model": context.model_source,
        "host": listening_host(context, process),
        "port": str(context.parameters.port + process.port_offset),
        "head": Variable(f"nodes[{first_node}]"),
        **{f"node{n}": Variable(f"nodes[{n}]") for n in range(context.nodes)},
        **port_values(context.launch, context.parameters.port),
        "root": Variable("root"),
        "run": Variable("run"),
    }
    settings = [
        f"{key}={fill_placeholders(value, values, IN_SHELL)}" for key, value in process.env.items()
    ]
    if not alone:
        settings += visible_devices_setting(context, process, visible_given=visible_given)
    words = [*settings, *(fill_placeholders(word, values, IN_SHELL) for word in process.argv)]
    start = "exec env " if alone else "env "
    return f"{_INDENT}{start}{wrap_words(words)}{'' if alone else ' &'}\n"


def visible_devices_setting(
    context: Context, process: Process, *, visible_given: bool = False
) -> list[str]:
    """The setting that limits a process to its devices; none for a process without any."""
    variable = VISIBLE.get(context.runtime)
    if variable is None or not process.devices:
        return []
    numbers = [str(number) for number in process.devices]
    if visible_given and context.runtime == "cuda":
        numbers = [f'"${{devices[{number}]}}"' for number in numbers]
    return [f"{variable}={','.join(numbers)}"]


def wrap_words(words: Sequence[str], width: int = 110, indent: str = _INDENT * 2) -> str:
    """Words over several lines, each ending in a backslash."""
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
    return f" \\\n{indent}".join([*lines, line])
