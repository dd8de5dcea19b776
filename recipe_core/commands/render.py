"""From a candidate to the commands that start it: by the engine's own renderer where it has one, else by its option table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from recipe_core.commands.grammar import Meaning, grammars
from recipe_core.engines.deployment import Deployment
from recipe_core.engines.launch import launch
from recipe_core.engines.spec import engine
from recipe_core.errors import NoAnswer

DEFAULT_PORT = 8000
_STATED: frozenset[Meaning] = frozenset(get_args(Meaning)) - {"nodes", "config", "eager", "speculative", "draft_tokens", "draft_method"}


@dataclass(frozen=True, slots=True)
class Rendered:
    """One server: its words and what is set for it; ``copies`` of it are started, each on devices of its own."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    copies: int = 1

    def __str__(self) -> str:
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.argv)])

    def to_json(self) -> dict[str, Any]:
        """``{"argv", "env", "copies", "command"}``."""
        return {"argv": list(self.argv), "env": self.env, "copies": self.copies, "command": str(self)}


def render(
    deployment: Deployment, model: str, kept: dict[str, Any], program: Sequence[str] = (), longest: str | None = None
) -> list[Rendered]:
    """The commands of a deployment.

    Args:
        deployment: what to start.
        model: its name or folder, as the command had it.
        kept: options of the command, by name; those that say nothing about the candidate are passed on.
        program: the words that started the engine.
        longest: what to say in place of the number of tokens of the longest request.

    Raises:
        NoAnswer: when the engine's renderer cannot start it this way.
    """
    spec = deployment.setting.engine
    kept = _kept(deployment, kept)
    if not spec.buildable:
        options, candidate = options_of(deployment), deployment.candidate
        copies = candidate.dp if "dp" not in grammars()[spec.name].means.values() else 1
        if copies > 1 and candidate.ep > 1:
            raise NoAnswer(f"{spec.title} takes data-parallel attention from a file of options.", field="candidate.dp")
        first = ("python3", *program) if program[:1] == ("-m",) else tuple(program or grammars()[spec.name].launch[0])
        named = [flag] if (flag := _flag(spec.name, "model")) else []
        return [Rendered((*first, *named, model, *spec.argv(options | kept)), copies=copies)]
    started = launch(deployment)
    passed_on = spec.argv({name: value for name, value in kept.items() if name not in started.options or name == "served_model_name"})
    visible = "HIP_VISIBLE_DEVICES" if deployment.setting.cluster.device.runtime == "rocm" else "CUDA_VISIBLE_DEVICES"
    out = []
    for process in started.processes:
        base = kept.get("port") or (DEFAULT_PORT if len(started.processes) > 1 else None)
        filled = {"${model}": model, "${host}": kept.get("host"), "${port}": base and str(base + process.port_offset)}
        shown = {visible: ",".join(map(str, process.devices))} if len(started.processes) > 1 else {}
        words = _filled(process.argv, filled)
        if longest is not None:
            words[words.index(_flag(spec.name, "max_context")) + 1] = longest
        out.append(Rendered((*words, *passed_on), shown))
    return out


def _kept(deployment: Deployment, values: dict[str, Any]) -> dict[str, Any]:
    """The options that a candidate does not state; how many nodes there are plays no part where one is enough."""
    candidate, means = deployment.candidate, grammars()[deployment.setting.engine.name].means
    stated = _STATED | ({"nodes"} if candidate.devices <= deployment.setting.cluster.per_node else set())
    return {name: value for name, value in values.items() if means.get(name) not in stated}


def _flag(name: str, meaning: Meaning) -> str:
    """The flag with a meaning; empty where an engine has none."""
    found = next((option for option, means in grammars()[name].means.items() if means == meaning), None)
    return engine(name).options.by_name[found].flag if found else ""


def _filled(argv: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Words with what is filled in at launch; an option whose value is not known, and the served name, are left out."""
    out: list[str] = []
    for word in argv:
        if (word in values and values[word] is None) or (out and out[-1] == "--served-model-name"):
            out.pop()
        else:
            out.append(str(values.get(word, word)))
    return out


def options_of(deployment: Deployment) -> dict[str, Any]:
    """Options by name that state a candidate, by what they mean; those that cannot be said are missing."""
    candidate, setting = deployment.candidate, deployment.setting
    grammar = grammars()[candidate.engine]
    by_meaning: dict[Meaning, str] = {meaning: name for name, meaning in grammar.means.items()}
    within = "attention_dp" in by_meaning and candidate.ep > 1 and candidate.dp > 1
    shared = candidate.dp if within else 1
    said: dict[Meaning, Any] = {
        "tp": candidate.tp * shared,
        "pp": candidate.pp,
        "attention_dp" if within else "dp": candidate.dp,
        "ep": candidate.ep,
        "max_context": deployment.max_context,
        "max_num_seqs": candidate.max_num_seqs * shared,
        "max_batched_tokens": candidate.max_batched_tokens * shared,
        "memory_fraction": candidate.memory_fraction,
    }
    if candidate.cp > 1:
        said["cp"] = candidate.cp
    if candidate.block_size != setting.engine.memory.block_tokens:
        said["block_size"] = candidate.block_size
    formats: dict[Meaning, str] = {"kv_dtype": candidate.kv_dtype}
    if candidate.weight_dtype != setting.model.weight_dtype:
        formats["quantization" if candidate.weight_dtype in setting.engine.online_weight_dtypes else "dtype"] = candidate.weight_dtype
    for meaning, ours in formats.items():
        word = next((word for word, value in grammar.words.get(by_meaning.get(meaning, ""), {}).items() if value == ours), None)
        if word is not None:
            said[meaning] = word
    return {by_meaning[meaning]: value for meaning, value in said.items() if meaning in by_meaning}
