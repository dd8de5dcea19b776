"""Names and docstrings: a function is defined once, a variable says what it holds."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from recipe_core.base.resources import PACKAGE
from scripts.code_numbers import FUNCTIONS, VAGUE, bound_names
from tests.fixtures.paths import ROOT

# Names that a contract fixes: fields of documents, arguments of tools.
FIXED_NAMES = frozenset(
    {
        ("changed_model.py", "whole"),
        ("corrections.py", "held"),
        ("failures.py", "held"),
        ("failures.py", "what"),
        ("grammar.py", "what"),
        ("mcp.py", "asked"),
        ("mcp.py", "known"),
        ("mcp.py", "what"),
        ("memory.py", "stated"),
        ("release.py", "what"),
        ("result.py", "kept"),
        ("result.py", "wanted"),
        ("spares.py", "held"),
        ("starts.py", "held"),
        ("starts.py", "named"),
        ("starts.py", "stated"),
        ("training_programs.py", "least"),
        ("training_programs.py", "whole"),
    }
)
QUESTIONS = frozenset({"How", "What", "When", "Where", "Whether", "Which", "Who", "Why"})
# Entry points of programs, and what programs that travel apart each bring of their own.
REPEATED = frozenset({"detect_machine", "main", "put_in_place", "sync_to_disk"})


def repeated_functions(trees: Mapping[Path, ast.Module]) -> dict[str, int]:
    """Module functions whose name several modules define, with how many do."""
    modules: Counter[str] = Counter()
    for tree in trees.values():
        modules.update({node.name for node in tree.body if isinstance(node, FUNCTIONS)})
    return {name: count for name, count in modules.items() if count > 1 and name not in REPEATED}


def vague_names(trees: Mapping[Path, ast.Module]) -> set[str]:
    """Where a variable or parameter has a name that says nothing."""
    return {
        f"{path.name}: {name}"
        for path, tree in trees.items()
        for name in bound_names(tree)
        if name in VAGUE and (path.name, name) not in FIXED_NAMES
    }


def empty_modules(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Modules that only import: what was in them has gone elsewhere."""
    idle = (ast.Import, ast.ImportFrom)
    return [
        str(path)
        for path, tree in trees.items()
        if not path.name.startswith("__")
        and all(isinstance(node, idle) for node in tree.body[ast.get_docstring(tree) is not None :])
    ]


def noun_clauses(trees: Mapping[Path, ast.Module]) -> list[str]:
    """Docstrings that begin with a question word in place of a verb or a noun."""
    return [
        f"{path.name}: {docstring.splitlines()[0]}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))
        and (docstring := ast.get_docstring(node))
        and docstring.split(maxsplit=1)[0] in QUESTIONS
    ]


def parse_folder(folder: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def test_a_function_is_defined_once_and_a_variable_says_what_it_holds():
    trees = parse_folder(PACKAGE)
    assert len(trees) > 500
    assert repeated_functions(trees) == {}
    assert vague_names(trees) == set()
    assert empty_modules(trees) == []
    assert noun_clauses(trees) == []


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "oracle", "pages", "scripts"])
def test_a_variable_beside_the_package_says_what_it_holds(folder):
    trees = parse_folder(PACKAGE.parent / folder)
    assert trees
    assert vague_names(trees) == set()
    assert noun_clauses(trees) == []


def test_names_that_break_the_rules_are_listed():
    source = "def read_trace(found): return found"
    trees = {Path(name): ast.parse(source) for name in ("one.py", "two.py")}
    assert repeated_functions(trees) == {"read_trace": 2}
    assert vague_names(trees) == {"one.py: found", "two.py: found"}
    trees[Path("three.py")] = ast.parse('"""Moved."""\nimport re')
    assert empty_modules(trees) == ["three.py"]
    trees[Path("four.py")] = ast.parse('"""Sizes."""\ndef size():\n    """What it costs."""')
    assert noun_clauses(trees) == ["four.py: What it costs."]


def test_programs_beside_the_package_import_what_is_there():
    """Nothing but their own runs imports these files."""
    folders = ("benchmarks", "examples", "oracle", "scripts")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {module} has no {name}"
        for path in sources
        for module, name in imported_names(ast.parse(path.read_text(encoding="utf-8")))
        if not is_there(module, name)
    ]
    assert len(sources) > 50
    assert missing == []


def imported_names(tree):
    """Modules of the package and of the tests, with names that a file takes from them."""
    for node in ast.walk(tree):
        module = isinstance(node, ast.ImportFrom) and not node.level and node.module
        if module and module.partition(".")[0] in ("recipe_core", "tests"):
            yield from ((module, alias.name) for alias in node.names)


def is_there(module, name):
    taken = import_module(module)
    is_package = hasattr(taken, "__path__")
    return hasattr(taken, name) or (is_package and find_spec(f"{module}.{name}") is not None)
