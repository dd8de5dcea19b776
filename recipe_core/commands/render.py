"""From a candidate to the commands that start it, as an existing command would be changed to say them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from recipe_core.engines.grammar import grammars
from recipe_core.engines.options import Meaning
from recipe_core.engines.spec import engine
from recipe_core.launch.process import Deployment, Launch, Process
from recipe_core.launch.serving.start import launch
from recipe_core.launch.serving.vllm_ranks import WAYS

DEFAULT_PORT = 8000
_DRAFTS: frozenset[Meaning] = frozenset(
    {"speculative", "draft_tokens", "draft_method", "draft_model"}
)
_STATED: frozenset[Meaning] = frozenset(get_args(Meaning)) - _DRAFTS - {"nodes", "config", "eager"}
_ELSEWHERE = re.compile(r"\$\{(node|port)(\d+)\}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """One process: its words and what is set for it; on node ``node``. ``files`` are those that its words name."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    node: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(
            [
                *(f"{name}={shlex.quote(value)}" for name, value in self.env.items()),
                shlex.join(self.argv),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """``{"argv", "env", "node", "files", "command"}``."""
        return {
            "argv": list(self.argv),
            "env": dict(self.env),
            "node": self.node,
            "files": dict(self.files),
            "command": str(self),
        }


def render(
    deployment: Deployment,
    model: str,
    kept: dict[str, Any],
    program: Sequence[str] = (),
    longest: str | None = None,
) -> list[Rendered]:
    """The commands of a deployment.

    Args:
        deployment: what to start.
        model: its name or folder, as the command had it.
        kept: options of the command, by name; those that say nothing about the candidate are passed on.
        program: the words that started the engine.
        longest: what to say in place of the number of tokens of the longest request.

    Raises:
        NoAnswer: when the engine cannot be started this way.
    """
    spec, kept = deployment.setting.engine, _kept(deployment, kept)
    started = launch(
        replace(deployment, engine_options={name: kept[name] for name in WAYS if name in kept})
    )
    out = []
    for process in started.processes:
        words = _filled(process.argv, _values(started, process, model, kept))
        if longest is not None and (flag := _flag(spec.name, "max_context")) in words:
            words[words.index(flag) + 1] = longest
        said = {option.name for word in words if (option := spec.options.by_spelling.get(word))}
        passed_on = {
            name: value
            for name, value in kept.items()
            if name not in said | set(started.options) or name == "served_model_name"
        }
        words = [
            *_program(spec.name, words, program),
            *(spec.argv(passed_on) if process.role != "router" else ()),
        ]
        out.append(
            Rendered(
                tuple(words), _visible(deployment, started, process), process.node, started.files
            )
        )
    return out


def _values(started: Launch, process: Process, model: str, kept: dict[str, Any]) -> dict[str, Any]:
    """What stands for the placeholders of a process; None for what the command leaves to the engine."""
    base = kept.get("port") or (DEFAULT_PORT if len(started.processes) > 1 else None)
    first = next(other.node for other in started.processes if other.group == process.group)
    return {
        "${model}": model,
        "${host}": kept.get("host"),
        "${port}": base and str(base + process.port_offset),
        "${head}": f"node{first}",
        "base": base,
    }


def _visible(deployment: Deployment, started: Launch, process: Process) -> dict[str, str]:
    """The devices of a process, where several share a node."""
    if (
        sum(other.node == process.node and bool(other.devices) for other in started.processes) < 2
        or not process.devices
    ):
        return {}
    name = (
        "HIP_VISIBLE_DEVICES"
        if deployment.setting.cluster.device.runtime == "rocm"
        else "CUDA_VISIBLE_DEVICES"
    )
    return {name: ",".join(map(str, process.devices))}


def _program(name: str, words: Sequence[str], program: Sequence[str]) -> list[str]:
    """The words, started as the command did; a module takes its model by a flag only."""
    own = next(
        (launch for launch in grammars()[name].launch if tuple(words[: len(launch)]) == launch), ()
    )
    if not program or not own or (program[0] == "-m" and not _flag(name, "model")):
        return list(words)
    first = ("python3", *program) if program[0] == "-m" else tuple(program)
    return [*first, *words[len(own) :]]


def _kept(deployment: Deployment, values: dict[str, Any]) -> dict[str, Any]:
    """The options that a candidate does not state; how many nodes there are plays no part where one is enough."""
    candidate, grammar = deployment.candidate, grammars()[deployment.setting.engine.name]
    stated = _STATED | (
        {"nodes"} if candidate.devices <= deployment.setting.cluster.per_node else set()
    )
    return {
        name: value
        for name, value in values.items()
        if grammar.means.get(name) not in stated and name not in grammar.placed
    }


def _flag(name: str, meaning: Meaning) -> str:
    """The flag with a meaning; empty where an engine has none."""
    found = next(
        (option for option, means in grammars()[name].means.items() if means == meaning), None
    )
    option = engine(name).options.by_name.get(found) if found else None
    return option.flag if option else ""


def _filled(argv: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Words with what is filled in at launch; an option whose value is not known, and the served name, are left out."""
    out: list[str] = []
    for word in argv:
        if (word in values and values[word] is None) or (out and out[-1] == "--served-model-name"):
            out.pop()
        else:
            out.append(_word(word, values))
    return out


def _word(word: str, values: dict[str, Any]) -> str:
    """A word with its placeholders replaced; files stand below the folder that the command runs in."""
    word = word.removeprefix("${root}/")
    for name, value in values.items():
        word = word.replace(name, str(value)) if name.startswith("$") else word
    return _ELSEWHERE.sub(
        lambda m: f"node{m[2]}" if m[1] == "node" else str(values["base"] + int(m[2])), word
    )
