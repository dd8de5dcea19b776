"""Documents a person reads: short, current, linked, and what they say is executed."""

import importlib
import json
import re
import shlex

import pytest
import yaml

from recipe_core.base.errors import RecipeError
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest
from scripts.documents import MODULES
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import over

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
GUIDES = ("plan", "size", "scale", "compress", "train", "operate")
PLACES = ("recipe_core", "pages", "scripts", "tests", "examples", "benchmarks", "Makefile", ".ci")
SUFFIXES = {"", ".py", ".yaml", ".md"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = "guide|method|reference|schema|images"
NAMED = re.compile(rf"(?<![\w/.-])docs/(?:{FOLDERS})/[\w./-]+\.(?:md|json|svg|png)")
GENERATED = re.compile(r"<!-- ([\w ]+) -->.*?<!-- end of \1 -->", re.DOTALL)
WHOLLY_GENERATED = {
    f"docs/reference/{name}.md" for name in ("accuracy", "glossary", "not-modelled")
}


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name, *languages):
    return [body for language, body in BLOCK.findall(text_of(name)) if language in languages]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = []
    for heading in re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).casefold()
        found.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def broken(target, name):
    """Why a link of a page leads nowhere; nothing where it leads somewhere."""
    path, _, anchor = target.partition("#")
    place = (ROOT / name).parent / path if path else ROOT / name
    if not place.exists():
        return [f"{name}: {target} does not exist"]
    if anchor and anchor not in anchors(place.read_text(encoding="utf-8")):
        return [f"{name}: {target} has no such heading"]
    return []


def test_every_link_of_every_page_leads_somewhere():
    wrong = [
        problem
        for name in NAMES
        for target in LINK.findall(BLOCK.sub("", text_of(name)))
        if not target.startswith(("http://", "https://"))
        for problem in broken(target, name)
    ]
    assert wrong == []


def test_every_page_that_code_names_exists():
    files = [ROOT / place for place in PLACES]
    files = [file for place in files for file in (place.rglob("*") if place.is_dir() else [place])]
    wrong = []
    for file in files:
        if file.is_dir() or file.suffix not in SUFFIXES or file.name == "test_documents.py":
            continue
        for target in NAMED.findall(file.read_text(encoding="utf-8", errors="replace")):
            wrong += broken(target, "README.md")
    assert wrong == []


def test_every_file_that_a_page_names_exists():
    """Files of the package by whole paths, or from their rooms (``estimates/roofline.py``)."""
    rooms = "|".join(path.name for path in (ROOT / "recipe_core").iterdir() if path.is_dir())
    folders = "recipe_core|scripts|tests|hw_profiles|benchmarks|examples"
    path = re.compile(rf"(?<![\w/.-])(?:(?:{folders})/[\w./*-]+|(?:{rooms})/[\w./]+\.py)")
    wrong = []
    for name in set(NAMES) - WHOLLY_GENERATED:
        for target in path.findall(text_of(name)):
            place = target.rstrip(".-")
            if not re.search(r"[A-Z]{3}", place) and not [
                *ROOT.glob(place),
                *ROOT.glob(f"recipe_core/{place}"),
            ]:
                wrong.append(f"{name}: {place}")
    assert wrong == []


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for target in LINK.findall(text_of(name)):
            if "://" in target or ".md" not in target:
                continue
            place = ((ROOT / name).parent / target.partition("#")[0]).resolve()
            if place.is_relative_to(ROOT / "docs"):
                other = str(place.relative_to(ROOT))
                waiting += [other] if other not in reached else []
    assert {name for name in NAMES if name.startswith("docs/")} - reached == set()


def test_pages_are_short_and_wrapped():
    assert len(text_of("README.md").encode()) <= 8 << 10
    assert len(text_of("docs/architecture.md").encode()) <= 6 << 10
    for guide in GUIDES:
        assert len(text_of(f"docs/guide/{guide}.md").split()) <= 2000, guide
    words = [word for name in NAMES for word in text_of(name).split() if re.search(r"[^\W_]", word)]
    assert len(words) <= 56_200
    for name in set(NAMES) - WHOLLY_GENERATED:
        lines = BLOCK.sub("", GENERATED.sub("", text_of(name))).splitlines()
        prose = [line for line in lines if not line.startswith(("|", "!", "    "))]
        assert [line for line in prose if len(line) > 140 and "](http" not in line] == [], name


def test_the_readme_shows_one_transcript_that_fits_a_window_and_is_true():
    (transcript,) = blocks("README.md", "console")
    command, *lines = transcript.splitlines()
    assert len(lines) + 1 <= 12
    assert max(map(len, transcript.splitlines())) <= 100
    answer = recipe(*shlex.split(command.removeprefix("$ recipe ")), columns=100).stdout
    said = [line.strip() for line in answer.splitlines()]
    assert [line for line in lines if line != "…" and line.strip() not in said] == []


@over("name", MODULES)
def test_generated_parts_are_current(name):
    if name == "life_matrix":
        pytest.importorskip("torch")
    module = importlib.import_module(f"scripts.{name}")
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.renewed(text) == text, f"run python scripts/documents.py {name}"


@over("name", [name for name in NAMES if blocks(name, "python")])
def test_python_examples_are_executed_in_order(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(name, "python"):
        exec(compile(block, name, "exec"), names)
    assert "Did you mean" in capsys.readouterr().out


def is_request(document):
    return isinstance(document, dict) and {"model", "hardware"} <= set(document)


@over("name", [name for name in NAMES if blocks(name, "yaml", "json")])
def test_requests_and_documents_are_read(name):
    for block in blocks(name, "yaml"):
        if block.startswith("# questions.jsonl"):
            continue
        document = yaml.safe_load(block)
        assert document, block
        if is_request(document):
            kind = SizeRequest if "any" in str(document["hardware"]) else PlanRequest
            kind.parse(document)
    for block in blocks(name, "json"):
        json.loads(block.replace("…", ""))


@over("name", [name for name in NAMES if blocks(name, "bash")])
def test_commands_are_executed_on_the_files_of_their_page(tmp_path, name):
    """A yaml block that begins with ``# NAME`` is that file; a bash block runs line by line."""
    ran = 0
    for language, body in BLOCK.findall(text_of(name)):
        if language == "yaml" and (file := re.match(r"# ([\w.-]+)\n", body)):
            content = body[file.end() :] if file[1].endswith(".jsonl") else body
            (tmp_path / file[1]).write_text(content, encoding="utf-8")
        if language != "bash":
            continue
        for line in body.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "recipe", line
            done = recipe(*words, cwd=tmp_path, columns=120)
            assert done.returncode in (0, 1), (line, done.stderr)
            assert done.stdout or done.stderr, line
            ran += 1
    assert ran


@over("name", [name for name in NAMES if "recipe " in "".join(blocks(name, ""))])
def test_other_commands_have_the_parser_s_words(name):
    """Commands that need a server or a machine: their options are those of ``recipe --help``."""
    reference = text_of("docs/reference/cli.md")
    for line in "".join(blocks(name, "")).splitlines():
        words = line.split("#")[0].replace("$ ", "", 1).split()
        if words[:1] == ["recipe"]:
            assert f"## `recipe {words[1]}`" in reference, line
            for word in words[2:]:
                if word.startswith("--"):
                    assert f"{word}" in reference, line


def test_a_page_that_is_wrong_is_seen(tmp_path):
    assert broken("docs/guide/plan.md#read-the-answer", "README.md") == []
    assert "no such heading" in broken("docs/guide/plan.md#nowhere", "README.md")[0]
    assert "does not exist" in broken("docs/guide/nowhere.md", "README.md")[0]
    with pytest.raises(RecipeError):
        PlanRequest.parse({"model": "Qwen/Qwen3-8B", "hardware": {"device": "h100-sxm"}, "x": 1})
