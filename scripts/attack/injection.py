"""Texts that shells, Compose, Kubernetes, Helm, Ray or Markdown would take for more than a text.

Each request has one of them in one of its fields. It is refused by name, or built; then every file
of the bundle is read as what reads it would, and held against the same request with a plain word in
that field: nothing may differ but that word, and every program gets the text as it was.

    python -m scripts.attack.injection --count 1000 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.launcher.plan import load_plan
from recipe_core.model.catalog import catalog_entry
from recipe_core.present import snippets
from recipe_core.recipe import Additions, make_recipe
from recipe_core.recipe.parameters import read_parameters, read_variants
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.by_hand import node_commands, read_addresses
from scripts.attack import readers
from scripts.attack.readers import Shell

WORD = "plainword7"
"""What stands in a field of the request that others are held against."""
NAME = "plainowner7/plain-name"
"""What stands there where the text is a whole name."""

PAYLOADS = (
    *("--trust-remote-code", "-oProxyCommand=x", "-1", "-", "--", "-e X=1", "--flag=-v"),
    *("$HOME", "${HOME}", "${HF_TOKEN:-x}", "$(touch INJECTED)", "`touch INJECTED`", "a$", "$"),
    *("$$", "$$$(X)", "$(POD_IP)", "$$(HF_TOKEN)", "$(HF_TOKEN)", "${IFS}x", "$X$$X", "\\$HOME"),
    *("; touch INJECTED;", "&& touch INJECTED", "| touch INJECTED", "> INJECTED", "&"),
    *("'; touch INJECTED; '", '"; touch INJECTED; "', "'\"'\"'", "'", '"', "\\", "a\\", "\\n"),
    *("a\ntouch INJECTED\n", "\n", "a\r\nb", "\t", "\x00", "\x1b[31m", "\x07", "\x85", "\x7f"),
    *("%n%i", "%%", "%", "#x", " #x", "!x", "!!", "*", "~", "~root", "?", "[a-z]*", "{a,b}"),
    *("{{ .Values }}", "{{", "}}", "{{`", "{{`x`}}", "{% x %}", '{{ env "HOME" }}', "{{{", "{"),
    *("${model}", "${root}/x", "a${port1}", "${node0}", "${head}", "${self}", "${index}", "${at0}"),
    *("", " ", "a b", "  a", "a  ", "é漢😀", "\u202eabc", "\u2028", "\ufeff", "\ud800", "x" * 3000),
    *("a: b", "- x", "[x]", "{x: y}", "yes", "null", "1e5", "0x10", "012", "1:30", "2026-01-02"),
    *("!!str x", "*a", "&a", "|", ">", "---", "...", "? a", "@x", "a,b", "a=b", "=", ":", "/"),
    *("```\n# x\n```", "`", "``", "<script>alert(1)</script>", "![x](http://e.example)", "](x)"),
    *("_a_", "**a**", "# x", "1. x", "+ x", "||", "&lt;", "http://e.example/$HOME?a=b&c=d"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment to put texts into."""

    name: str
    engine: str
    device: str
    candidate: Mapping[str, Any] = field(default_factory=dict)
    per_node: int = 2
    nodes: int = 1
    option: str = "chat_template"
    json_option: str = ""
    training: bool = False

    def body(self) -> dict[str, Any]:
        """A request and what travels with it, as plain values."""
        workload: dict[str, Any] = {"concurrency": 8}
        if self.training:
            workload = {
                "kind": "training",
                "sequence_length": 1024,
                "global_batch": 32,
                "tokens": 1e9,
            }
        request = {
            "model": {"_name_or_path": "owner/some-model", **_config()},
            "hardware": {"device": self.device, "per_node": self.per_node, "nodes": self.nodes},
            "workload": workload,
            "candidate": {"engine": self.engine, **self.candidate},
        }
        return {"request": request, "parameters": dict(PLACE), "variants": []}


PLACE = {"image": "registry.example/engine:1.0", "max_replicas": 2}
"""Parameters that open targets which are closed without them."""


@cache
def _config() -> dict[str, Any]:
    return catalog_entry("Qwen/Qwen3-8B").config


POOLS = {"tp": 1, "prefill": {"tp": 1}}
SERVING = (
    Case("vllm", "vllm", "h100-sxm", {"tp": 2}, json_option="default_chat_template_kwargs"),
    Case(
        "vllm, several",
        "vllm",
        "mi300x",
        {"tp": 1, "dp": 2},
        json_option="default_chat_template_kwargs",
    ),
    Case("vllm, nodes", "vllm", "h100-sxm", {"tp": 2, "pp": 2}, nodes=2),
    Case("vllm, pools", "vllm", "h100-sxm", POOLS),
    Case("sglang", "sglang", "mi300x", {"tp": 2}, json_option="default_chat_template_kwargs"),
    Case("sglang, nodes", "sglang", "h100-sxm", {"tp": 2, "pp": 2}, nodes=2),
    Case("tensorrt-llm", "tensorrt-llm", "h100-sxm", {"tp": 2}, json_option="media_io_kwargs"),
    Case("tensorrt-llm, pools", "tensorrt-llm", "h100-sxm", POOLS),
    Case("llama-cpp", "llama-cpp", "cpu", {}, per_node=1),
    Case("tgi", "tgi", "h100-sxm", {"tp": 2}, option="tokenizer_config_path"),
    Case("transformers", "transformers", "h100-sxm", {}, per_node=1, option=""),
    Case("triton", "triton", "h100-sxm", {"tp": 2}),
    Case("triton-tensorrt-llm", "triton-tensorrt-llm", "h100-sxm", {"tp": 2}),
    Case("dynamo", "dynamo", "h100-sxm", {"tp": 2}),
)
TRAINING = (
    Case("torch", "torch", "h100-sxm", {}, nodes=2, training=True),
    Case("deepspeed", "deepspeed", "h100-sxm", {"zero_stage": 2}, training=True),
    Case("accelerate", "accelerate", "h100-sxm", {"zero_stage": 3}, training=True),
    Case("megatron", "megatron", "h100-sxm", {"zero_stage": 1}, training=True),
    Case("primus", "megatron", "mi300x", {"zero_stage": 1}, training=True),
)


def _at(*path: str) -> Callable[[dict[str, Any], Any], None]:
    def put(body: dict[str, Any], value: Any) -> None:
        inner = body
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
        inner[path[-1]] = value

    return put


def _variable(body: dict[str, Any], name: str) -> None:
    _at("request", "options", "environment")(body, {name: "1"})


def _option(body: dict[str, Any], name: str) -> None:
    _at("request", "options", "engine_options")(body, {name: 1})


def _variant(body: dict[str, Any], text: str) -> None:
    change = {"notes": [text]}
    body["variants"] = [{"name": f"some {text}", "when": {"vendor": "amd"}, "add": change}]


def _selector(body: dict[str, Any], text: str) -> None:
    body["parameters"]["node_selector"] = {"pool": text}


def _selector_key(body: dict[str, Any], text: str) -> None:
    body["parameters"]["node_selector"] = {text: "gpu"}


def _profile(name: str) -> Callable[[dict[str, Any], Any], None]:
    def put(body: dict[str, Any], value: Any) -> None:
        hardware = body["request"]["hardware"]
        hardware["device"] = {
            "schema_version": 1,
            "name": "my-device",
            "title": "My device",
            "based_on": hardware["device"],
            name: [value] if name == "aliases" else value,
        }

    return put


PLACES = (
    "model",
    "host",
    "image",
    "namespace",
    "storage_class",
    "token_secret",
    "queue",
    "partition",
    "account",
    "cloud",
    "region",
    "prometheus",
    "monitoring_namespace",
)


DESCRIBED = ("name", "title", "aliases")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request: how a text is put there, and the text as it stands there.

    ``whole``: the text is the name itself, from which other names follow; then only what is started
    is held against it.
    """

    name: str
    put: Callable[[dict[str, Any], Any], None]
    form: str = "{}"
    whole: bool = False

    def text(self, payload: str) -> str:
        """The text of the field with a payload in it."""
        return self.form.replace("{}", payload)


def fields(case: Case) -> list[Field]:
    """Every field of a deployment's request that takes a text."""
    model = ("request", "model", "_name_or_path")
    out = [
        Field("folder", _at(*model), "/data/{}/some-model"),
        Field("hub id", _at(*model), "owner{}/some-model"),
        Field("model", _at(*model), whole=True),
        Field("named model", _at("request", "model"), whole=True),
        *(Field(f"parameters.{name}", _at("parameters", name)) for name in PLACES),
        Field("parameters.model_cache", _at("parameters", "model_cache"), "cache{}"),
        Field("parameters.model_cache, a folder", _at("parameters", "model_cache"), "/srv/{}"),
        Field("parameters.image, within", _at("parameters", "image"), "registry.example/x{}:1.0"),
        Field("parameters.node_selector", _selector),
        Field("parameters.node_selector (a key)", _selector_key),
        Field("variants", _variant),
        *(Field(f"hardware.device.{name}", _profile(name)) for name in DESCRIBED),
    ]
    options = ("request", "options")
    if case.training:
        return out
    out += [
        Field("environment", _at(*options, "environment", "SOME_VARIABLE")),
        Field("environment, within", _at(*options, "environment", "SOME_VARIABLE"), "a{}b"),
        Field("environment (a name)", _variable),
        Field("options (a name)", _option),
    ]
    if case.option:
        path = (*options, "engine_options", case.option)
        out += [Field("option", _at(*path)), Field("option, within", _at(*path), "a{}b")]
    if case.json_option:
        path = (*options, "engine_options", case.json_option)
        out += [
            Field("option in JSON", _at(*path, "some_key")),
            Field("option in JSON (a key)", lambda body, text: _at(*path, text)(body, 1)),
        ]
    if case.engine in ("vllm", "sglang"):
        draft = {"tokens": 2, "acceptance": 0.5, "method": "eagle"}
        out.append(
            Field(
                "draft",
                lambda body, text: _at("request", "workload", "speculative")(
                    body, {**draft, "model": text}
                ),
            )
        )
    return out


def build(case: Case, place: Field, payload: str) -> Bundle:
    """The bundle of a deployment with a text in one of its fields.

    Raises:
        RecipeError: for a refusal.
    """
    body = deepcopy(case.body())
    place.put(body, place.text(payload))
    request = PlanRequest.parse(body["request"])
    additions = Additions(
        parameters=read_parameters(body["parameters"]), variants=read_variants(body["variants"])
    )
    return bundle_of(make_recipe(request, additions, folders=False))


# --- What is read from a bundle


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


# --- What is held against what

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
    if not isinstance(actual, str):
        yield f"{where}: {plain!r:.200} became {actual!r:.200}"
    elif WORD in plain and plain.startswith("{"):
        yield from differences(json.loads(plain), json.loads(actual), payload, where)
    elif WORD in plain and where.endswith((".yaml", "..yaml")) and "\n" in plain:
        read = (readers.kubernetes(yaml.safe_load(text)) for text in (plain, actual))
        yield from differences(*read, payload, where)
    elif _path(actual) != _path(plain.replace(WORD, payload)):
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


# --- The attack


@dataclass(slots=True)
class Attack:
    """What was tried, and what went wrong."""

    tried: int = 0
    built: int = 0
    refused: int = 0
    scripts: int = 0
    files: int = 0
    failures: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    compose: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def summary(self) -> str:
        """Figures in one line."""
        return (
            f"{self.tried} requests: {self.refused} refused by name, {self.built} built; "
            f"{self.scripts} runs of scripts and {self.files} other files read, "
            f"{len(self.compose)} compose files; {len(self.failures)} failures"
        )


def attempt(attack: Attack, case: Case, place: Field, payload: str, shell: Shell) -> None:
    """One request; what goes wrong is added to the failures."""
    attack.tried += 1
    label = f"{case.name} / {place.name} / {payload!r:.60}"
    plain = _plain(case, place, shell)
    try:
        bundle = build(case, place, payload)
    except RecipeError as error:
        attack.refused += 1
        attack.reasons[error.message[-40:]] += 1
        if not error.field:
            attack.failures.append(f"{label}: refused without a field: {error}")
        return
    except Exception as error:
        attack.failures.append(f"{label}: {type(error).__name__}: {error!s:.200}")
        return
    attack.built += 1
    try:
        problems = [*_read(attack, bundle, place, plain, payload, shell)]
    except Exception as error:
        problems = [f"{type(error).__name__}: {error!s:.300}"]
    if shell.injected:
        problems.append(f"ran: {shell.injected}")
        for path in shell.folder.rglob("*INJECTED*"):
            path.unlink()
    attack.failures += [f"{label}: {problem}" for problem in problems[:3]]


def _read(
    attack: Attack,
    bundle: Bundle,
    place: Field,
    plain: tuple[dict[str, Any], dict[str, str]] | None,
    payload: str,
    shell: Shell,
) -> Iterator[str]:
    actual = views(bundle, shell)
    attack.scripts += sum(path.endswith(("sh", "sbatch")) or "," in path for path in actual)
    attack.files += len(actual)
    if (text := _compose(bundle)) is not None:
        before = plain[1].get("compose", "") if plain else ""
        attack.compose[f"{attack.tried}"] = (text, before if not place.whole else "", payload)
    yield from _snippets(bundle, shell)
    if plain is None:  # the plain word is refused here, so that there is nothing to hold it against
        return
    if place.whole:
        # a training run loads no model without an owner or a folder
        if bundle.recipe.kind == "serving" or "/" in payload:
            yield from whole_differences(plain[0], actual, payload)
        return
    unavailable = {name for name, files in bundle.targets.items() if isinstance(files, str)}
    for path, before in plain[0].items():
        if path == "README.md" and plain[0].keys() != actual.keys():
            continue  # it lists the targets
        if path == "sbom.json" and "/" in payload:
            continue  # with more slashes it is no id of the hub
        if path in actual:
            yield from differences(before, actual[path], payload, path)
        elif not any(f"/{name}/" in path for name in unavailable):
            yield f"{path} is missing"
    if extra := actual.keys() - plain[0].keys():
        yield f"more files: {sorted(extra)}"


def _snippets(bundle: Bundle, shell: Shell) -> Iterator[str]:
    """The commands and the program that ask a server for the bundle."""
    request = PlanRequest.parse(bundle.recipe.request)
    parameters, name = bundle.recipe.parameters, bundle.recipe.name
    body = json.loads(json.dumps(snippets.body(request, parameters)))
    (program,) = shell.run(snippets.curl("http://localhost", request, parameters, name))
    if json.loads(program["argv"][program["argv"].index("-d") + 1]) != body:
        yield f"curl sends {program['argv']!r:.300}"
    tree = ast.parse(snippets.python("http://localhost", request, parameters, name))
    first = next(node for node in tree.body if isinstance(node, ast.Assign))
    if ast.literal_eval(first.value) != body:
        yield "the Python snippet sends another body"
    commands = [c for c in snippets.command_line(parameters, name) if c.startswith("recipe build")]
    (program,) = shell.run("\n".join(commands))
    stated = [word for word in program["argv"] if "=" in word]
    for key, value in snippets.stated(parameters).items():
        text = value if isinstance(value, str) else json.dumps(value)
        if f"{key}={text}" not in stated:
            yield f"the command line lacks {key}={text!r:.100}"


def _compose(bundle: Bundle) -> str | None:
    data = bundle.files.get("targets/compose/compose.yaml")
    return data.decode() if data else None


_PLAIN: dict[tuple[str, str], Any] = {}


def _plain(case: Case, place: Field, shell: Shell) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The same request with a plain word; None where a plain word is no value of the field."""
    key = case.name, place.name
    if key not in _PLAIN:
        try:
            bundle = build(case, place, NAME if place.whole else WORD)
        except RecipeError:
            _PLAIN[key] = None
        else:
            text = _compose(bundle)
            _PLAIN[key] = views(bundle, shell), {"compose": text} if text else {}
    found: tuple[dict[str, Any], dict[str, str]] | None = _PLAIN[key]
    return found


def check_compose(attack: Attack, at_once: int = 100) -> None:
    """Read the compose files of all bundles that were built."""
    items = list(attack.compose.items())
    for start in range(0, len(items), at_once):
        batch = items[start : start + at_once]
        files = {name: text for name, (text, _, _) in batch}
        files |= {f"plain {name}": before for name, (_, before, _) in batch if before}
        try:
            services = readers.compose(files)
        except ValueError as error:
            attack.failures.append(str(error))
            continue
        for name, (_, before, payload) in batch:
            if any("substituted" in text for text in readers.all_texts(services[name])):
                attack.failures.append(f"compose {name}: {payload!r} is substituted")
            if before:
                found = differences(services[f"plain {name}"], services[name], payload, "compose")
                attack.failures += [f"{payload!r:.60}: {problem}" for problem in found][:3]


def every() -> list[tuple[Case, Field, str]]:
    """Every payload in every field of every deployment."""
    return [
        (case, place, payload)
        for case in (*SERVING, *TRAINING)
        for place in fields(case)
        for payload in PAYLOADS
    ]


def drawn(count: int, seed: int) -> list[tuple[Case, Field, str]]:
    """So many of ``every``; one in four has two payloads, one after the other."""
    chance = random.Random(seed)
    tries = every()
    picked = chance.sample(tries, min(count, len(tries)))
    return [
        (case, place, payload + chance.choice(PAYLOADS) if chance.random() < 0.25 else payload)
        for case, place, payload in picked
    ]


def run(tries: list[tuple[Case, Field, str]]) -> Attack:
    """Try requests, in order."""
    attack = Attack()
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder))
        # Bundles of one deployment and field are held against the same plain one.
        for case, place, payload in tries:
            attempt(attack, case, place, payload, shell)
    check_compose(attack)
    return attack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--field", help="only fields with this name")
    parser.add_argument("--case", help="only the deployment of this name")
    options = parser.parse_args()
    tries = drawn(options.count, options.seed)
    if options.field or options.case:
        tries = [
            (case, place, payload)
            for case, place, payload in every()
            if options.field in (None, place.name) and options.case in (None, case.name)
        ][: options.count]
    started = time.monotonic()
    attack = run(tries)
    print(f"seed {options.seed}: {attack.summary()}; {time.monotonic() - started:.0f} s")
    for failure in attack.failures:
        print(f"FAILED {failure}")
    return 1 if attack.failures else 0


if __name__ == "__main__":
    sys.exit(main())
