"""Files of a bundle as what reads them takes them: shells, Compose, Kubernetes, Helm, KServe, Ray.

Shell scripts are run by bash, with every program replaced by one that records its words; compose
files are read by docker-compose. Of the others the documented rules stand here. Two bundles are
compared by what their readers take.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from recipe_core.base.documents import to_yaml
from recipe_core.bundle.write import Bundle
from recipe_core.engines.spec import engine, engine_names
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.targets.by_hand import node_commands, read_addresses

WORD = "plainword7"
"""What stands in a field of the request that others are held against."""
NAME = "plainowner7/plain-name"
"""What stands there where the text is a whole name."""

HOSTILE = dict.fromkeys(("HF_TOKEN", "IFS", "X", "POD_IP"), "substituted")
HOSTILE["HOME"] = "/home/substituted"
"""Variables of whoever reads a file; none of their values may ever show up in it."""

# What a program was started with, NUL between words: their number, the words, the environment.
_RECORDER = """#!/bin/bash
{ printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@"; /usr/bin/env -0; } > "$(mktemp "$RECORDS/XXXXXX")"
case "${0##*/}" in scontrol) echo node0 ;; esac
"""
KEYS = {key.variable: "key" for name in engine_names() if (key := engine(name).api_key)}
"""What whoever starts servers that ask for a key has to set."""
# A script waits for all of its processes here, so that none is stopped before it has recorded.
_WAITING = "kill() { :; }\nwait() { builtin wait; }\n"
PROGRAMS = (
    *("docker", "podman", "vllm", "vllm-router", "sglang", "python", "python3", "trtllm-serve"),
    *("mpirun", "llama-server", "text-generation-launcher", "transformers", "tritonserver"),
    *("torchrun", "accelerate", "deepspeed", "primus-cli", "srun", "scontrol", "curl", "recipe"),
)


def _run(words: list[str], environment: dict[str, str], folder: Path, **settings: Any) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, **settings)
    if done.returncode:
        message = done.stderr.decode(errors="replace")[:500]
        raise ValueError(f"{words} fails ({done.returncode}): {message}")
    return done.stdout.decode()


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
        """What a script starts, in no order: each program's ``argv`` and ``env``."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script)
        base = {
            "PATH": f"{self._programs}:/usr/bin:/bin",
            "RECORDS": str(self._records),
            "BASH_ENV": str(self._waiting),
            "LC_ALL": "C.UTF-8",
            **HOSTILE,
            **KEYS,
            **variables,
        }
        for check in (["-n"], []):
            words = ["bash", *check, str(file), *arguments]
            _run(words, base, self.folder, timeout=60)
        return self._recorded({*base, "PWD", "OLDPWD", "SHLVL", "_"})

    def _recorded(self, known: set[str]) -> list[dict[str, Any]]:
        programs = []
        for file in sorted(self._records.iterdir()):
            count, *rest = file.read_bytes().decode().split("\0")[:-1]
            env = dict(variable.split("=", 1) for variable in rest[int(count) :])
            env = {name: value for name, value in env.items() if name not in known}
            programs.append({"argv": rest[: int(count)], "env": env})
            file.unlink()
        return programs

    @property
    def injected(self) -> list[str]:
        """Files that a text of a value has made by being run."""
        return [path.name for path in self.folder.rglob("*INJECTED*")]


def compose(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Services of compose files by name, as docker-compose reads them in a hostile environment.

    All are read at once, each service under a name of its own.
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
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **HOSTILE, **KEYS}
        words = ["docker-compose", "-f", "compose.yaml", "config"]
        text = _run(words, environment, Path(folder)).replace(folder, "FOLDER")
    out: dict[str, dict[str, Any]] = {}
    for key, body in yaml.safe_load(text)["services"].items():
        name, service = names[key]
        for known in ("HF_TOKEN", *KEYS):  # passed through on purpose
            body.get("environment", {}).pop(known, None)
        # it writes what it has read as a compose file, with dollar signs doubled but in mounts
        mounts = body.pop("volumes", [])
        body = texts(body, lambda text: text.replace("$$", "$"))
        out.setdefault(name, {})[service] = {**body, "volumes": mounts}
    return out


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A word of a container as Kubernetes expands it.

    By ``third_party/forked/golang/expansion`` of k8s.io/kubernetes: ``$$`` is ``$``, ``$(NAME)`` a
    variable that is defined; everything else stays.
    """

    def filled(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", filled, text)


SET_BY_CLUSTER = (
    *("POD_IP", "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "JOB_COMPLETION_INDEX", "RANK"),
    "VC_TASK_INDEX",
)


def kubernetes(value: Any) -> Any:
    """A manifest with the words and variables of its containers as their programs get them."""
    if isinstance(value, list):
        return [kubernetes(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get("env"), list) or "image" not in value:
        return {key: kubernetes(item) for key, item in value.items()}
    variables, env = {**HOSTILE, **{name: f"<{name}>" for name in SET_BY_CLUSTER}}, []
    for entry in value["env"]:
        if "value" in entry:
            entry = {**entry, "value": expanded(entry["value"], variables)}
            variables[entry["name"]] = entry["value"]
        env.append(entry)
    rest = {key: item for key, item in value.items() if key not in ("command", "args", "env")}
    # Which of the two a word stands in makes no difference to the program.
    words = [*value.get("command", []), *value.get("args", [])]
    return {**kubernetes(rest), "argv": [expanded(w, variables) for w in words], "env": env}


_ACTION = re.compile(r"\{\{(?:`([^`]*)`)?+(.*?)\}\}|\{\{", re.DOTALL)


def go_template(text: str) -> str:
    """A text as Go's ``text/template`` renders it: raw strings stay, other actions are named."""

    def rendered(found: re.Match[str]) -> str:
        if found[0] == "{{":
            raise ValueError(f"an action is not closed: {text[found.start() :][:80]!r}")
        return f"<action {found[2].strip()}>" if found[1] is None else found[1]

    return _ACTION.sub(rendered, text)


def ray(value: str) -> str:
    """A variable's value as Ray's ``update_envs`` sets it, in a hostile environment."""
    known = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)
    value = known.sub(lambda found: HOSTILE.get(found[1].strip("{}"), found[0]), value)
    return re.sub(r"\$\{[A-Z0-9_]+\}", "", value)


def texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value with every text changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {texts(key, change): texts(item, change) for key, item in value.items()}
    return [texts(item, change) for item in value] if isinstance(value, list) else value


COMPOSE = "targets/compose/compose.yaml"
ELSEWHERE = ("MANIFEST.json", COMPOSE)
"""Digests of files, and what is read for many bundles at once."""


def views(bundle: Bundle, shell: Shell) -> dict[str, Any]:
    """What every file of a bundle is to its reader, by path."""
    out: dict[str, Any] = {}
    for path, data in bundle.files.items():
        if path.startswith(("launcher/", "trainer/", "data/")) or path in ELSEWHERE:
            continue
        text = data.decode()
        if path == "launch.json":
            out[path] = list(_launched(text, bundle.context.nodes))
        elif path.endswith((".sh", ".sbatch")):
            out |= _scripts(path, text, bundle, shell)
        elif path.endswith(".json"):
            out[path] = json.loads(text)
        elif path.endswith(".yaml"):
            out[path] = _manifest(path, text)
        elif path.endswith(".md"):
            tokens = MarkdownIt("commonmark").enable("table").parse(text)
            inner = [inner.type for token in tokens for inner in token.children or ()]
            out[path] = [[token.type for token in tokens], [t for t in inner if t != "text"]]
        else:
            out[path] = text
    addresses = read_addresses("", bundle.context.nodes)
    for node in node_commands(bundle.context, addresses):
        for name, command in (("launch.py", node.launcher), *node.processes):
            out[f"by hand, {node.node}, {name}"] = shell.run(command)
    return out


def _launched(text: str, nodes: int) -> Iterator[Any]:
    """The processes that the launcher starts on each node."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "launch.json").write_text(text)
        head = ",".join(f"node{n}" for n in range(nodes))
        for node in range(nodes):
            plan = load_plan(Path(folder), node=node if nodes > 1 else None, head=head)
            for process in plan.processes:
                program = {"argv": list(process.argv), "env": process.env}
                yield json.loads(json.dumps([plan.api.model, program]).replace(folder, "FOLDER"))


def _scripts(path: str, text: str, bundle: Bundle, shell: Shell) -> Iterator[tuple[str, Any]]:
    nodes = range(bundle.context.nodes)
    if not path.endswith("node.sh"):
        where = {"SLURM_SUBMIT_DIR": str(shell.folder), "SLURM_JOB_NODELIST": "node0"}
        yield path, shell.run(text, (), path, **where, SLURM_JOB_NAME="job", SLURM_JOB_ID="1")
        return
    for node in nodes:
        number = {"SLURM_NODEID": str(node), "SKYPILOT_NODE_RANK": str(node)}
        yield f"{path}, {node}", shell.run(text, [f"node{n}" for n in nodes], path, **number)


def _manifest(path: str, text: str) -> Any:
    documents = [*yaml.safe_load_all(text)]
    if path == "recipe.yaml":
        return documents
    if path.startswith("targets/kserve-llm/"):
        documents = texts(documents, go_template)
    elif path.startswith("targets/llm-d/"):
        for container in documents[0].get("decode", {}).get("containers", ()):
            container["env"] = texts(container["env"], go_template)
    elif path.startswith("targets/ray-serve/"):
        for model in documents[0]["applications"][0]["args"]["llm_configs"]:
            variables = model.get("runtime_env", {}).get("env_vars", {})
            for name, value in variables.items():
                variables[name] = ray(value)
    return kubernetes(documents)


FROM_DIGESTS = ("serialNumber", "version", "purl", "uid")
"""Fields that follow from the digest of a recipe, or write a name in percent signs."""


def differences(plain: Any, actual: Any, payload: str, where: str = "") -> Iterator[str]:
    """Where ``actual`` is not ``plain`` with the payload in place of the plain word."""
    if isinstance(plain, str):
        yield from _text_differences(plain, actual, payload, where)
    elif isinstance(plain, dict) and isinstance(actual, dict):
        named = {key.replace(WORD, payload): key for key in plain if key not in FROM_DIGESTS}
        if named.keys() != actual.keys() - set(FROM_DIGESTS):
            yield f"{where}: {sorted(named)} became {sorted(actual)}"
            return
        for name, key in named.items():
            if "digest" not in key:
                yield from differences(plain[key], actual[name], payload, f"{where}.{key}")
    elif isinstance(plain, list) and isinstance(actual, list):
        expected = list(_glued(plain, payload))
        if len(expected) != len(actual):
            yield f"{where}: {expected!r:.400} became {actual!r:.400}"
        elif all(isinstance(item, dict) and "argv" in item for item in expected):
            yield from _program_differences(expected, actual, payload, where)
        else:
            for n, (item, other) in enumerate(zip(expected, actual, strict=True)):
                yield from differences(item, other, payload, f"{where}[{n}]")
    elif plain != actual:
        yield f"{where}: {plain!r:.200} became {actual!r:.200}"


def _program_differences(
    expected: list[Any], actual: list[Any], payload: str, where: str
) -> Iterator[str]:
    """Programs in any order: they are started side by side."""
    rest = list(actual)
    for program in expected:
        same = next((p for p in rest if not [*differences(program, p, payload)]), None)
        if same is None:
            yield f"{where}: no {program!r:.600} among {rest!r:.600}"
        else:
            rest.remove(same)


def _glued(words: list[Any], payload: str) -> Iterator[Any]:
    """Words, with an option and its value as one where the value alone would be another option."""
    n = 0
    while n < len(words):
        word, value = words[n], words[n + 1] if n + 1 < len(words) else None
        odd = not payload or payload.startswith("-")
        if value == WORD and odd and isinstance(word, str) and word.startswith("--"):
            yield f"{word}={value}"
            n += 2
        else:
            yield word
            n += 1


def _text_differences(plain: str, actual: Any, payload: str, where: str) -> Iterator[str]:
    if isinstance(actual, str) and WORD in plain and plain.startswith("{"):
        yield from differences(json.loads(plain), json.loads(actual), payload, where)
    elif isinstance(actual, str) and WORD in plain and where.endswith(".yaml") and "\n" in plain:
        read = (kubernetes(yaml.safe_load(text)) for text in (plain, actual))
        yield from differences(*read, payload, where)
    elif not isinstance(actual, str) or _path(actual) != _path(plain.replace(WORD, payload)):
        yield f"{where}: {plain!r:.200} became {actual!r:.200}"


def _path(text: str) -> str:
    """A text with its slashes as a normal path has them, which readers may make of it."""
    return re.sub("(?<!:)/+", "/", text).replace("/:", ":")


def whole_differences(plain: dict[str, Any], actual: dict[str, Any], text: str) -> Iterator[str]:
    """What a launch with this text as the whole name of its model does not pass on as one word.

    Weights of a name that is neither a folder's nor an id of the hub are asked for at the start.
    """
    before, after = plain["launch.json"], actual["launch.json"]
    for (_, one), (_, other) in zip(before, after, strict=True):
        named = [n for n, word in enumerate(one["argv"]) if word == NAME]
        if len(one["argv"]) != len(other["argv"]):
            yield f"launch.json: {one['argv']!r:.400} became {other['argv']!r:.400}"
        elif {other["argv"][n] for n in named} - {text, "FOLDER/weights"}:
            yield f"launch.json: {text!r} is missing from {other['argv']!r:.400}"
