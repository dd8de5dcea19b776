"""A launch as commands to type, node by node: the bundle's own launcher, and what it starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from recipe_core.base import texts
from recipe_core.base.errors import InputError
from recipe_core.launch.process import Launch, Process
from recipe_core.launch.templates import fill_template, read_templates
from recipe_core.plans.plan import Plan
from recipe_core.plans.splits import row_key
from recipe_core.recipe.decision import decide
from recipe_core.recipe.place import Address, Parameters
from recipe_core.request import edit
from recipe_core.request.objective import Objective
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.context import Context
from recipe_core.targets.layout import port_values
from recipe_core.targets.node_script import (
    PLAIN,
    Syntax,
    Values,
    Variable,
    fill_placeholders,
    visible_devices_setting,
    wrap_words,
)

TITLES_FILE = Path(__file__).with_name("titles.yaml")
# Titles of targets for people.
TITLES: Mapping[str, str] = read_templates(TITLES_FILE)["titles"]
# The folder of what Helm's chart does not make.
BESIDE = "targets/llm-d/objects/"


@dataclass(frozen=True, slots=True)
class Use:
    """The main file of a target, and the commands that start and stop what it describes."""

    title: str
    path: str
    start: str
    stop: str


def target_uses(paths: Iterable[str], name: str, kind: str, key: str | None = None) -> list[Use]:
    """One per main file among ``paths``, in order of path.

    ``name`` is the recipe's DNS label, ``kind`` serving or training, ``key`` the variable with the
    API key that callers need.
    """
    uses, table = [], read_templates(TITLES_FILE)
    words = {"name": name, "key": key or ""}
    words |= fill_template(table["verbs"][kind], words)
    words["instance"] = f'"{name}@$(systemd-escape --path "$PWD").service"'
    for path in sorted(paths):
        for ending, commands in table["commands"].items():
            is_beside = path.startswith(BESIDE)  # is started by the command of another file
            if path.startswith("targets/") and path.endswith(ending) and not is_beside:
                places = {**words, "path": path, "parent": path.rpartition("/")[0]}
                title = TITLES[path.split("/")[1]]
                uses.append(Use(title, path, *fill_template(commands, places)))
    return uses


# What stands in double quotes: text with a backslash before what a shell reads there.
_IN_QUOTES = Syntax(lambda text: re.sub(r'([\\"$`])', r"\\\1", text), lambda name: f"${name}")
# A field and its value in one word, as Hydra reads them.
_SETTING = re.compile(r"\"?[a-z_][\w.]*=")
# Columns of a command's line.
WIDTH = 96
_ADDRESSES = TypeAdapter(tuple[Address, ...])


@dataclass(frozen=True, slots=True)
class NodeCommands:
    """The commands to type on one node, in the bundle's folder.

    ``launcher`` starts everything; ``processes`` (name, command) are what it starts.
    """

    node: int
    launcher: str
    processes: tuple[tuple[str, str], ...]


def read_addresses(text: str, nodes: int) -> tuple[str, ...]:
    """The nodes' addresses from a comma-separated list; stand-ins for an empty one.

    Raises:
        InputError: when their number is not that of the nodes, or one is not an address.
    """
    addresses = tuple(address.strip() for address in text.split(",") if address.strip())
    if not addresses:
        return _stand_in_addresses(nodes)
    if len(addresses) != nodes:
        raise InputError(
            f"has {len(addresses)} addresses; the recipe runs on {nodes} nodes.",
            field="addresses",
            hint=f"Give {nodes} comma-separated addresses, node 0 first.",
        )
    try:
        return _ADDRESSES.validate_python(addresses)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]["input"]
        raise InputError(
            f"{wrong!r:.80} is not an address.",
            field="addresses",
            hint="Give host names or IP addresses.",
        ) from None


def node_commands(context: Context, addresses: Sequence[str]) -> list[NodeCommands]:
    """The commands, one entry per node; ``addresses`` are those of all nodes, in order."""
    processes = context.launch.processes
    return [
        NodeCommands(
            node,
            _launch_py_command(context, node, addresses),
            tuple(
                (p.name, _process_command(context, p, addresses))
                for p in processes
                if p.node == node
            ),
        )
        for node in range(context.nodes)
    ]


def first_command(launch: Launch, model: str) -> str:
    """The command of a launch's first process, with default parameters; it loads ``model``."""
    return wrap_typed_words(first_words(launch, model))


def first_words(launch: Launch, model: str) -> list[str]:
    """The same as words for a shell: settings, program, and each option with its value."""
    process = launch.processes[0]
    return _process_words(
        process,
        _process_values(launch, process, Parameters(), model, _stand_in_addresses(launch.nodes)),
    )


def _stand_in_addresses(nodes: int) -> tuple[str, ...]:
    return tuple(f"node{n}" for n in range(nodes)) if nodes > 1 else ("127.0.0.1",)


def _launch_py_command(context: Context, node: int, addresses: Sequence[str]) -> str:
    """The launcher's command; the bundle already holds model, host and port."""
    node_options = ["--node", str(node), "--head", ",".join(addresses)] if context.nodes > 1 else []
    return texts.quote_command(["python", "launch.py", "up", *node_options])


def _process_command(context: Context, process: Process, addresses: Sequence[str]) -> str:
    """One process as the launcher starts it."""
    neighbours = [
        neighbour for neighbour in context.launch.processes if neighbour.node == process.node
    ]
    values = _process_values(
        context.launch, process, context.parameters, context.model_source, addresses
    )
    settings = visible_devices_setting(context, process) if len(neighbours) > 1 else []
    return wrap_typed_words(_process_words(process, values, settings))


def _process_values(
    launch: Launch, process: Process, parameters: Parameters, model: str, addresses: Sequence[str]
) -> Values:
    first_node = min(member.node for member in launch.processes if member.group == process.group)
    return {
        "model": model,
        "host": parameters.host,
        "port": str(parameters.port + process.port_offset),
        "head": addresses[first_node],
        **{f"node{n}": address for n, address in enumerate(addresses)},
        **port_values(launch, parameters.port),
        # absolute, as programs look for some paths beside their own files
        "root": Variable("PWD"),
        "run": Variable("PWD/run"),
    }


def _process_words(
    process: Process, values: Values, device_settings: Sequence[str] = ()
) -> list[str]:
    settings = [f"{name}={_typed_word(value, values)}" for name, value in process.env.items()]
    typed = [_typed_word(word, values) for word in process.argv]
    return [*settings, *device_settings, *_join_flag_values(typed)]


def _typed_word(template: str, values: Values) -> str:
    """A word for a shell: as it is, or with variables and what is quoted in one pair of quotes."""
    word = fill_placeholders(template, values, _IN_QUOTES)
    plain = fill_placeholders(template, values, PLAIN)
    has_variable = any(
        is_name and isinstance(values[name], Variable) for is_name, name in texts.pieces(template)
    )
    return f'"{word}"' if has_variable or "'" in plain else texts.quote_shell(plain)


def _join_flag_values(words: Sequence[str]) -> list[str]:
    """Words with each flag joined to its value, so that no line breaks between them.

    Settings of fields (``name=value``) stand alone.
    """
    flag_words: list[str] = []
    for word in words:
        is_value = not word.startswith("-") and _SETTING.match(word) is None
        if flag_words and flag_words[-1].startswith("-") and is_value:
            flag_words[-1] += f" {word}"
        else:
            flag_words.append(word)
    return flag_words


def start_command(plan: Plan, row: int, *, folders: bool = True) -> str:
    """The command of the first process of a plan's row.

    Raises:
        NoAnswer: where the engine or framework cannot be started that way.
    """
    request = edit.change(plan.request, edit.select_split(plan.request, row_key(plan, row)))
    # The plan has judged the split already; simulating percentiles again would only take time.
    request = request.model_copy(update={"objective": Objective()})
    decision = decide(request, folders=folders)
    return first_command(decision.started(), decision.model.source)


def start_words(request: PlanRequest, *, folders: bool = True) -> list[str]:
    """The command of the first process of a request's split, each option in a word with its value.

    Raises:
        InputError: for a request that cannot be read.
        NoAnswer: where the split cannot run, or its engine cannot be started that way.
    """
    decision = decide(request.model_copy(update={"objective": Objective()}), folders=folders)
    return first_words(decision.started(), decision.model.source)


def wrap_typed_words(words: Sequence[str]) -> str:
    return wrap_words(words, WIDTH, "    ")
