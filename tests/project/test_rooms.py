"""The rooms of the package: import order, budgets of lines, no cycles, a docstring for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import recipe_core
from recipe_core.base.resources import PACKAGE
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import over, table

BUDGETS = {
    "base": 2_320,
    "payload": 16_280,
    "models": 5_420,
    "hardware": 5_260,
    "engines": 3_040,
    "request": 4_960,
    "accuracy": 2_860,
    "estimates": 20_180,
    "plans": 9_000,
    "launch": 6_100,
    "compression": 2_920,
    "sizing": 2_920,
    "scaling": 9_200,
    "commands": 3_680,
    "recipe": 3_940,
    "targets": 8_080,
    "bundle": 2_280,
    "calibration": 8_800,
    "fleets": 5_840,
    "views": 12_280,
    "doors": 7_180,
}
"""The rooms in the order of their imports, each with its most lines of Python.

A room imports itself and rooms before it. Whoever raises a budget says in the same commit what the
new lines displaced.
"""
ORDER = tuple(BUDGETS)
ARROWS = 159
"""The most pairs of rooms of which the later imports the earlier."""
FEATURES = ("compression", "sizing", "scaling", "commands", "calibration", "fleets")
"""Rooms that import plans; nothing that makes a plan or a launch names them."""
USERS = ("recipe", "targets", "bundle", "fleets", "views", "doors")
"""Rooms that put features together, for a bundle or for people."""
TRAVELLERS = ("payload.launcher", "payload.trainer", "payload.compressor")
"""Folders that are copied into bundles: they import nothing but themselves."""
FACES = ("__init__", "__main__")
"""Modules that may lie at the top of the package, before the rooms; they may import any of them."""
API = set(recipe_core.__all__)
"""Functions of the public API: a module of this name at the top would hide one of them."""


@dataclass(frozen=True)
class Import:
    """One import: the importing module, the loaded one, and whether it is for types only."""

    source: str
    line: int
    target: str
    name: str
    for_types: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


@dataclass(frozen=True)
class Package:
    """A package's modules by their dotted names below it; the package itself is the empty name."""

    folder: Path

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {
            self.named(path): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(self.folder.rglob("*.py"))
        }

    def named(self, path: Path) -> str:
        parts = path.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def is_folder(self, module: str) -> bool:
        return (self.folder.joinpath(*module.split(".")) / "__init__.py").is_file()

    @cached_property
    def imports(self) -> list[Import]:
        return [found for module, tree in self.trees.items() for found in self._of(module, tree)]

    def _of(self, module: str, tree: ast.Module) -> Iterator[Import]:
        nodes = list(ast.walk(tree))
        hidden = {
            id(node)
            for block in nodes
            if isinstance(block, ast.If)
            and ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            for statement in block.body
            for node in ast.walk(statement)
        }
        for node in nodes:
            for target, name in self._targets(module, node):
                yield Import(module, getattr(node, "lineno", 0), target, name, id(node) in hidden)

    def _targets(self, module: str, node: ast.AST) -> Iterator[tuple[str, str]]:
        """The modules that a statement loads, and the name it takes from each."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == self.folder.name:
                    yield alias.name.partition(".")[2], ""
        elif isinstance(node, ast.ImportFrom) and (base := self._base(module, node)) is not None:
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                yield (inner, "") if inner in self.trees else (base, alias.name)

    def _base(self, module: str, node: ast.ImportFrom) -> str | None:
        """The module after ``from``; None where it is not of this package."""
        if not node.level:
            first, _, rest = (node.module or "").partition(".")
            return rest if first == self.folder.name else None
        parts = module.split(".") if module else []
        up = node.level - 1 if self.is_folder(module) else node.level
        return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])


def room(module: str) -> str:
    return module.split(".")[0]


def rooms(package: Package) -> set[str]:
    return {room(module) for module in package.trees if room(module) not in ("", *FACES)}


def upward(package: Package) -> list[str]:
    """Imports that do not go to a room before; those for types count too."""
    return [
        str(found)
        for found in package.imports
        if room(found.source) not in ("", *FACES)
        and (
            found.name != "__version__"
            if found.target == ""
            else ORDER.index(room(found.target)) > ORDER.index(room(found.source))
        )
    ]


def traveller(module: str) -> str:
    """The folder that is copied into bundles with a module in it; empty for all other modules."""
    return next((f for f in TRAVELLERS if f"{module}.".startswith(f"{f}.")), "")


def carried(package: Package) -> list[str]:
    """Imports of what travels in bundles that do not stay in their folder, or are not relative."""
    leaving = [
        str(statement)
        for statement in package.imports
        if (folder := traveller(statement.source)) and traveller(statement.target) != folder
    ]
    absolute = [
        f"{module} names {package.folder.name}"
        for module, tree in package.trees.items()
        if traveller(module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and re.search(rf"\b{package.folder.name}\b", ast.unparse(node))
    ]
    return leaving + absolute


def entangled(package: Package) -> list[str]:
    """Imports of a feature by a room that is no user of features."""
    return [
        str(statement)
        for statement in package.imports
        if room(statement.target) in FEATURES
        and room(statement.source) not in ("", *FACES, *USERS, *FEATURES)
    ]


def circle(package: Package) -> list[str]:
    """Modules that import each other in a circle when they run; empty where there is none."""
    graph: dict[str, set[str]] = {m: set() for m in package.trees if m not in ("", *FACES)}
    for found in package.imports:
        if not found.for_types and found.source in graph and found.target in graph:
            graph[found.source].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(module) for module in error.args[1]]
    return []


def loose(package: Package) -> list[str]:
    """Modules at the top that are in no room."""
    return sorted(room for room in rooms(package) if not package.is_folder(room))


def undescribed(package: Package) -> list[str]:
    """Rooms and folders that do not say in a title and a sentence what they are for."""
    packages = [m for m in package.trees if m and package.is_folder(m)]
    texts = {module: ast.get_docstring(package.trees[module]) or "" for module in packages}
    return [
        f"{module} says too little"
        for module, text in texts.items()
        if len([line for line in text.splitlines() if line.strip()]) < 2
    ]


def lines_of(package: Package, name: str) -> int:
    """Lines of Python in a room."""
    paths = (package.folder / name).rglob("*.py")
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def overdrawn(package: Package) -> list[str]:
    """Rooms with more lines than their budgets."""
    sizes = {name: lines_of(package, name) for name in sorted(rooms(package) & set(BUDGETS))}
    return [
        f"{name} has {size:,} lines, {size - BUDGETS[name]:,} over its budget"
        for name, size in sizes.items()
        if size > BUDGETS[name]
    ]


def clashing(package: Package) -> list[str]:
    """Modules and rooms at the top with the name of a function of the API."""
    return sorted(rooms(package) & API)


RULES = [upward, carried, entangled, circle, loose, undescribed, clashing, overdrawn]


def problems(package: Package) -> list[str]:
    return [found for rule in RULES for found in rule(package)]


def test_the_package_keeps_the_rules_and_the_document_prints_the_order_of_its_rooms():
    here = Package(PACKAGE)
    assert problems(here) == []
    assert rooms(here) == set(ORDER)
    assert len(here.imports) > 1000
    arrows = {(room(i.source), room(i.target)) for i in here.imports}
    assert sum({*arrow} <= {*ORDER} and arrow[0] != arrow[1] for arrow in arrows) <= ARROWS
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)) == ORDER


def written(folder, files):
    """The package ``house`` with more files."""
    for name, text in files.items():
        (folder / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "house" / name).write_text(text)
    return Package(folder / "house")


@over("rule, files, problem", table("rooms", "a_broken_rule_is_seen"))
def test_a_broken_rule_is_seen(tmp_path, rule, files, problem):
    assert problems(written(tmp_path, table("rooms", "sound"))) == []
    broken = globals()[rule](written(tmp_path, files))
    assert any(problem in found for found in broken), broken


def test_a_room_over_its_budget_is_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "base", 4)
    sound = written(tmp_path, table("rooms", "sound"))
    assert overdrawn(sound) == ["base has 5 lines, 1 over its budget"]
