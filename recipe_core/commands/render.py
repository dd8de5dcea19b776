"""From a candidate to the commands that start it, as an existing command would be changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recipe_core.base import texts
from recipe_core.base.texts import PLACEHOLDER
from recipe_core.engines.grammar import grammars
from recipe_core.engines.options import MEANINGS, Meaning
from recipe_core.engines.spec import Engine
from recipe_core.launch.process import Deployment, Launch, Process
from recipe_core.launch.serving.vllm import WAYS
from recipe_core.launch.start import launch_deployment

DEFAULT_PORT = 8000
_DRAFTS: frozenset[Meaning] = frozenset(
    {"speculative", "draft_tokens", "draft_method", "draft_model"}
)
_STATED: frozenset[Meaning] = MEANINGS - _DRAFTS - {"nodes", "config", "eager"}


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
    spec, options = deployment.setting.engine, _beyond_candidate(deployment, values)
    ways = {name: options[name] for name in WAYS if name in options}
    started = launch_deployment(replace(deployment, engine_options=ways))
    out = []
    for process in started.processes:
        words = _fill_words(process.argv, _placeholders(started, process, model, options))
        if longest is not None and (flag := _meaning_flag(spec, "max_context")) in words:
            words[words.index(flag) + 1] = longest
        settled = {option.name for word in words if (option := spec.options.by_spelling.get(word))}
        settled = (settled | set(started.options)) - {"served_model_name"}
        passed_on = {name: value for name, value in options.items() if name not in settled}
        words = _start_words(spec, words, program)
        if process.role != "router":
            words += spec.argv(passed_on)
        env = _visible(deployment, started, process)
        out.append(Rendered(tuple(words), env, process.node, started.files))
    return out


def _placeholders(
    started: Launch, process: Process, model: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Values of a process's placeholders; None for what the command leaves to the engine."""
    base = options.get("port") or (DEFAULT_PORT if len(started.processes) > 1 else None)
    first = next(peer.node for peer in started.processes if peer.group == process.group)
    return {
        "${model}": model,
        "${host}": options.get("host"),
        "${port}": base and str(base + process.port_offset),
        "${head}": f"node{first}",
        "base": base,
    }


def _visible(deployment: Deployment, started: Launch, process: Process) -> dict[str, str]:
    """The devices of a process, where several share a node."""
    on_node = [peer for peer in started.processes if peer.node == process.node and peer.devices]
    if len(on_node) < 2 or not process.devices:
        return {}
    names = {"rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
    name = names.get(deployment.setting.cluster.device.runtime, "CUDA_VISIBLE_DEVICES")
    return {name: ",".join(map(str, process.devices))}


def _start_words(spec: Engine, words: Sequence[str], program: Sequence[str]) -> list[str]:
    """The words, started as the command did, with the model where its program takes it."""
    grammar = grammars()[spec.name]
    starts = (start.words for start in grammar.launch)
    usual = next((start for start in starts if tuple(words[: len(start)]) == start), ())
    start, flag = grammar.start_of(program), _meaning_flag(spec, "model")
    if not program or not usual or start is None:
        return list(words)
    rest = list(words[len(usual) :])
    if start.model == "option" and not rest[0].startswith("-"):
        if not flag:
            return list(words)
        rest.insert(0, flag)
    return [*program_words(program), *rest]


def program_words(program: Sequence[str]) -> tuple[str, ...]:
    """The words that start a program, whose module Python runs."""
    return ("python3", *program) if program[:1] == ("-m",) else tuple(program)


def _beyond_candidate(deployment: Deployment, values: dict[str, Any]) -> dict[str, Any]:
    """The options that a candidate does not state; nodes count only where one is not enough."""
    candidate, grammar = deployment.candidate, grammars()[deployment.setting.engine.name]
    meanings = set(_STATED)
    if candidate.devices <= deployment.setting.cluster.per_node:
        meanings.add("nodes")
    return {
        name: value
        for name, value in values.items()
        if grammar.means.get(name) not in meanings and name not in grammar.placed
    }


def _meaning_flag(spec: Engine, meaning: Meaning) -> str:
    """The flag with a meaning; empty where an engine has none."""
    for option, option_meaning in grammars()[spec.name].means.items():
        if option_meaning == meaning:
            row = spec.options.by_name.get(option)
            return row.flag if row else ""
    return ""


def _fill_words(argv: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Words with placeholders filled, without options of unknown value and the served name."""
    out: list[str] = []
    for word in argv:
        if (word in values and values[word] is None) or (out and out[-1] == "--served-model-name"):
            out.pop()
        else:
            out.append(_fill_word(word, values))
    return out


def _fill_word(word: str, values: dict[str, Any]) -> str:
    """A word with placeholders replaced; files stand below the folder the command runs in."""
    word = word.removeprefix("${root}/")

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if match[0] in values:
            return str(values[match[0]])
        if name.startswith("node"):
            return name
        return str(values["base"] + int(name[4:])) if name.startswith("port") else match[0]

    return PLACEHOLDER.sub(value, word)
