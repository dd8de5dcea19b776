"""Texts that shells, Compose, Kubernetes, Helm, Ray or Markdown would take for more than a text.

Each request has one of them in one of its fields. It is refused by name, or built; then every file
of the bundle is read as what reads it would, and held against the same request with a plain word in
that field: nothing may differ but that word, and every program gets the text as it was.
A case is a deployment or a field, all of whose texts are tried.
"""

from __future__ import annotations

import ast
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.write import Bundle
from recipe_core.request.schema import PlanRequest
from recipe_core.views import exports
from tests.nightly.attack import readers
from tests.nightly.attack.harness import Order, Tally
from tests.nightly.attack.readers import NAME, WORD, Shell, differences, views
from tests.nightly.attack.texts import CASES, PAYLOADS, Case, Field, build, fields

Plain = tuple[dict[str, Any], str] | None
Try = tuple[Case, Field, str]


@dataclass
class Attack(Tally):
    """What was tried; ``compose``: its files, those with a plain word, and texts in them."""

    shell: Shell = field(kw_only=True)
    plain: dict[tuple[str, str], Plain] = field(default_factory=dict)
    compose: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def attempt(self, case: Case, place: Field, payload: str) -> None:
        """One request; what goes wrong is found."""
        self.tried["requests"] += 1
        label = f"{case.name} / {place.name} / {payload!r:.60}"
        plain = self._plain(case, place)
        try:
            bundle = build(case, place, payload)
        except RecipeError as error:
            self.tried["refused by name"] += 1
            if not error.field:
                self.findings.append(f"{label}: refused without a field: {error}")
            return
        except Exception as error:
            self.findings.append(f"{label}: {type(error).__name__}: {error!s:.200}")
            return
        self.tried["built"] += 1
        try:
            problems = [*self._read(bundle, place, plain, payload)]
        except Exception as error:
            problems = [f"{type(error).__name__}: {error!s:.300}"]
        if self.shell.injected:
            problems.append(f"ran: {self.shell.injected}")
            for path in self.shell.folder.rglob("*INJECTED*"):
                path.unlink()
        self.findings += [f"{label}: {problem}" for problem in problems[:3]]

    def _plain(self, case: Case, place: Field) -> Plain:
        """The same request with a plain word; None where that is no value of the field."""
        key = case.name, place.name
        if key not in self.plain:
            try:
                bundle = build(case, place, NAME if place.whole else WORD)
            except RecipeError:
                self.plain[key] = None
            else:
                self.plain[key] = views(bundle, self.shell), _compose(bundle)
        return self.plain[key]

    def _read(self, bundle: Bundle, place: Field, plain: Plain, payload: str) -> Iterator[str]:
        actual = views(bundle, self.shell)
        self.tried["runs of scripts"] += sum(
            path.endswith(("sh", "sbatch")) or "," in path for path in actual
        )
        self.tried["files"] += len(actual)
        if text := _compose(bundle):
            before = plain[1] if plain and not place.whole else ""
            self.compose[str(self.tried["requests"])] = (text, before, payload)
        yield from _snippets(bundle, self.shell)
        if plain is None:  # the plain word is refused here: there is nothing to hold it against
            return
        if place.whole:
            # a training run loads no model without an owner or a folder
            if bundle.recipe.kind == "serving" or "/" in payload:
                yield from readers.whole_differences(plain[0], actual, payload)
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

    def check_compose(self, at_once: int = 100) -> None:
        """Read the compose files of all bundles that were built."""
        items = list(self.compose.items())
        for start in range(0, len(items), at_once):
            batch = items[start : start + at_once]
            files = {name: text for name, (text, _, _) in batch}
            files |= {f"plain {name}": before for name, (_, before, _) in batch if before}
            try:
                services = readers.compose(files)
            except ValueError as error:
                self.findings.append(str(error))
                continue
            for name, (_, before, payload) in batch:
                found = services[name]
                if "substituted" in json.dumps(found):
                    self.findings.append(f"compose {name}: {payload!r} is substituted")
                if before:
                    differ = differences(services[f"plain {name}"], found, payload, "compose")
                    self.findings += [f"{payload!r:.60}: {problem}" for problem in differ][:3]


def _snippets(bundle: Bundle, shell: Shell) -> Iterator[str]:
    """The commands and the program that ask a server for the bundle."""
    request = PlanRequest.parse(bundle.recipe.request)
    parameters, name = bundle.recipe.parameters, bundle.recipe.name
    body = json.loads(json.dumps(exports.body(request, parameters)))
    (program,) = shell.run(
        exports.build_request_curl("http://localhost", request, parameters, name)
    )
    if json.loads(program["argv"][program["argv"].index("-d") + 1]) != body:
        yield f"curl sends {program['argv']!r:.300}"
    tree = ast.parse(exports.python("http://localhost", request, parameters, name))
    first = next(node for node in tree.body if isinstance(node, ast.Assign))
    if ast.literal_eval(first.value) != body:
        yield "the Python snippet sends another body"
    commands = [c for c in exports.command_line(parameters, name) if c.startswith("recipe build")]
    (program,) = shell.run("\n".join(commands))
    stated = [word for word in program["argv"] if "=" in word]
    for key, value in exports.changed_parameters(parameters).items():
        text = value if isinstance(value, str) else json.dumps(value)
        if f"{key}={text}" not in stated:
            yield f"the command line lacks {key}={text!r:.100}"


def _compose(bundle: Bundle) -> str:
    return bundle.files.get(readers.COMPOSE, b"").decode()


def every() -> list[Try]:
    """Every payload in every field of every deployment."""
    return [
        (case, place, payload)
        for case in CASES.values()
        for place in fields(case).values()
        for payload in PAYLOADS
    ]


def drawn(count: int, seed: int) -> list[Try]:
    """So many of ``every``; one in four has two payloads, one after the other."""
    chance, tries = random.Random(seed), every()
    return [
        (case, place, payload + chance.choice(PAYLOADS) if chance.random() < 0.25 else payload)
        for case, place, payload in chance.sample(tries, min(count, len(tries)))
    ]


def run(tries: list[Try]) -> Attack:
    """Try requests, in order; bundles of one deployment and field share the plain one."""
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(shell=Shell(Path(folder)))
        for case, place, payload in tries:
            attack.attempt(case, place, payload)
    attack.check_compose()
    return attack


def attack(order: Order) -> Attack:
    """Draw requests, or take all payloads of the named deployments and fields."""
    if not order.cases:
        return run(drawn(order.count, order.seed))
    asked = [each for each in every() if {each[0].name, each[1].name} & {*order.cases}]
    return run(asked[: order.count])
