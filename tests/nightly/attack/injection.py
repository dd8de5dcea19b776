"""Texts that shells, Compose, Kubernetes, Helm, Ray or Markdown would take for more than a text.

Each request has one of them in one of its fields. It is refused by name, or built; then every file
of the bundle is read as what reads it would, and held against the same request with a plain word in
that field: nothing may differ but that word, and every program gets the text as it was.

    python -m tests.nightly.attack.injection --count 1000 --seed 1
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import Bundle
from recipe_core.present import snippets
from recipe_core.request.schema import PlanRequest
from tests.nightly.attack import readers
from tests.nightly.attack.readers import Shell
from tests.nightly.attack.texts import (
    NAME,
    PAYLOADS,
    SERVING,
    TRAINING,
    WORD,
    Case,
    Field,
    build,
    fields,
)
from tests.nightly.attack.views import differences, views, whole_differences


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

    def __str__(self) -> str:
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
    plain: tuple[dict[str, Any], str] | None,
    payload: str,
    shell: Shell,
) -> Iterator[str]:
    actual = views(bundle, shell)
    attack.scripts += sum(path.endswith(("sh", "sbatch")) or "," in path for path in actual)
    attack.files += len(actual)
    if text := _compose(bundle):
        before = plain[1] if plain and not place.whole else ""
        attack.compose[f"{attack.tried}"] = (text, before, payload)
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


def _compose(bundle: Bundle) -> str:
    return bundle.files.get("targets/compose/compose.yaml", b"").decode()


_PLAIN: dict[tuple[str, str], tuple[dict[str, Any], str] | None] = {}


def _plain(case: Case, place: Field, shell: Shell) -> tuple[dict[str, Any], str] | None:
    """The same request with a plain word; None where a plain word is no value of the field."""
    key = case.name, place.name
    if key not in _PLAIN:
        try:
            bundle = build(case, place, NAME if place.whole else WORD)
        except RecipeError:
            _PLAIN[key] = None
        else:
            _PLAIN[key] = views(bundle, shell), _compose(bundle)
    return _PLAIN[key]


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
    print(f"seed {options.seed}: {attack}; {time.monotonic() - started:.0f} s")
    for failure in attack.failures:
        print(f"FAILED {failure}")
    return 1 if attack.failures else 0


if __name__ == "__main__":
    sys.exit(main())
