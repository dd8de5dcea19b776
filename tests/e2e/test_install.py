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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel, alone on a path: nothing of the checkout is reachable from it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); "
        "from recipe_core.doors.cli import main; main()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )


def test_profiles_and_catalog_are_found_from_anywhere(installed: Path, tmp_path: Path) -> None:
    assert "h100-sxm" in run(installed, tmp_path, "hardware").stdout
    assert "Qwen/Qwen3-8B" in run(installed, tmp_path, "models").stdout
    request = {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"device": "l40s", "per_node": 1},
        "workload": {"concurrency": 4},
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    built = run(installed, tmp_path, "build", "request.json", "-o", "bundle.zip")
    assert built.returncode == 0, built.stderr
    assert run(installed, tmp_path, "check", "bundle.zip").returncode == 0


def test_pages_and_theme_are_found_from_anywhere(installed: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); "
        "from recipe_core.base.resources import root; "
        "names = ('app.py', 'pages/_entry.py', '.streamlit/config.toml'); "
        "print([root(name).is_file() for name in names], root('app.py'))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    ).stdout
    assert answer.startswith("[True, True, True]")
    assert str(installed) in answer


def test_the_base_needs_no_torch() -> None:
    """No door imports torch or transformers; the core no Streamlit, FastAPI, pandas, plotly."""
    core = (
        "import recipe_core.search.serving_plan, recipe_core.bundle.write, "
        "recipe_core.search.verdict, recipe_core.doors.cli"
    )
    heavy = ["torch", "transformers", "streamlit", "fastapi", "pandas", "plotly"]
    code = f"{core}; import sys; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
