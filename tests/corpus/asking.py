"""The requests of the corpus, and the answers that the product's own doors give to them now."""

import hashlib
import io
import json
import math
import re
import zipfile
from functools import cache
from pathlib import Path

import pandas as pd
from typer.main import get_command

import recipe_core
from recipe_core.base.documents import read_document
from recipe_core.base.errors import RecipeError
from recipe_core.base.resources import PACKAGE
from recipe_core.doors import answers, catalog, public
from tests.corpus.values import reduced

FOLDER = Path(__file__).parent
BEST = 3  # splits that are recorded in full, of a plan's best and of its refused
WIDTH = 100  # columns of the command line's help
SLOWEST = ("simulate", "size", "compress")  # begun first, so that nobody waits for them at the end
DIGITS = 6  # significant ones of a long fraction in a digest: others are the processor's own
_FRACTION = re.compile(r"(?<![\w.])\d+\.\d{6,}(?:[eE][-+]?\d+)?")
_DIGEST = re.compile(r"recipe_digest: (\w+)")
_PACKAGES = re.compile(r"(?<=^launcher)/.*|(?<=^trainer)/.*|(?<=^compressor)/.*")
_SERIAL = r"urn:uuid:[0-9a-f-]{36}"


def entries():
    """Every request by its name, ``file/name``; those that take longest first."""
    found = {
        f"{path.stem}/{name}": values
        for path in sorted((FOLDER / "requests").glob("*.yaml"))
        for name, values in read_document(path).items()
    }
    return dict(sorted(found.items(), key=lambda entry: entry[1]["operation"] not in SLOWEST))


def answer(values):
    """What the product answers to a request now, without words; an error by its code and field."""
    try:
        given = OPERATIONS[values["operation"]](values)
    except RecipeError as error:
        return reduced(error.to_json())
    left_out = values.get("without", ())
    return {name: given[name] for name in given if name not in left_out} if left_out else given


def _asked(method):
    """An operation that the API and MCP have, by the name of its method."""
    return lambda values: reduced(getattr(answers, f"answer_{method}")(values["request"]))


def _named(function):
    """An operation on the catalog, which takes a name or none."""
    return lambda values: reduced(getattr(catalog, function)(values.get("name")))


def _plan(values):
    """Of every column of a plan its sums over all rows, or how often it has each value."""
    plan = public.plan(values["request"], folders=False)
    rows = plan.to_frame()
    ranks = rows["rank"].fillna(0).astype(float)
    columns = rows.drop(columns=["reasons"]).items()
    sums = {str(name): _column(column, ranks) for name, column in columns}
    return reduced({**plan.to_json(BEST, BEST), "rows": sums})


def _column(column, ranks):
    """``by_rank`` weighs each value with its row's rank: rows that change places show."""
    if not pd.api.types.is_numeric_dtype(column):
        return {str(value): int(count) for value, count in column.value_counts().items()}
    numbers = column.astype(float)
    finite = numbers.map(math.isfinite)
    known, places = numbers[finite].tolist(), ranks[finite].tolist()
    by_rank = [value * place for value, place in zip(known, places, strict=True)]
    return {"known": len(known), "sum": math.fsum(known), "by_rank": math.fsum(by_rank)}


def _sensitivity(values):
    plan = public.plan(values["request"], folders=False)
    return reduced([flip.to_json() for flip in plan.sensitivity()])


def _compress(values):
    techniques = values.get("techniques")
    return reduced(answers.answer_compress(values["request"], techniques=techniques))


def _bundle(values):
    """Name, processes, digests of files but the manifest, and names of copies of the product's."""
    name, data = answers.answer_build(values["request"])
    archive = zipfile.ZipFile(io.BytesIO(data))
    files = {path: archive.read(path) for path in archive.namelist() if path != "MANIFEST.json"}
    started = json.loads(files["launch.json"])["processes"]
    processes = [{key: process.get(key) for key in ("name", "argv", "env")} for process in started]
    own = "".join(_DIGEST.findall(files["recipe.yaml"].decode())[:1])
    sources = {path for path, content in files.items() if _hash(content) in _sources()}
    return {
        "name": name,
        "processes": reduced(processes),
        "files": {path: digest(files[path], own) for path in sorted(files.keys() - sources)},
        "sources": sorted({_PACKAGES.sub("", path) for path in sources}),
    }


def digest(content, recipe_digest):
    """SHA-256 of a file but for what changes while nothing does: the recipe's digest and the serial
    number made of it, the last digits of long fractions, the version."""
    version = re.escape(recipe_core.__version__)
    own = f'{recipe_digest}|{recipe_digest[:12]}|recipe-builder {version}|"version": "{version}"'
    text = re.sub(f"{own}|{_SERIAL}", "*", content.decode())
    text = _FRACTION.sub(lambda match: f"{float(match[0]):.{DIGITS}g}", text)
    return _hash(text.encode())


def _hash(content):
    return hashlib.sha256(content).hexdigest()


@cache
def _sources():
    """Digests of the files of the package: bundles carry copies of some."""
    files = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".txt", ".json"))
    return frozenset(_hash(path.read_bytes()) for path in files)


def _openapi(_):
    from recipe_core.doors.api import create_api

    return reduced(create_api(folders=False).openapi(), lists=False)


def _schema(values):
    return reduced(catalog.answer_schema(values["name"]), lists=False)


def _help(_):
    """The lines of ``--help`` of the program and of each command."""
    from recipe_core.doors.cli import load_commands

    return dict(_help_of(get_command(load_commands()), "recipe", None))


def _help_of(command, name, parent):
    wide = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.make_context(name, [], parent, resilient_parsing=True, **wide)
    yield context.command_path, [line.rstrip() for line in context.get_help().splitlines()]
    for inner_name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _help_of(inner, inner_name, context)


_ASKED = (
    *("check", "convert", "diff", "estimate", "recipe", "reconcile", "resolve", "simulate", "size"),
    "trace",
)
_OWN = (_bundle, _compress, _help, _openapi, _plan, _schema, _sensitivity)
OPERATIONS = {  # what a request may ask for
    **{operation.__name__.removeprefix("_"): operation for operation in _OWN},
    **{name: _asked(name) for name in _ASKED},
    **{name: _named(name) for name in ("engines", "hardware", "models")},
    "offers": _named("answer_offers"),
}
