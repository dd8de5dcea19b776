"""Disks, folders, terminals and Pythons that are not as they should be, and planted code.

Each is one sentence, and nothing that somebody put beside a bundle's own code runs before it.
"""

import ast
import json
import os
import py_compile
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import LAUNCH_PY, train_py
from tests.fixtures.bundles import Bundle, run
from tests.fixtures.patience import PATIENCE

COMMANDS = (["preflight"], ["up"], ["bench", "--requests", "3"], ["status"], ["down"])
WRITING = ("up", "bench", "down")


@pytest.fixture
def standing(bundle):
    bundle.stand_alone()
    return bundle


def refuses(code, errors, words, says):
    """What writes was refused, with a word after its progress; what reads may answer."""
    assert "Traceback" not in errors
    if words[0] in WRITING:
        assert code == 1
        assert "Exception" not in errors
        *_, last = errors.strip().splitlines()
        assert last.startswith("launch: ")
        assert "pip install" not in last  # no missing engine
        assert says in errors


def test_what_lies_where_the_launcher_writes(bundle, capsys):
    own = bundle.root / "run"

    def refused(words, says):
        refuses(bundle.run(*words), capsys.readouterr().err, words, says)

    own.write_text("mine")
    for words in COMMANDS:
        refused(words, f"{own}: ")
    own.unlink()
    for name, commands in {"lock": COMMANDS, "server-0.log": [["up"]]}.items():
        (own / name).mkdir(parents=True)
        for words in commands:
            refused(words, f"{own / name} is not a plain file but a folder. Remove it")
        (own / name).rmdir()
    (own / "measurement.json").mkdir()  # a measurement that cannot be written is shown
    code, printed = bundle.run("--json", "bench", "--requests", "3"), capsys.readouterr()
    refuses(code, printed.err, ["bench"], "measurement.json: Is a directory.")
    assert json.loads(printed.out)["metrics"]["requests"] == 3
    bundle.stand_alone()
    # Works without mounts: the size of any file is limited to nothing.
    none = (0, 0)
    done = run(bundle, "up", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, none))
    refuses(done.returncode, done.stderr, ["up"], "")
    assert not bundle.up


@pytest.fixture(scope="module")
def mounted():
    """The launcher where ``mount`` was run before, for it alone, refuses a command."""
    private = ["unshare", "-rm", "sh", "-c"]
    probe = [*private, "mount -t tmpfs none /mnt"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("no private mounts here")

    def refused(bundle, mount, words, says):
        program = [sys.executable, str(bundle.root / "launch.py"), *words]
        command = [*private, f'{mount} && exec "$@"', "sh", *program]
        settings = {"capture_output": True, "text": True, "timeout": PATIENCE, "cwd": bundle.root}
        done = subprocess.run(command, check=False, **settings)
        refuses(done.returncode, done.stderr, words, says)
        assert words[0] in WRITING or "launch: " not in done.stderr

    return refused


def test_a_bundle_on_a_disk_that_may_not_be_written_to(standing, mounted):
    mount = f"mount --bind {standing.root} {standing.root}"
    read_only = f"{mount} && mount -o remount,ro,bind {standing.root}"
    for words in (["preflight"], ["up"], ["status"], ["down"]):
        mounted(standing, read_only, words, "Read-only file system. Use a copy of the bundle")
    assert run(standing, "up", "--no-keep").returncode == 0
    pid = standing.state()["servers"][0]["pid"]
    mounted(standing, read_only, ["down"], "stopped server-0")  # all the same
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert run(standing, "down").returncode == 0


def test_a_full_disk(standing, mounted):
    run_folder = standing.root / "run"
    run_folder.mkdir()
    fill = f"(cat /dev/zero > {run_folder}/filling || true) 2> /dev/null"
    mount = f"mount -t tmpfs -o size=64k none {run_folder} && {fill}"
    for words in (["up"], ["bench", "--requests", "3"]):
        says = "state.json: No space left on device. Free space on that disk."
        mounted(standing, mount, words, says)


BAKERY = "Bäckerei 麵包".encode()


@pytest.mark.parametrize(
    ("name", "encoding", "lines"),
    [
        (BAKERY, "ascii", "up --no-keep, status, down"),
        pytest.param(BAKERY, "latin-1", "preflight, up, status, down", marks=pytest.mark.nightly),
        (b"caf\xe9", "utf-8", "preflight, --json up --no-keep, down"),  # which is no text
    ],
)
def test_letters_that_the_terminal_lacks(standing, tmp_path, name, encoding, lines, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    odd = Bundle(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)), standing.port)
    standing.root.rename(odd.root)
    try:
        for line in lines.split(", "):
            done = run(odd, *line.split(), encoding=encoding)
            assert done.returncode == 0, (line, done.stderr)
            assert "Traceback" not in done.stderr
            if line.startswith(("--json", "status")):
                log = json.loads(done.stdout)["servers"][0]["log"]
                assert log == str(odd.root / "run" / "server-0.log")
    finally:
        run(odd, "down")


def test_output_that_nobody_reads_and_a_launcher_that_was_copied_in_part(standing):
    reading, writing = os.pipe()
    os.close(reading)
    done = run(standing, "status", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
    module = standing.root / "launcher" / "engine.py"
    text = module.read_text()
    for size in (None, 0, 700):
        module.unlink()
        if size is not None:
            module.write_text(text[:size])
        done = run(standing, "up")
        assert done.returncode == 1
        assert done.stderr.startswith("launch: launcher/ is damaged: ")
        assert done.stderr.count("\n") == 1
        module.touch()


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 9, 18)])
@pytest.mark.parametrize("script", ["launch.py", "train.py"])
def test_an_older_python_is_told_which_is_needed(tmp_path, version, script):
    text = LAUNCH_PY if script == "launch.py" else train_py("train.py", "main")
    ast.parse(text, feature_version=(3, 6))
    pretended = f"import sys; sys.version_info = {version}; exec(open(sys.argv[1]).read())"
    (tmp_path / script).write_text(text)
    command = [sys.executable, "-c", pretended, str(tmp_path / script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = f"{script} needs Python 3.10 or newer; this is {version[0]}.{version[1]}.\n"
    assert done.stderr == said


# Planted code

PLACES = [
    f"__pycache__/main.{sys.implementation.cache_tag}.pyc",
    f"__pycache__/__init__.{sys.implementation.cache_tag}.pyc",
    "main.abi3.so",
    *("../PACKAGE.so", "../PACKAGE.py", "../json.py", "../signal.py", "../argparse/__init__.py"),
    *("../importlib.py", "../sitecustomize.py"),
]
"""Below the folder of a package."""


@pytest.fixture(
    params=[PLACES, *(pytest.param([where], marks=pytest.mark.nightly) for where in PLACES)],
    ids=str,
)
def planted(tmp_path, monkeypatch, request):
    """Plants all at once, and each alone in the nightly tier; any that runs leaves the marker."""
    marker, source = tmp_path / "marker", tmp_path / "planted.py"
    monkeypatch.setenv("MARKER", str(marker))
    source.write_text("import os\nopen(os.environ['MARKER'], 'w').close()\n")

    def plant(package):
        for where in request.param:
            path = package / where.replace("PACKAGE", package.name)
            path.parent.mkdir(exist_ok=True)
            if path.suffix == ".pyc":  # which Python would run without a look at the source
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                py_compile.compile(str(source), str(path), invalidation_mode=mode)
            elif path.suffix == ".so":
                path.write_bytes(b"\x7fELF")  # loading it fails, so an attempt shows
            else:
                shutil.copy(source, path)
        return marker

    return plant


def test_nothing_planted_in_a_bundle_runs(standing, planted):
    marker = planted(standing.root / "launcher")
    for command in ("preflight", "up", "status"):
        done = run(standing, command, cwd=standing.root)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        if command != "status":
            assert "added: " in done.stdout + done.stderr
        assert not marker.exists(), command
    assert not standing.up


def test_nothing_planted_beside_the_trainer_runs(tmp_path, planted):
    root = tmp_path / "bundle"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "payload" / "trainer", root / "trainer", ignore=ignored)
    (root / "train.py").write_text(train_py("train.py", "main"))
    marker = planted(root / "trainer")
    program = [sys.executable, "train.py", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout
    assert not marker.exists()


def test_commands_leave_a_bundle_as_it_was_built_and_refuse_one_that_was_changed(standing):
    before = sorted(path for path in standing.root.rglob("*"))
    for words in ("preflight", "up", "bench --requests 3", "status"):
        assert run(standing, *words.split(), cwd=standing.root).returncode == 0
    after = [p for p in standing.root.rglob("*") if "run" not in p.relative_to(standing.root).parts]
    assert sorted(after) == before
    (standing.root / "notes.txt").write_text("mine")
    done = run(standing, "bench", "--requests", "3")
    assert done.returncode == 1
    assert "preflight: bundle: added: notes.txt" in done.stderr
    assert standing.up
    assert run(standing, "down").returncode == 0
