"""Numbers of the code: sizes, annotations, comments, density, complexity, names, imports.

    python scripts/code_numbers.py [FOLDER …]      default: recipe_core pages
    python scripts/code_numbers.py --walks         rooms that a plan, a build and a simulation enter

Counts come from the syntax tree; complexity is one more than the decisions of a function (branches,
loops, handlers, conditions of comprehensions, boolean operators). A walk lists modules in the order
in which a call first enters them, without ``base``; a move is a step from one room to another.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from types import FrameType

VAGUE = frozenset(
    {
        "found",
        "each",
        "asked",
        "said",
        "own",
        "kept",
        "stated",
        "named",
        "chosen",
        "given",
        "taken",
        "made",
        "every",
        "mine",
        "there",
        "here",
        "seen",
        "wanted",
        "what",
        "how",
        "held",
        "most",
        "least",
        "near",
        "whole",
        "others",
        "one",
        "known",
        "told",
        "thing",
        "these",
    }
)
"""Names that say nothing of the domain: participles and pronouns."""
DECISIONS = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.comprehension)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def percentiles(values: list[int]) -> str:
    """Median, 90th percentile and maximum."""
    if len(values) < 2:
        return "/".join(map(str, values))
    cuts = quantiles(values, n=10)
    return f"{cuts[4]:.0f}/{cuts[8]:.0f}/{max(values)}"


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def complexity(function: ast.AST) -> int:
    """One more than the decisions of a function."""
    total = 1
    for node in own_nodes(function):
        total += isinstance(node, DECISIONS)
        if isinstance(node, ast.comprehension):
            total += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
    return total


def annotated(function: Function) -> bool:
    """Return whether all parameters but self and the result are annotated."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    typed = all(a.annotation or a.arg in ("self", "cls") for a in arguments)
    return typed and (function.returns is not None or function.name == "__init__")


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Every name that is bound: variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def is_union_of_dicts(node: ast.AST) -> bool:
    """``{…} | {…}``: a union where a dict display would do."""
    dicts = (ast.Dict, ast.DictComp)
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and (isinstance(node.left, dicts) or isinstance(node.right, dicts))
    )


def nested(node: ast.AST) -> bool:
    """A ternary with a ternary as one of its branches."""
    return isinstance(node, ast.IfExp) and any(
        isinstance(branch, ast.IfExp) for branch in (node.body, node.orelse)
    )


def code_lines(text: str) -> int:
    """Lines that hold a token of code: neither blank, nor a comment, nor of a docstring."""
    prose = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*prose, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def function_names(trees: dict[Path, ast.Module]) -> tuple[float, float]:
    """Shares of module functions that are one word, and that another module defines as well."""
    modules: dict[str, list[Path]] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, FUNCTIONS):
                modules.setdefault(node.name, []).append(path)
    count = sum(map(len, modules.values())) or 1
    one_word = sum(len(paths) for name, paths in modules.items() if "_" not in name.strip("_"))
    shared = sum(len(paths) for paths in modules.values() if len(set(paths)) > 1)
    return one_word / count, shared / count


def importers(trees: dict[Path, ast.Module], folder: Path) -> dict[str, set[str]]:
    """Modules that import each module of a package, by dotted names."""

    def name_of(path: Path) -> str:
        parts = path.relative_to(folder.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    names = {name_of(path) for path in trees}
    modules_by_name: dict[str, set[str]] = {name: set() for name in names}
    for path, tree in trees.items():
        source = name_of(path)
        package = source if path.stem == "__init__" else source.rpartition(".")[0]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom):
                continue
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                target = inner if inner in names else base
                if target in names and target != source:
                    modules_by_name[target].add(source)
    return modules_by_name


def walk(call: Callable[[], object]) -> list[str]:
    """Modules that a call enters, in the order of their first functions; ``base`` is left out."""
    call()  # a second call finds data files and catalogs read
    modules: dict[str, None] = {}

    def see(frame: FrameType, event: str, _: object) -> None:
        _, inside, path = frame.f_code.co_filename.rpartition("/recipe_core/")
        if event == "call" and inside and frame.f_code.co_name[0] != "<":
            modules.setdefault(path)

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [path for path in modules if not path.startswith("base/")]


def print_walks() -> None:
    """Print what a plan, a build and a simulation enter, as a Markdown table."""
    import recipe_core as rb  # only the walks run the package

    request = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "h100-sxm", "per_node": 8},
        "workload": {
            **{"mode": "closed", "concurrency": 64},
            **{"input_tokens": 1024, "output_tokens": 256},
        },
    }
    over_time = {"rates": [2, 6, 4], "interval_s": 600}
    loaded = {
        **request,
        "workload": {"input_tokens": 1024, "output_tokens": 256, "over_time": over_time},
        "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}},
    }
    walks = {"plan": partial(rb.plan, request), "build": partial(rb.build, request)}
    walks["simulate"] = partial(rb.simulate, loaded)
    print("| walk | modules | rooms | moves between rooms |")
    print("|---|---|---|---|")
    for name, call in walks.items():
        modules = walk(call)
        rooms = [path.split("/")[0] for path in modules]
        moves = sum(room != next_room for room, next_room in pairwise(rooms))
        print(f"| {name} | {len(modules)} | {len(set(rooms))} | {moves} |")


def numbers(folder: Path) -> dict[str, str]:
    """Count what is in the Python files of a folder."""
    paths = sorted(folder.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    trees = [ast.parse(text) for text in texts]
    files = dict(zip(paths, trees, strict=True))
    lines = [line for text in texts for line in text.splitlines()]
    code = sum(map(code_lines, texts))
    one_word, shared = function_names(files)
    users = importers(files, folder)
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    public = [
        node
        for node in nodes
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")
    ]
    comments = sum(
        token.type == tokenize.COMMENT
        for text in texts
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    described = sum(bool(ast.get_docstring(node)) for node in public)
    return {
        "files": str(len(paths)),
        "lines": f"{len(lines):,}",
        "lines of code": f"{code:,}",
        "syntax nodes, thousands": f"{len(nodes) / 1000:.0f}",
        "modules with one importer": str(sum(len(names) == 1 for names in users.values())),
        "module functions of one word": f"{one_word:.0%}",
        "… with a name that another module defines": f"{shared:.1%}",
        "file p50/p90/max": percentiles([len(text.splitlines()) for text in texts]),
        **size_numbers(functions),
        "public docstrings": f"{described / len(public):.0%}",
        "comments per 100 lines of code": f"{100 * comments / code:.1f}",
        "lines over 100 columns": f"{sum(len(line) > 100 for line in lines) / len(lines):.1%}",
        **density_numbers(nodes, code),
        "functions that return dict[str, Any]": plain_results(functions),
        **name_numbers(trees, code),
        **complexity_numbers(functions),
        "loose modules at the top": str(
            sum(path.parent == folder and path.stem[:2] != "__" for path in paths)
        ),
    }


def size_numbers(functions: list[Function]) -> dict[str, str]:
    sizes = [(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions]
    return {
        "function p50/p90/max": percentiles(sizes),
        "functions over 60 lines": str(sum(size > 60 for size in sizes)),
        "annotated": f"{sum(map(annotated, functions)) / len(functions):.0%}",
    }


def density_numbers(nodes: list[ast.AST], code: int) -> dict[str, str]:
    ternaries = sum(isinstance(node, ast.IfExp) for node in nodes)
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    return {
        "syntax nodes a line of code": f"{len(nodes) / code:.1f}",
        "ternaries per 1,000 lines of code": f"{1000 * ternaries / code:.1f}",
        "nested ternaries": str(sum(map(nested, nodes))),
        "comprehensions per 1,000 lines of code": f"{1000 * comprehensions / code:.1f}",
        "unions of dict displays": str(sum(map(is_union_of_dicts, nodes))),
    }


def name_numbers(trees: list[ast.Module], code: int) -> dict[str, str]:
    names = [name for tree in trees for name in bound_names(tree)]
    vague = sum(name in VAGUE for name in names)
    return {
        "participles and pronouns per 1,000 lines of code": f"{1000 * vague / code:.1f}",
        "… of all bound names": f"{vague / len(names):.1%}",
    }


def plain_results(functions: list[Function]) -> str:
    results = [ast.unparse(f.returns) for f in functions if f.returns is not None]
    plain = sum("dict[str, Any]" in result for result in results)
    return f"{plain / len(functions):.1%} ({plain})"


def complexity_numbers(functions: list[Function]) -> dict[str, str]:
    ordered = sorted(map(complexity, functions))
    return {
        "complexity mean/p99/max": (
            f"{sum(ordered) / len(ordered):.1f}/{ordered[int(len(ordered) * 0.99)]}/{ordered[-1]}"
        ),
        "functions with complexity above 10": f"{sum(n > 10 for n in ordered) / len(ordered):.1%}",
    }


def main() -> None:
    """Print a Markdown table with a column a folder."""
    if sys.argv[1:] == ["--walks"]:
        print_walks()
        return
    root = Path(__file__).parent.parent
    folders = [Path(word) for word in sys.argv[1:]] or [root / "recipe_core", root / "pages"]
    columns = [numbers(folder) for folder in folders]
    print(f"| | {' | '.join(folder.name for folder in folders)} |")
    print(f"|---|{'---|' * len(folders)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")


if __name__ == "__main__":
    main()
