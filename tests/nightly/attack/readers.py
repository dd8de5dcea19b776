"""Files of a bundle as what reads them takes them: shells, Compose, Kubernetes, Helm, KServe, Ray.

Shell scripts are run by bash, with every program replaced by one that records its words; compose
files are read by docker-compose. Of the others the documented rules stand here.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from recipe_core.base.documents import to_yaml

HOSTILE = dict.fromkeys(("HF_TOKEN", "IFS", "X", "POD_IP"), "substituted")
HOSTILE["HOME"] = "/home/substituted"
"""Variables of whoever reads a file; none of their values may ever show up in it."""

# What a program was started with, NUL between words: their number, the words, the environment.
_RECORDER = """#!/bin/bash
{ printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@"; /usr/bin/env -0; } > "$(mktemp "$RECORDS/XXXXXX")"
case "${0##*/}" in scontrol) echo node0 ;; esac
"""
# A script waits for all of its processes here, so that none is stopped before it has recorded.
_WAITING = "kill() { :; }\nwait() { builtin wait; }\n"
PROGRAMS = (
    *("docker", "podman", "vllm", "vllm-router", "sglang", "python", "python3", "trtllm-serve"),
    *("mpirun", "llama-server", "text-generation-launcher", "transformers", "tritonserver"),
    *("torchrun", "accelerate", "deepspeed", "primus-cli", "srun", "scontrol", "curl", "recipe"),
)


class Shell:
    """Bash in a folder of its own, where every program of ``PROGRAMS`` only records its words."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._records = folder / "work", folder / "records"
        self._programs, self._waiting = folder / "programs", folder / "waiting.sh"
        for path in (self.folder, self._records, self._programs):
            path.mkdir()
        self._waiting.write_text(_WAITING)
        recorder = self._programs / PROGRAMS[0]
        recorder.write_text(_RECORDER)
        recorder.chmod(0o755)
        for name in PROGRAMS[1:]:
            (self._programs / name).symlink_to(recorder)

    def run(
        self, script: str, arguments: Sequence[str] = (), path: str = "run.sh", **variables: str
    ) -> list[dict[str, Any]]:
        """What a script starts, in no order: each program's ``argv`` and ``env``.

        Raises:
            ValueError: for a script that bash cannot read, or that fails.
        """
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script)
        base = {
            "PATH": f"{self._programs}:/usr/bin:/bin",
            "RECORDS": str(self._records),
            "BASH_ENV": str(self._waiting),
            "LC_ALL": "C.UTF-8",
            **HOSTILE,
            **variables,
        }
        for check in (["-n"], []):
            done = subprocess.run(
                ["bash", *check, str(file), *arguments],
                cwd=self.folder,
                env=base,
                capture_output=True,
                timeout=60,
                check=False,
            )
            if done.returncode:
                message = done.stderr.decode(errors="replace")[:300]
                raise ValueError(f"{path} fails ({done.returncode}): {message}")
        return self._recorded({*base, "PWD", "OLDPWD", "SHLVL", "_"})

    def _recorded(self, known: set[str]) -> list[dict[str, Any]]:
        programs = []
        for file in sorted(self._records.iterdir()):
            count, *rest = file.read_bytes().decode().split("\0")[:-1]
            words, variables = rest[: int(count)], rest[int(count) :]
            env = dict(variable.split("=", 1) for variable in variables)
            env = {name: value for name, value in env.items() if name not in known}
            programs.append({"argv": words, "env": env})
            file.unlink()
        return programs

    @property
    def injected(self) -> list[str]:
        """Files that a text of a value has made by being run."""
        return [path.name for path in self.folder.rglob("*INJECTED*")]


def compose(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Services of compose files by name, as docker-compose reads them in a hostile environment.

    All are read at once, each service under a name of its own.

    Raises:
        ValueError: for what docker-compose refuses.
    """
    services, volumes = {}, {}
    names: dict[str, tuple[str, str]] = {}
    for name, text in files.items():
        document = yaml.safe_load(text)
        volumes |= document.get("volumes", {})
        for service, body in document["services"].items():
            key = f"s{len(names)}"
            names[key] = name, service
            body.pop("network_mode", None)
            body.pop("depends_on", None)
            services[key] = body
    document = {"version": "3.8", "services": services, "volumes": volumes}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "compose.yaml").write_text(to_yaml(document))
        done = subprocess.run(
            ["docker-compose", "-f", "compose.yaml", "config"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **HOSTILE},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(f"docker-compose: {done.stderr.decode(errors='replace')[:500]}")
        text = done.stdout.decode().replace(folder, "FOLDER")
    out: dict[str, dict[str, Any]] = {}
    for key, body in yaml.safe_load(text)["services"].items():
        name, service = names[key]
        body.get("environment", {}).pop("HF_TOKEN", None)  # passed through on purpose
        # it writes what it has read as a compose file, with dollar signs doubled but in mounts
        mounts = body.pop("volumes", [])
        body = _texts(body, lambda text: text.replace("$$", "$"))
        out.setdefault(name, {})[service] = {**body, "volumes": mounts}
    return out


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A word of a container as Kubernetes expands it.

    By ``third_party/forked/golang/expansion`` of k8s.io/kubernetes: ``$$`` is ``$``, ``$(NAME)`` a
    variable that is defined; everything else stays.
    """
    out, at = [], 0
    while at < len(text):
        character, following = text[at], text[at + 1 : at + 2]
        end = text.find(")", at)
        if character != "$" or not following:
            out.append(character)
            at += 1
        elif following == "$":
            out.append("$")
            at += 2
        elif following == "(" and end > 0:
            name = text[at + 2 : end]
            out.append(variables.get(name, text[at : end + 1]))
            at = end + 1
        else:
            out.append(text[at : at + 2])
            at += 2
    return "".join(out)


SET_BY_CLUSTER = (
    *("POD_IP", "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "JOB_COMPLETION_INDEX", "RANK"),
    *("VC_TASK_INDEX",),
)


def kubernetes(value: Any) -> Any:
    """A manifest with the words and variables of its containers as their programs get them."""
    if isinstance(value, list):
        return [kubernetes(item) for item in value]
    if not isinstance(value, dict):
        return value
    entries = value.get("env")
    if not isinstance(entries, list) or "image" not in value:
        return {key: kubernetes(item) for key, item in value.items()}
    variables = {**HOSTILE, **{name: f"<{name}>" for name in SET_BY_CLUSTER}}
    env = []
    for entry in entries:
        if "value" in entry:
            entry = {**entry, "value": expanded(entry["value"], variables)}
            variables[entry["name"]] = entry["value"]
        env.append(entry)
    words = {
        key: [expanded(word, variables) for word in value[key]]
        for key in ("command", "args")
        if key in value
    }
    rest = {key: item for key, item in value.items() if key not in ("command", "args", "env")}
    # Which of the two a word stands in makes no difference to the program.
    return {
        **kubernetes(rest),
        "argv": [*words.get("command", []), *words.get("args", [])],
        "env": env,
    }


_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_RAW = re.compile(r"`([^`]*)`")


def go_template(text: str) -> str:
    """A text as Go's ``text/template`` renders it: raw strings as they are, any other action named.

    Raises:
        ValueError: for an action that is not closed.
    """
    out, at = [], 0
    while (start := text.find("{{", at)) >= 0:
        out.append(text[at:start])
        raw = _RAW.match(text, start + 2)
        end = text.find("}}", raw.end() if raw else start)
        if end < 0:
            raise ValueError(f"an action is not closed: {text[start:][:80]!r}")
        out.append(raw[1] if raw else f"<action {text[start + 2 : end].strip()}>")
        at = end + 2
    return "".join([*out, text[at:]])


def ray(value: str) -> str:
    """A variable's value as Ray's ``update_envs`` sets it, in a hostile environment."""
    expanded_value = re.sub(
        r"\$(\w+|\{[^}]*\})",
        lambda match: HOSTILE.get(match[1].strip("{}"), match[0]),
        value,
        flags=re.ASCII,
    )
    return re.sub(r"\$\{[A-Z0-9_]+\}", "", expanded_value)


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_texts(key, change): _texts(item, change) for key, item in value.items()}
    return [_texts(item, change) for item in value] if isinstance(value, list) else value


def rendered(value: Any) -> Any:
    """A manifest with every text rendered as a Go template."""
    return _texts(value, go_template)


def all_texts(value: Any) -> Iterable[str]:
    """Every text inside a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from all_texts(key)
            yield from all_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from all_texts(item)
