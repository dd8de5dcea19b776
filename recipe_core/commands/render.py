"""From a candidate to the commands that start it, as an existing command would be changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recipe_core.base import texts
from recipe_core.engines.grammar import Grammar, grammars
from recipe_core.engines.options import MEANINGS, Meaning
from recipe_core.launch.process import Deployment, Launch, Process
from recipe_core.launch.serving.vllm import WAYS
from recipe_core.launch.start import launch_deployment

DEFAULT_PORT = 8000
_DRAFTS: frozenset[Meaning] = frozenset(
    {"speculative", "draft_tokens", "draft_method", "draft_model"}
)
_STATED: frozenset[Meaning] = MEANINGS - _DRAFTS - {"nodes", "config", "eager"}
_VISIBLE = {"rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}


@dataclass(frozen=True, slots=True)
class Rendered:
    """One process on ``node``: words, variables, and the files that its words name."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    node: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        variables = [f"{name}={texts.quote_shell(value)}" for name, value in self.env.items()]
        return " ".join([*variables, texts.quote_command(self.argv)])

    def to_json(self) -> dict[str, Any]:
        """``{"argv", "env", "node", "files", "command"}``."""
        return {
            "argv": list(self.argv),
            "env": dict(self.env),
            "node": self.node,
            "files": dict(self.files),
            "command": str(self),
        }


def render_commands(
    deployment: Deployment,
    model: str,
    values: dict[str, Any],
    program: Sequence[str] = (),
    longest: str | None = None,
) -> list[Rendered]:
    """The commands of a deployment.

    Args:
        deployment: what to start.
        model: its name or folder, as the command had it.
        values: options of the command, by name; those that say nothing about the candidate are
            passed on.
        program: the words that started the engine.
        longest: what to write in place of the number of tokens of the longest request.

    Raises:
        NoAnswer: when the engine cannot be started this way.
    """
    spec = deployment.setting.engine
    grammar, table = grammars()[spec.name], spec.options
    flags = {
        meaning: table.by_name[name].flag if name in table.by_name else ""
        for name, meaning in reversed(grammar.means.items())
    }
    options = _beyond_candidate(deployment, grammar, values)
    ways = {name: options[name] for name in WAYS if name in options}
    started = launch_deployment(replace(deployment, engine_options=ways))
    out = []
    for process in started.processes:
        words = _fill_words(process.argv, _placeholders(started, process, model, options))
        if longest is not None and (flag := flags.get("max_context")) in words:
            words[words.index(flag) + 1] = longest
        settled = {option.name for word in words if (option := table.by_spelling.get(word))}
        settled = (settled | set(started.options)) - {"served_model_name"}
        words = _start_words(grammar, flags.get("model", ""), words, program)
        if process.role != "router":
            passed_on = {name: value for name, value in options.items() if name not in settled}
            words += spec.argv(passed_on)
        env = _visible(deployment, started, process)
        out.append(Rendered(tuple(words), env, process.node, started.files))
    return out


def _beyond_candidate(
    deployment: Deployment, grammar: Grammar, values: dict[str, Any]
) -> dict[str, Any]:
    """The options that a candidate does not state; nodes count only where one is not enough."""
    meanings = set(_STATED)
    if deployment.candidate.devices <= deployment.setting.cluster.per_node:
        meanings.add("nodes")
    return {
        name: value
        for name, value in values.items()
        if grammar.means.get(name) not in meanings and name not in grammar.placed
    }


def _placeholders(
    started: Launch, process: Process, model: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Values of a process's placeholders; None for what the command leaves to the engine."""
    peers = started.processes
    base = options.get("port") or (DEFAULT_PORT if len(peers) > 1 else None)
    offsets = range(1 + max(peer.port_offset for peer in peers))
    return {
        "model": model,
        "host": options.get("host"),
        "port": base and str(base + process.port_offset),
        "head": f"node{next(peer.node for peer in peers if peer.group == process.group)}",
        **{f"node{node}": f"node{node}" for node in range(started.nodes)},
        **{f"port{offset}": base and str(base + offset) for offset in offsets},
    }


def _fill_words(argv: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Words with placeholders filled, without options of unknown value and the served name.

    Files stand below the folder that the command runs in.
    """
    out: list[str] = []
    for word in argv:
        pieces = texts.pieces(word.removeprefix("${root}/"))
        no_value = len(pieces) == 1 and pieces[0][0] and values.get(pieces[0][1], "") is None
        if no_value or (out and out[-1] == "--served-model-name"):
            out.pop()
            continue
        filled = (
            str(values.get(text, f"${{{text}}}")) if is_name else text for is_name, text in pieces
        )
        out.append("".join(filled))
    return out


def _start_words(
    grammar: Grammar, model_flag: str, words: list[str], program: Sequence[str]
) -> list[str]:
    """The words, started as the command did, with the model where its program takes it."""
    starts = (start.words for start in grammar.launch)
    usual = next((start for start in starts if tuple(words[: len(start)]) == start), ())
    start = grammar.start_of(program)
    if not program or not usual or start is None:
        return words
    rest = words[len(usual) :]
    if start.model == "option" and not rest[0].startswith("-"):
        if not model_flag:
            return words
        rest.insert(0, model_flag)
    return [*program_words(program), *rest]


def program_words(program: Sequence[str]) -> tuple[str, ...]:
    """The words that start a program, whose module Python runs."""
    return ("python3", *program) if program[:1] == ("-m",) else tuple(program)


def _visible(deployment: Deployment, started: Launch, process: Process) -> dict[str, str]:
    """The devices of a process, where several share a node."""
    on_node = [peer for peer in started.processes if peer.node == process.node and peer.devices]
    if len(on_node) < 2 or not process.devices:
        return {}
    name = _VISIBLE.get(deployment.setting.cluster.device.runtime, "CUDA_VISIBLE_DEVICES")
    return {name: ",".join(map(str, process.devices))}
