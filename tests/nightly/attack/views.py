"""What every file of a bundle is to its reader, and how two bundles differ."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from recipe_core.bundle.write import Bundle
from recipe_core.launcher.plan import load_plan
from recipe_core.targets.by_hand import node_commands, read_addresses
from tests.nightly.attack import readers
from tests.nightly.attack.readers import Shell
from tests.nightly.attack.texts import NAME, WORD

ELSEWHERE = ("MANIFEST.json", "targets/compose/compose.yaml")
"""Digests of files, and what is read for many bundles at once."""


def views(bundle: Bundle, shell: Shell) -> dict[str, Any]:
    """What every file of a bundle is to its reader, by path; compose files are read in ``attack``.

    Raises:
        ValueError: for a file that its reader does not take.
    """
    out: dict[str, Any] = {}
    for path, data in bundle.files.items():
        if path.startswith(("launcher/", "trainer/", "data/")) or path in ELSEWHERE:
            continue
        text = data.decode()
        if path == "launch.json":
            out[path] = list(_launched(text, bundle.context.nodes))
        elif path.endswith((".sh", ".sbatch")):
            out |= _run(path, text, bundle, shell)
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


def _run(path: str, text: str, bundle: Bundle, shell: Shell) -> Iterator[tuple[str, Any]]:
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
        documents = readers.rendered(documents)
    elif path.startswith("targets/llm-d/"):
        for container in documents[0]["decode"]["containers"]:
            container["env"] = readers.rendered(container["env"])
    elif path.startswith("targets/ray-serve/"):
        for model in documents[0]["applications"][0]["args"]["llm_configs"]:
            variables = model.get("runtime_env", {}).get("env_vars", {})
            for name, value in variables.items():
                variables[name] = readers.ray(value)
    return readers.kubernetes(documents)


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
        read = (readers.kubernetes(yaml.safe_load(text)) for text in (plain, actual))
        yield from differences(*read, payload, where)
    elif not isinstance(actual, str) or _path(actual) != _path(plain.replace(WORD, payload)):
        yield f"{where}: {plain!r:.200} became {actual!r:.200}"


def _path(text: str) -> str:
    """A text with its slashes as a normal path has them, which readers may make of it."""
    return re.sub("(?<!:)/+", "/", text).replace("/:", ":")


def whole_differences(plain: dict[str, Any], actual: dict[str, Any], text: str) -> Iterator[str]:
    """What a launch with this text as the whole name of its model does not pass on as one word."""
    before, after = plain["launch.json"], actual["launch.json"]
    for (_, one), (_, other) in zip(before, after, strict=True):
        named = [n for n, word in enumerate(one["argv"]) if word == NAME]
        if len(one["argv"]) != len(other["argv"]):
            yield f"launch.json: {one['argv']!r:.400} became {other['argv']!r:.400}"
        elif [other["argv"][n] for n in named] != [text] * len(named):
            yield f"launch.json: {text!r} is missing from {other['argv']!r:.400}"
