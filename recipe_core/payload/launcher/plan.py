"""``launch.json`` as typed objects, with the command line's parameters filled in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .api import Api, read_api
from .errors import InputError
from .files import read_object
from .limits import USUAL, Supervision, read_supervision
from .making import Making, read_making
from .needs import RUNTIMES, Needs
from .portability import Support, read_support
from .typed_json import Fields, read_typed

MODES = ("closed", "open", "static", "offline")
KINDS = ("serving", "training")
# The name and the kind of what the recipe decided; the kind of what it has for other machines.
FIRST, VARIANT = "first", "variant"
# What a field has to be.
_COUNT = {"low": 1}
_FOLDER = {
    "form": "[a-z0-9][a-z0-9-]{0,63}",
    "words": "lower-case letters, digits and dashes",
}
_FILE = {"form": r"[\w.-]+", "words": "letters, digits, dots and dashes"}  # of a log
_SILENT = ("worker", "trainer")
_POOLS = ("prefill", "decode")
# What a bundle of reinforcement learning asks, as its words name it.
TASKS = "${root}/data/tasks.jsonl"
_PLACEHOLDER = re.compile(r"\$\{(model|host|port|head|root|run|node\d+|port\d+)\}")
_UNKNOWN_NODE = re.compile(r"\$\{node(\d+)\}")


@dataclass(frozen=True, slots=True)
class Engine:
    """The program that serves; ``requires`` are modules and programs that its interpreter finds."""

    name: str
    version: str
    program: str
    module: str
    install: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters that the command line may change.

    ``head``: the address of node 0, or those of all nodes with commas between; ``data``: a text to
    train on instead of the bundle's.
    """

    model: str
    host: str
    port: int = field(metadata=_COUNT)
    head: str = "127.0.0.1"
    data: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.head.split(","))


@dataclass(frozen=True, slots=True)
class Process:
    """One process to start, without placeholders; ``devices`` count within its node.

    Processes of one ``group`` start and stop together: a replica, a pool, a router.
    """

    name: str = field(metadata=_FILE)
    argv: tuple[str, ...]
    env: dict[str, str]
    port: int
    devices: tuple[int, ...]
    node: int = 0
    role: str = "server"
    group: int = 0

    @property
    def answers(self) -> bool:
        """True when it has an address to ask; workers and trainers have none."""
        return self.role not in _SILENT


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic the recipe was computed for.

    Lengths vary around their means by a share of them, a spread, or are those that even shares of
    requests have, ascending; of these a request keeps to ``max_context`` in all.
    """

    mode: str = field(metadata={"allowed": MODES})
    input_tokens: int = field(metadata=_COUNT)
    output_tokens: int = field(metadata=_COUNT)
    concurrency: int | None = field(metadata=_COUNT)
    request_rate: float | None
    batch: int | None = field(metadata=_COUNT)
    requests: int | None = field(metadata=_COUNT)
    input_spread: float = field(default=0.0, metadata={"high": 1.0})
    output_spread: float = field(default=0.0, metadata={"high": 1.0})
    input_lengths: tuple[int, ...] = ()
    output_lengths: tuple[int, ...] = ()
    max_context: int | None = field(default=None, metadata=_COUNT)

    @property
    def sides(self) -> tuple[tuple[str, int, float, tuple[int, ...]], ...]:
        """Of prompts and of answers: name, mean, spread, and lengths of even shares."""
        return (
            ("input", self.input_tokens, self.input_spread, self.input_lengths),
            ("output", self.output_tokens, self.output_spread, self.output_lengths),
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """A choice as ``launch.json`` lists it: what it is, and machines of which any will do.

    ``name`` is that of its folder; what is only ``advised`` has none: its bundle must be built.
    """

    name: str = field(metadata=_FOLDER)
    kind: str
    title: str
    needs: tuple[Needs, ...] = ()
    advised: bool = False


# Training has no requests.
_NO_LOAD = Workload("offline", 1, 1, None, None, None, None)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """``launch.json`` with the processes of one node, and its folder.

    ``node`` is None where the bundle runs on one node only. ``choice``: which of the bundle's
    ``choices`` this is. ``making``: the checkpoint that it makes first. ``support``: what releases
    of the engine run on which architecture.
    """

    root: Path
    name: str
    engine: Engine
    needs: Needs
    parameters: Parameters
    processes: tuple[Process, ...]
    health: str
    startup_timeout_s: float
    api: Api
    workload: Workload
    kind: str = "serving"
    node: int | None = None
    nodes: int = 1
    needs_model: bool = True
    choice: str = FIRST
    choices: tuple[Listed, ...] = ()
    supervision: Supervision = USUAL
    making: Making | None = None
    support: Support | None = None

    @property
    def folder(self) -> Path:
        """The folder of this choice's ``launch.json`` and ``expected.json``."""
        return choice_folder(self.root, self.choice)

    @property
    def run(self) -> Path:
        """The folder of measurements and what runs leave; not part of the bundle's digests."""
        return self.root / "run"

    @property
    def own(self) -> Path:
        """The folder of state and logs of this node: nodes may share the folder of the bundle."""
        return self.run if self.node is None else self.run / f"node-{self.node}"

    @property
    def answering(self) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.answers)

    @property
    def entrances(self) -> tuple[Process, ...]:
        """The processes here that users ask: the routers, else servers that are not pools."""
        routers = tuple(process for process in self.processes if process.role == "router")
        return routers or tuple(process for process in self.answering if process.role not in _POOLS)

    @property
    def client_host(self) -> str:
        """The address to connect to: the loopback for a server that listens everywhere."""
        loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to
        return loopback.get(self.parameters.host, self.parameters.host)

    def address(self, port: int) -> str:
        """The base URL of the server on ``port``."""
        host = f"[{self.client_host}]" if ":" in self.client_host else self.client_host
        return f"http://{host}:{port}"


def choice_folder(root: Path, choice: str) -> Path:
    return root if choice == FIRST else root / "fallbacks" / choice


def load_plan(
    root: Path,
    *,
    choice: str = FIRST,
    model: str | None = None,
    host: str | None = None,
    port: int | None = None,
    node: int | None = None,
    head: str | None = None,
    data: str | None = None,
) -> LaunchPlan:
    """Read a choice's ``launch.json``; ``model``, ``host`` and ``port`` replace its parameters.

    Of a bundle for several nodes it keeps the processes of ``node``, with node 0 at ``head``.
    """
    fields, choices = _document(root, choice)
    if fields.data.get("schema_version") != 1:
        raise fields.fail("schema_version", "1 (the version this launcher reads)")
    defaults = fields.child("parameters")
    parameters = read_typed(Parameters, defaults, head="127.0.0.1", data=None)
    check_port_number(parameters.port, f"{defaults.where}.port")
    parameters = Parameters(
        model=_find_model(model, parameters.model, root),
        host=host if host is not None else parameters.host,
        port=port if port is not None else parameters.port,
        head=head or parameters.head,
        data=str(Path(data).expanduser().resolve()) if data else None,
    )
    fill = Filler(parameters, root)
    engine = fields.child("engine")
    module = engine.optional_text("module") or engine.text("name")
    listed = next(option for option in choices if option.name == choice)
    kind = fields.one_of("kind", KINDS) if "kind" in fields.data else KINDS[0]
    items = fields.children("processes")
    everywhere = _parse_launch_processes(items, fill)
    nodes = 1 + max(process.node for process in everywhere)
    node = which_node(node, nodes)
    return LaunchPlan(
        root=root,
        name=fields.text("name"),
        engine=read_typed(Engine, engine, module=module),
        needs=listed.needs[0] if listed.needs else read_needs(fields),
        parameters=parameters,
        processes=tuple(process for process in everywhere if node is None or process.node == node),
        health=(fields.optional_text("health") or "/health") if kind == "serving" else "",
        startup_timeout_s=fields.optional_number("startup_timeout_s") or 600.0,
        api=read_api(fields.child("api"), fill.json) if kind == "serving" else Api("", "", {}),
        workload=read_typed(Workload, fields.child("workload")) if kind == "serving" else _NO_LOAD,
        kind=kind,
        node=node,
        nodes=nodes,
        needs_model=any("${model}" in str(item.data) for item in items),
        choice=choice,
        choices=choices,
        supervision=read_supervision(fields),
        making=read_making(fields, root),
        support=read_support(fields),
    )


def _document(root: Path, choice: str) -> tuple[Fields, tuple[Listed, ...]]:
    """A choice's ``launch.json``, and the choices of its bundle.

    Raises:
        InputError: for a choice that the bundle does not list.
    """
    fields = Fields(read_object(root / "launch.json"), "launch.json")
    choices = read_choices(fields)
    names = [listed.name for listed in choices if not listed.advised]
    if choice not in names:
        hint = f"It has: {', '.join(names)}."
        raise InputError(f"the bundle has no choice {choice!r}.", field="--choice", hint=hint)
    if choice != FIRST:
        path = choice_folder(root, choice) / "launch.json"
        fields = Fields(read_object(path), path.relative_to(root).as_posix())
    return fields, choices


def read_needs(fields: Fields) -> Needs:
    """Return the object ``needs`` of a ``launch.json``."""
    needs = fields.child("needs")
    title = needs.optional_text("title") or needs.text("device")
    return read_typed(Needs, needs, title=title, names=needs.texts("names"))


def read_choices(fields: Fields) -> tuple[Listed, ...]:
    """Return the choices of a bundle's ``launch.json`` in their order, the first one too.

    Raises:
        InputError: for what is no such list.
    """
    first = Listed(FIRST, FIRST, "the recipe's first choice", (read_needs(fields),))
    if fields.data.get("choices") is None:
        return (first, *_read_choices_before(fields))
    listed = [read_typed(Listed, item) for item in fields.children("choices")]
    if FIRST not in [choice.name for choice in listed]:
        raise fields.fail("choices", f"a list with {FIRST!r}")
    return tuple(first if choice.name == FIRST else choice for choice in listed)


def _read_choices_before(fields: Fields) -> Iterator[Listed]:
    """Yield what stood in place of ``choices``: ``fallbacks``, whose folders have their needs.

    And ``variants``, which nothing started: so many devices, on all nodes, of some kinds.
    """
    for item in fields.children("fallbacks") if fields.data.get("fallbacks") else ():
        yield read_typed(Listed, item)
    nodes = fields.optional_integer("nodes", low=1) or 1
    variants = fields.children("variants") if fields.data.get("variants") else ()
    for number, item in enumerate(variants, 1):
        low, high = (item.optional_integer(name) for name in ("at_least", "at_most"))
        counts = {"count": -(-(low or 1) // nodes), "at_most": high and high // nodes}
        needs = tuple(
            read_typed(
                Needs, kind, device=kind.text("profile"), title=kind.text("profile"), **counts
            )
            for kind in item.children("kinds")
            if kind.data.get("runtime") in RUNTIMES
        )
        yield Listed(f"{number}-{VARIANT}", VARIANT, item.text("name"), needs, advised=True)


def unknown_nodes(plan: LaunchPlan) -> list[int]:
    """Nodes whose addresses the processes need but nobody passed."""
    texts = [text for process in plan.processes for text in (*process.argv, *process.env.values())]
    return sorted({int(number) for text in texts for number in _UNKNOWN_NODE.findall(text)})


def which_node(node: int | None, nodes: int) -> int | None:
    """The node whose processes are meant; None for a bundle of one node."""
    if nodes == 1:
        if node not in (None, 0):
            raise InputError(
                f"node {node}: this bundle runs on one node.",
                field="--node",
                hint="Leave --node out.",
            )
        return None
    if node is None:
        hint = f"Start each with --node N (0 to {nodes - 1}) --head ADDRESS (that of node 0)."
        message = f"this bundle runs on {nodes} nodes; --node is missing."
        raise InputError(message, field="--node", hint=hint)
    if not 0 <= node < nodes:
        raise InputError(
            f"node {node} is not between 0 and {nodes - 1}.",
            field="--node",
            hint=f"The bundle runs on {nodes} nodes.",
        )
    return node


@dataclass(frozen=True, slots=True)
class Filler:
    """Replaces placeholders in text.

    ``${model}``, ``${host}``, ``${port}``, ``${root}`` (the bundle) and ``${run}`` (its run/).

    Also ``${node0}`` and so on (addresses of nodes; unknown ones stay), ``${head}`` (that of node
    ``first``) and ``${port1}`` and so on (the bundle's port plus the number).
    """

    parameters: Parameters
    root: Path
    port_offset: int = 0
    first: int = 0

    def text(self, template: str) -> str:
        """Fill one text; other data takes the place of the bundle's tasks."""
        if self.parameters.data:
            template = template.replace(TASKS, self.parameters.data)
        values = {
            "model": self.parameters.model,
            "host": self.parameters.host,
            "port": str(self.parameters.port + self.port_offset),
            "head": self._node(self.first),
            "root": str(self.root),
            "run": str(self.root / "run"),
        }
        return _PLACEHOLDER.sub(
            lambda match: values.get(match.group(1)) or self._numbered(match.group(1)), template
        )

    def _numbered(self, name: str) -> str:
        """An address or a port by its number."""
        number = int(name[4:])
        return self._node(number) if name.startswith("node") else str(self.parameters.port + number)

    def _node(self, number: int) -> str:
        addresses = self.parameters.addresses
        return addresses[number] if number < len(addresses) else f"${{node{number}}}"

    def json(self, value: Any) -> Any:
        """Fill every text inside a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {key: self.json(item) for key, item in value.items()}
        return value


def is_model_path(model: str) -> bool:
    """True for a folder on disk, False for a name on a hub (``owner/name``)."""
    return model.startswith(("/", "./", "../", "~")) or model in (".", "..")


def check_port_number(port: int, field: str) -> int:
    """The port.

    Raises:
        InputError: where it is out of range; ``field`` says where it came from.
    """
    if not 1 <= port <= 65535:
        raise InputError(
            f"port {port} is not between 1 and 65535.",
            field=field,
            hint="Choose a free port, for example --port 8000.",
        )
    return port


def _find_model(model: str | None, planned: str, root: Path) -> str:
    """The model of the command line, a path from the current folder, or that of the bundle."""
    name, folder = (planned, root) if model is None else (model, Path.cwd())
    path = Path(name).expanduser()
    is_path = is_model_path(name) or (model is not None and path.is_dir())
    return os.path.normpath(folder / path) if is_path else name


def _parse_launch_processes(items: tuple[Fields, ...], fill: Filler) -> tuple[Process, ...]:
    first: dict[int, int] = {}
    for item in items:
        first.setdefault(item.optional_integer("group") or 0, item.optional_integer("node") or 0)
    groups = [item.optional_integer("group") or 0 for item in items]
    processes = tuple(
        _parse_launch_process(item, replace(fill, first=first[group]))
        for item, group in zip(items, groups, strict=True)
    )
    for attribute in ("name", "port"):
        # Only processes that answer need their ports.
        several = [p for p in processes if attribute == "name" or p.answers]
        values = [(process.node, getattr(process, attribute)) for process in several]
        if len(set(values)) != len(values):
            raise InputError(
                f"processes share a {attribute}: {[value for _, value in values]}.",
                field="launch.json.processes",
                hint="Every process needs its own.",
            )
    return processes


def _parse_launch_process(fields: Fields, fill: Filler) -> Process:
    fill = replace(fill, port_offset=fields.optional_integer("port_offset") or 0)
    argv, port = fields.texts("argv"), fill.parameters.port + fill.port_offset
    if not argv:
        raise fields.fail("argv", "a list with the program first")
    return read_typed(
        Process,
        fields,
        argv=tuple(fill.text(word) for word in argv),
        env={key: fill.text(value) for key, value in fields.text_map("env").items()},
        port=check_port_number(port, f"{fields.where}.port_offset"),
    )
