"""The server's own file, loaded in a process of its own: Streamlit allows one app a process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from recipe_core.base.resources import root
from recipe_core.doors.serve import Later, folders_allowed
from recipe_core.doors.settings import variable
from tests.fixtures.patience import PATIENCE

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("recipe_builder_app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(root("app.py").parent), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-c", LOAD + script, str(root("app.py"))]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        argv, capture_output=True, text=True, env=environment, cwd=root("app.py").parent, timeout=60
    )


@pytest.mark.parametrize(("value", "allowed"), [(None, False), ("0", False), ("1", True)])
def test_folders_are_read_only_where_the_starter_says_so(
    monkeypatch: pytest.MonkeyPatch, value: str | None, allowed: bool
) -> None:
    monkeypatch.delenv(variable("folders"), raising=False)
    if value is not None:
        monkeypatch.setenv(variable("folders"), value)
    assert folders_allowed() is allowed


def test_the_server_starts_without_what_only_its_answers_need() -> None:
    later = {
        "numpy",
        "pandas",
        "fastapi",
        "mcp",
        "recipe_core.doors.api",
        "recipe_core.search.plans",
    }
    assert run(f"print(sorted({later!r} & set(sys.modules)))").stdout.strip() == "[]"


def test_no_page_imports_what_was_not_loaded_before_it() -> None:
    """Pages run in threads: what two of them imported at once could come out half-made."""
    imports = {
        ast.unparse(node)
        for path in root("pages").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and "recipe_core" in ast.unparse(node)
    }
    assert len(imports) > 50
    answer = run(f"""
from recipe_core.doors.serve import load_pages
load_pages()
before = set(sys.modules)
exec({chr(10).join(sorted(imports))!r})
print(sorted(name for name in set(sys.modules) - before if name.startswith("recipe_core")))
""")
    assert answer.stdout.strip() == "[]", answer.stderr


def test_the_first_page_needs_no_more_than_was_loaded_for_it() -> None:
    """It is drawn while other modules are not there yet: those would come out half-made."""
    answer = run(f"""
from recipe_core.doors.serve import load_first_page
from streamlit.testing.v1 import AppTest
load_first_page()
before = set(sys.modules)
app = AppTest.from_file({str(root("pages") / "_entry.py")!r}, default_timeout={PATIENCE}).run()
new = set(sys.modules) - before
print([error.message for error in app.exception], app.title[0].value)
print(sorted(name for name in new if name.startswith("recipe_core")))
print(sorted({{"pandas", "recipe_core.present.charts", "recipe_core.recipe"}} & set(sys.modules)))
""")
    assert answer.stdout.splitlines() == ["[] What do you want to run?", "[]", "[]"], answer.stderr


def test_other_pages_and_workers_wait_until_the_first_page_was_sent() -> None:
    answer = run("""
import threading
from recipe_core.doors import serve
serve.NOBODY_S, serve.DRAWING_S = 3600, 0
begun, loaded = threading.Event(), lambda: "recipe_core.present.report" in sys.modules
thread = threading.Thread(target=serve.get_ready, args=(begun.set,), daemon=True)
thread.start()
while "recipe_core.search.plan" not in sys.modules:
    thread.join(0.01)
print(loaded(), begun.is_set())
serve.first_page_sent.set()
thread.join()
print(loaded(), begun.is_set())
""")
    assert answer.stdout.splitlines() == ["False False", "True True"], answer.stderr


def test_one_thread_imports_at_a_time() -> None:
    names = ["recipe_core.doors.api", "recipe_core.doors.mcp", "recipe_core.search.plans"]
    answer = run(f"""
import threading
from recipe_core.doors.serve import load_pages
def imported():
    return sorted(set({names}) & set(sys.modules))
targets = (load_pages, module.make_api, module.make_mcp)
threads = [threading.Thread(target=target) for target in targets]
with module.importing:
    [thread.start() for thread in threads]
    [thread.join(0.5) for thread in threads]
    print(imported())
[thread.join() for thread in threads]
print(imported())
""")
    assert answer.stdout.splitlines() == ["[]", str(names)], answer.stderr


def test_an_app_is_made_once_when_it_is_first_asked_and_lives_until_it_is_closed() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        said.append("begun")
        yield
        said.append("ended")

    def make() -> Starlette:
        said.append("made")
        return Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"))], lifespan=life)

    later = Later(make)

    @asynccontextmanager
    async def outer(_: Starlette) -> AsyncIterator[None]:
        yield
        await later.close()

    with TestClient(Starlette(routes=[Mount("/it", app=later)], lifespan=outer)) as client:
        assert said == []
        assert [client.get("/it/").text for _ in range(2)] == ["here", "here"]
        assert said == ["made", "begun"]
    assert said == ["made", "begun", "ended"]


def test_an_unexpected_error_is_one_sentence_and_its_id_is_in_the_log() -> None:
    script = """
said = []
module.st.error = lambda text, icon: said.append(text)
try:
    1 / 0
except ZeroDivisionError as error:
    assert module.say_sorry(error) is True
print(said[0])
"""
    answer = run(script)
    number = answer.stdout.split("**")[1]
    assert "ZeroDivisionError" not in answer.stdout
    assert f"error {number} in a page" in answer.stderr
    assert "ZeroDivisionError" in answer.stderr
