"""Move the modules of recipe_core into rooms by subject, and rewrite every import and path.

    python scripts/move_rooms.py          in a clean work tree; runs once

A module goes where the longest matching row of ``MODULES`` says, data files beside it go along, and
tests follow their room. Imports are rewritten by their syntax tree, dotted names and paths in
strings, documents and settings by text.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "recipe_core"

MODULES = {
    "launcher": "payload.launcher",
    "trainer": "payload.trainer",
    "compressor": "payload.compressor",
    "model": "models",
    "measured": "estimates.measured",
    "measured.compression": "accuracy.checkpoints",
    "measured.imports": "calibration.importers",
    "compression": "accuracy",
    "space": "estimates.rules",
    "space.serving": "estimates.columns.serving",
    "space.training": "estimates.columns.training",
    "space.dims": "estimates.columns.dims",
    "space.splits": "estimates.columns.splits",
    "space.batches": "estimates.columns.batches",
    "space.exchange": "estimates.columns.exchange",
    "space.reuse": "estimates.columns.reuse",
    "space.rollout": "estimates.columns.rollout",
    "space.training_choices": "estimates.columns.training_choices",
    "space.corrections": "estimates.columns.corrections",
    "space.scales": "estimates.columns.scales",
    "space.standing": "estimates.columns.standing",
    "physics": "estimates",
    "physics.compression": "compression.jobs",
    "search": "plans",
    "search.compression": "compression.required",
    "launch.compression": "compression.scripts",
    "formats": "compression.advisor",
    "traffic": "scaling.traces",
    "fleet": "scaling",
    "calibration.trace": "oracle",
    "calibration.as_logged": "calibration.validation.as_logged",
    "calibration.cold_starts": "calibration.validation.cold_starts",
    "calibration.facts": "calibration.validation.facts",
    "calibration.intervals": "calibration.validation.intervals",
    "calibration.reconcile": "calibration.validation.reconcile",
    "calibration.sizes": "calibration.validation.sizes",
    "calibration.training_validate": "calibration.validation.training_validate",
    "calibration.validate": "calibration.validation.validate",
    "calibration.own_runs": "calibration.residuals",
    "trials": "calibration.trials",
    "recipe.overlay": "calibration.store",
    "recipe.own_runs": "calibration.run_files",
    "recipe.imports": "calibration.run_rows",
    "recipe.calibrate": "calibration.calibrate",
    "recipe.kept_compressions": "calibration.kept_compressions",
    "present": "views",
    "explain": "views.explanations",
    "deployments": "targets.deployments",
}
"""Where modules and folders go; a folder takes along what has no row of its own."""

DATA = {"calibration/own_runs.yaml": "calibration/residuals.yaml"}
"""Data files that follow a renamed module."""

TESTS = {
    "launcher": "payload/launcher",
    "trainer": "payload/trainer",
    "compressor": "payload/compressor",
    "model": "models",
    "measured": "calibration",
    "trials": "calibration",
    "compression": "accuracy",
    "formats": "compression",
    "space": "estimates",
    "physics": "estimates",
    "search": "plans",
    "traffic": "scaling",
    "fleet": "scaling",
    "present": "views",
    "explain": "views",
    "deployments": "targets",
}

DOCSTRINGS = {
    "payload": """What travels inside bundles: the launcher, the embedded trainer, the compressor.

Each folder imports nothing of the package but itself, by relative imports, and is copied whole.
""",
    "estimates/columns": """Candidates as columns: every split of a cluster with its settings.

One array a field, one row a candidate; nothing here estimates.
""",
    "compression": """Smaller checkpoints: which format to choose, what a job takes, how it is
    launched.

``advisor`` compares formats, ``jobs`` estimates the work of making one, ``scripts`` writes it.
""",
    "calibration/validation": """Estimates held against measured runs: errors, intervals, causes.

Reads tables of runs; learns nothing and keeps nothing.
""",
}

PLACES = {
    'PACKAGE / "launcher"': 'PACKAGE / "payload" / "launcher"',
    'PACKAGE / "trainer"': 'PACKAGE / "payload" / "trainer"',
    'PACKAGE / "compressor"': 'PACKAGE / "payload" / "compressor"',
    'PACKAGE / "compression"': 'PACKAGE / "accuracy"',
    'PACKAGE / "formats"': 'PACKAGE / "compression" / "advisor"',
    'PACKAGE / "traffic"': 'PACKAGE / "scaling" / "traces"',
    'PACKAGE / "fleet"': 'PACKAGE / "scaling"',
    '"recipe_core" / "model"': '"recipe_core" / "models"',
    '"recipe_core" / "physics"': '"recipe_core" / "estimates"',
}
"""Paths that modules put together."""

TRAVELLERS = ("recipe_core/launcher/", "recipe_core/trainer/", "recipe_core/compressor/")
"""Folders whose relative imports stay as they are."""

NAMED = re.compile(r"(?<![\w.])recipe_core((?:\.[a-z_]\w*)+)")
PATHS = re.compile(r"(?<![\w])recipe_core/([a-z_][\w/]*)")
HOMES = re.compile(r'(?<=")[a-z_]+(?:\.[a-z_]+)+(?=[":])')
"""Modules by their names below the package, in ``LAZY``."""
LAZY = ("recipe_core/__init__.py", "recipe_core/doors/serve.py")
TEST_PATHS = re.compile(r"(?<![\w])tests/([a-z_]+)(?=/)")
TEST_NAMES = re.compile(r"(?<![\w.])tests\.([a-z_]+)(?=\.)")


def moved(module: str) -> str:
    """The new name of a module, or of a name inside it."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if target := MODULES.get(".".join(parts[:length])):
            return ".".join([target, *parts[length:]])
    return module


def dotted(module: str) -> str:
    """The module as imports say it: the oracle lies beside the package."""
    name = moved(module)
    return name if name == "oracle" or name.startswith("oracle.") else f"recipe_core.{name}"


def place(module: str) -> Path:
    """The path of a module's new folder or file, without an ending."""
    return ROOT.joinpath(*dotted(module).split("."))


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def modules() -> set[str]:
    """Every module and folder of the package by its dotted name below it."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


class Rewriter:
    """Rewrites the imports of one file."""

    def __init__(self, path: Path, known: set[str]) -> None:
        self.path = path
        self.known = known
        inside = path.is_relative_to(PACKAGE)
        parts = path.relative_to(PACKAGE).with_suffix("").parts if inside else ()
        self.folder = list(parts[:-1])

    def base(self, node: ast.ImportFrom) -> str | None:
        """The module after ``from``, below the package; None where it is of another package."""
        if node.level:
            kept = self.folder[: len(self.folder) - node.level + 1]
            return ".".join([*kept, *filter(None, [node.module])])
        first, _, rest = (node.module or "").partition(".")
        return rest if first == "recipe_core" else None

    def statements(self, node: ast.ImportFrom, base: str) -> list[str]:
        """The statements in place of one: an alias may be a module that went elsewhere."""
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            inner = f"{base}.{alias.name}" if base else alias.name
            if inner in self.known:
                home, _, name = dotted(inner).rpartition(".")
                alias_name = alias.asname or (alias.name if alias.name != name else None)
            else:
                home = dotted(base) if base else "recipe_core"
                name, alias_name = alias.name, alias.asname
            groups.setdefault(home, []).append(f"{name} as {alias_name}" if alias_name else name)
        return [
            f"from {home} import ({', '.join(names)})"
            if len(names) > 1
            else f"from {home} import {names[0]}"
            for home, names in groups.items()
        ]

    def rewrite(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        for node in sorted(nodes, key=lambda node: -node.lineno):
            base = self.base(node)
            if base is None:
                continue
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            source = "".join(lines[first:last])
            indent = source[: len(source) - len(source.lstrip())]
            if ";" in source.split("#")[0]:
                raise SystemExit(f"{self.path}:{node.lineno}: two statements in a line")
            comment = "  " + source[source.index("#") :].strip() if "#" in source else ""
            if comment and last - first > 1:
                comment = ""
                print(f"{self.path}:{node.lineno}: a comment inside an import is lost")
            lines[first:last] = [f"{indent}{s}{comment}\n" for s in self.statements(node, base)]
        return "".join(lines)


def rewrite_text(text: str) -> str:
    """Dotted names and paths in strings, comments and documents."""

    def name(found: re.Match[str]) -> str:
        return dotted(found[1][1:])

    def path(found: re.Match[str]) -> str:
        words = found[1].rstrip("/")
        slash = "/" if found[1].endswith("/") else ""
        return dotted(words.replace("/", ".")).replace(".", "/") + slash

    text = NAMED.sub(name, text)
    text = PATHS.sub(path, text)
    for old, new in DATA.items():
        text = text.replace(f"recipe_core/{old}", f"recipe_core/{new}")
    text = TEST_PATHS.sub(lambda found: f"tests/{TESTS.get(found[1], found[1])}", text)
    text = TEST_NAMES.sub(
        lambda found: f"tests.{TESTS.get(found[1], found[1]).replace('/', '.')}", text
    )
    for old, new in PLACES.items():
        text = text.replace(old, new)
    return text


def move_files() -> None:
    for line in git("ls-files", "recipe_core", "tests").splitlines():
        source = Path(line)
        parts = source.parts
        if parts[0] == "recipe_core" and len(parts) > 2:
            if "/".join(parts[1:]) in DATA:
                target = Path("recipe_core", DATA["/".join(parts[1:])])
            elif source.suffix == ".py":
                stem = [*parts[1:-1], source.stem]
                initial = source.name == "__init__.py"
                module = ".".join(stem[:-1] if initial else stem)
                base = place(module).relative_to(ROOT)
                target = base / "__init__.py" if initial else base.with_suffix(".py")
            else:
                target = place(".".join(parts[1:-1])).relative_to(ROOT) / source.name
        elif parts[0] == "tests" and len(parts) > 2 and parts[1] in TESTS:
            target = Path("tests", TESTS[parts[1]], *parts[2:])
        else:
            continue
        if target == source:
            continue
        (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / target).exists():
            if source.name != "__init__.py":
                raise SystemExit(f"{source} would hide {target}")
            git("rm", "-q", "-f", str(source))
        else:
            git("mv", str(source), str(target))


def main() -> None:
    known = modules()
    endings = (
        ".py",
        ".md",
        ".toml",
        ".yaml",
        ".yml",
        ".json",
        ".txt",
        ".csv",
        ".jinja",
        "Makefile",
    )
    skipped = ("tests/corpus/", "tests/goldens/", "CHANGELOG.md", "scripts/move_rooms.py")
    for line in git("ls-files").splitlines():
        path = ROOT / line
        if not line.endswith(endings) or line.startswith(skipped) or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        travels = line.startswith(
            tuple(f"recipe_core/{n}/" for n in ("launcher", "trainer", "compressor"))
        )
        changed = text
        if line.endswith(".py") and not travels:
            changed = Rewriter(path, known).rewrite(text)
            # Imports have their new names already: the pattern below must not move them again.
            changed = protect_imports(changed)
        changed = rewrite_text(changed).replace("recipe_core\0", "recipe_core")
        if line in LAZY:
            changed = HOMES.sub(lambda n: moved(n[0]) if n[0] in known else n[0], changed)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    move_files()
    for folder, docstring in DOCSTRINGS.items():
        path = PACKAGE / folder / "__init__.py"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'"""{docstring}"""\n', encoding="utf-8")
    for folder in ("payload",):
        path = ROOT / "tests" / folder / "__init__.py"
        path.touch()


def protect_imports(text: str) -> str:
    """Imports with a mark in their package's name, which the patterns of texts do not match."""
    return re.sub(r"^(\s*from )recipe_core(?=[. ])", "\\1recipe_core\0", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
