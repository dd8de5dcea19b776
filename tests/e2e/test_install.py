"""The package as a stranger installs it: a wheel, used from another folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fixtures.paths import ROOT

HEAVY = ["torch", "transformers", "streamlit", "fastapi", "pandas", "plotly"]


def python(code: str, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


@pytest.mark.nightly
def test_a_wheel_finds_its_profiles_catalog_pages_and_theme_from_anywhere(tmp_path: Path) -> None:
    """Its content alone on a path: nothing of the checkout is reachable from it."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path))
    build = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    start = f"import sys; sys.path.insert(0, {str(site)!r}); "

    def recipe(*words: str) -> subprocess.CompletedProcess[str]:
        code = f"{start}from recipe_core.doors.cli import main; main()"
        return python(code, *words, cwd=tmp_path)

    assert "h100-sxm" in recipe("hardware").stdout
    assert "Qwen/Qwen3-8B" in recipe("models").stdout
    place = {"device": "l40s", "per_node": 1}
    request = {"model": "Qwen/Qwen3-8B", "hardware": place, "workload": {"concurrency": 4}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    built = recipe("build", "request.json", "-o", "bundle.zip")
    assert built.returncode == 0, built.stderr
    assert recipe("check", "bundle.zip").returncode == 0
    files = ("app.py", "pages/_entry.py", ".streamlit/config.toml")
    code = (
        "from recipe_core.base.resources import shipped_path; "
        "print(*map(shipped_path, sys.argv[1:]), sep='\\n')"
    )
    places = python(start + code, *files, cwd=tmp_path).stdout.splitlines()
    assert [Path(place).is_file() for place in places] == [True] * 3
    assert places[0].startswith(str(site))


def test_the_base_needs_no_torch() -> None:
    """No door imports torch or transformers; the core no Streamlit, FastAPI, pandas, plotly."""
    core = (
        "import recipe_core.plans.serving_search, recipe_core.bundle.write, "
        "recipe_core.commands.verdict, recipe_core.doors.cli"
    )
    done = python(f"{core}; import sys; print([n for n in {HEAVY} if n in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr
