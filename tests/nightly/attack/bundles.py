"""Hostile bundles, read, started, stopped and built over, as a user would.

Each bundle is read in a process of its own with limits on time and memory. It must end with 0, 1 or
2 and no traceback, write nowhere but where it may, and be accepted only with what its author wrote,
or else be called unsigned. A case is FAMILY:INDEX; one that is named prints what it said.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import resource
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock, patch

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.signing import MANIFEST, SIGNATURE, new_key
from recipe_core.bundle.verify import read_bundle, unpack_bundle
from recipe_core.bundle.write import bundle_files
from recipe_core.payload.launcher.main import main as launcher_main
from recipe_core.request.schema import PlanRequest
from tests.fixtures.command_line import recipe as command_line
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.nightly.attack import hostile_bundles as documents
from tests.nightly.attack import hostile_files as files
from tests.nightly.attack.harness import Order, Tally
from tests.nightly.attack.hostile_bundles import Draw, Hostile, Maker, Material

CPU_S, WALL_S, MEMORY = 60, 120.0, 1 << 30
"""What a bundle may take: seconds of processor and wall, and bytes beyond the program's own."""
CRASHED = 99
WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
PRECIOUS = b"precious"

FAMILIES: dict[str, tuple[Maker, int]] = {
    "zip-bytes": (files.zip_bytes_changed, 8),
    "zip-directory": (files.zip_directory_changed, 8),
    "zip-cut": (files.zip_cut, 4),
    "file-bytes": (files.file_changed, 8),
    "names": (files.name_added, 8),
    "members": (files.odd_member, 8),
    "bombs": (files.bomb, 1),
    "folders": (files.odd_folder, 5),
    "manifests": (documents.odd_manifest, 6),
    "yaml": (documents.odd_recipe, 2),
    "recipes": (documents.recipe_values, 8),
    "recipe-parts": (documents.recipe_parts, 8),
    "launches": (documents.launch_values, 8),
    "keys": (documents.keys, 4),
}
"""Makers by name, each with its share of the cases."""


@dataclass
class Ended:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class Bundles(Tally):
    """Bundles by families: those tried, and those accepted."""

    accepted: Counter[str] = field(default_factory=Counter)

    def judged(self, case: str, results: list[Ended | str]) -> None:
        codes = [result.code for result in results if isinstance(result, Ended)]
        family = case.partition(":")[0]
        self.tried[family] += 1
        self.accepted[family] += codes[0] == 0
        wrong = [result for result in results if isinstance(result, str)]
        self.findings += [f"{case}: {result}" for result in wrong]

    def lines(self) -> list[str]:
        lines = [
            f"{name:14} {count:5} tried, {self.accepted[name]:5} accepted"
            for name, count in self.tried.items()
        ]
        own, most = (resource.getrusage(who).ru_maxrss >> 10 for who in WHO)
        memory = f"one took {most} MiB at most (the program has {own})"
        return [*lines, f"{self.tried.total()} bundles; {memory}"]


def material() -> Material:
    """A serving and a training bundle, both signed, and the key."""
    private, public = new_key()
    training = {"kind": "training", "sequence_length": 1024, "global_batch": 64, "tokens": 1e7}
    request = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "h100-sxm", "per_node": 4, "nodes": 2},
        "workload": training,
    }
    trained = recipe_for_request(PlanRequest.parse(request))
    recipes = (recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2), trained)
    return Material(tuple(bundle_files(recipe, private) for recipe in recipes), private, public)


def cases(count: int) -> Iterator[tuple[str, int]]:
    """Families and indices: each family once, then in proportion to their shares."""
    shares = [name for name, (_, share) in FAMILIES.items() for _ in range(share)]
    random.Random(0).shuffle(shares)
    seen: Counter[str] = Counter()
    for number in range(count):
        order = list(FAMILIES) if number < len(FAMILIES) else shares
        name = order[number % len(order)]
        yield name, seen[name]
        seen[name] += 1


def in_a_process(work: Callable[[], int | None], folder: Path) -> Ended:
    """``work`` in a process of its own, within limits, its output in files of ``folder``."""
    began = time.monotonic()
    paths = [folder / name for name in ("stdout", "stderr")]
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            code = _limited(work, paths)
        finally:
            os._exit(code)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > WALL_S:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    out, err = (path.read_text(errors="replace") if path.exists() else "" for path in paths)
    return Ended(code, out, err)


def _limited(work: Callable[[], int | None], paths: list[Path]) -> int:
    for number, (name, path) in enumerate(zip(("stdout", "stderr"), paths, strict=True), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        stream = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), errors="backslashreplace")
        setattr(sys, name, stream)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    try:
        code = work() or 0
    except RecipeError as error:  # as the command line says it
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
        code = CRASHED
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def recipe(*words: str) -> int:
    """The exit code of a command; its output becomes this process's."""
    done = command_line(*words, cwd=Path.cwd())
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def check(bundle: Hostile, key: Path | None) -> int:
    """``recipe check --json``; of an accepted bundle also the digests of its files."""
    public = ["--public-key", str(key)] if key else []
    code = recipe("check", str(bundle.path), "--json", *public)
    if code == 0:
        print("\n===", json.dumps(digests(read_bundle(bundle.path, bundle.key).files)))
    return code


def start(bundle: Hostile) -> int:
    """What `recipe up` does before it starts something: unpack, and the launcher's checks.

    Programs are those of an empty PATH, and names are not resolved: nothing of a bundle is run.
    """
    folder = unpack_bundle(bundle.path)
    os.environ["PATH"] = str(folder.parent.parent / "bin")
    unresolved = socket.gaierror(-2, "Name or service not known")
    socket.getaddrinfo = Mock(side_effect=unresolved)
    node = ["--node", "0", "--head", "127.0.0.1"]
    codes = [
        launcher_main([command, *words], root=folder)
        for command in ("preflight", "status", "down")
        for words in ([], node)
    ]
    return max(codes)


def digests(files: dict[str, bytes]) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def snapshot(root: Path, without: Path | None) -> set[tuple[object, ...]]:
    """Path, kind, size, time and number of all but our output, links not followed."""
    entries, left_out = set[tuple[object, ...]](), {os.fsencode(root / "output")}
    left_out |= {os.fsencode(without)} if without else set()
    for parent, folders, names in os.walk(os.fsencode(root)):
        paths = {os.path.join(parent, name): name for name in [*folders, *names]}  # noqa: PTH118 - bytes
        folders[:] = [paths[path] for path in paths.keys() - left_out if paths[path] in folders]
        for path in paths.keys() - left_out:
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            size = (status.st_size, status.st_mtime_ns) if kind == stat.S_IFREG else ()
            entries.add((repr(path), kind, size, status.st_ino))
    return entries


def judge_end(ended: Ended, step: str) -> Iterator[str]:
    """How a process ended as none may."""
    if ended.code not in (0, 1, 2):
        yield f"{step}: exit code {ended.code}: {ended.err[-400:]}"
    elif "Traceback" in ended.err:
        yield f"{step}: traceback: {ended.err[-400:]}"
    elif ended.code and not ended.err.strip() and not ended.out.strip():
        yield f"{step}: no word about exit code {ended.code}"


def judge_accepted(bundle: Hostile, ended: Ended) -> Iterator[str]:
    """Why a bundle that `recipe check` accepts should not have been."""
    text, _, listed = ended.out.rpartition("\n===")
    answer, given = json.loads(text), json.loads(listed)
    wanted = digests(bundle.original)
    manifest = given.get(MANIFEST) == wanted[MANIFEST]
    content = {n: d for n, d in given.items() if n not in (MANIFEST, SIGNATURE)}
    same = content == {n: d for n, d in wanted.items() if n not in (MANIFEST, SIGNATURE)}
    changed = {n for n in content.keys() | wanted.keys() if content.get(n) != wanted.get(n)}
    # A recipe may say something else, and its files say it too.
    untold = sorted(changed - {MANIFEST, SIGNATURE, "recipe.yaml"})
    if bundle.key is not None:
        if not (same and manifest and answer["signed"] and answer["signed"]["trusted"]):
            yield "accepted, though its key did not sign it"
    elif not same and not bundle.sealed:
        yield "accepted with other content than its author's"
    elif not same and answer["signed"] and manifest:
        yield "accepted as signed with other content"
    elif untold and not any(answer["differs"].values()):
        yield f"no difference is told of {untold[:3]}"
    elif answer["signed"] is None and not answer["verdict"].startswith("unsigned"):
        yield "accepted without being called unsigned"


def run_case(name: str, index: int, seed: int, wealth: Material, root: Path) -> list[Ended | str]:
    """Make one bundle, do everything to it, and return the ends of processes and what is wrong."""
    case = root / "case"
    case.mkdir()
    draw = Draw(random.Random(f"{seed}:{name}:{index}"), case, wealth, index)
    bundle = FAMILIES[name][0](draw)
    key = root / "key.pem" if bundle.key is not None else None
    if key is not None:
        key.write_bytes(bundle.key or b"")
    results: list[Ended | str] = []

    def step(what: str, work: Callable[[], int | None], without: Path | None = None) -> Ended:
        """Do something; it may write nowhere but to ``without``."""
        before = snapshot(root, without)
        ended = in_a_process(work, root / "output")
        results.extend([ended, *judge_end(ended, what)])
        if changed := sorted({path for path, *_ in before ^ snapshot(root, without)}):
            results.append(f"{what} wrote {changed[:3]}")
        return ended

    folder = bundle.path.is_dir()
    checked = step("check", lambda: check(bundle, key))
    if checked.code == 0 and len(results) == 1:
        results += judge_accepted(bundle, checked)
    step("start", lambda: start(bundle), bundle.path if folder else bundle.path.with_suffix(""))
    if folder:
        precious = (case / "b" / "run" / "checkpoints" / "step-1" / "weights").exists()
        if checked.code:  # what is refused can be looked at and stopped
            path = str(bundle.path)
            step("status and down", lambda: max(recipe("status", path), recipe("down", path)), case)
        step("build", lambda: replace_folder(bundle.path, wealth.bundles[0]), case)
        left = (path.read_bytes() for path in case.rglob("step-1/weights"))
        if precious and PRECIOUS not in left:
            results.append("build lost a run")
    return results


def attack(order: Order) -> Bundles:
    """Make and judge bundles, by their families and indices where they are named."""
    named = (case.partition(":") for case in order.cases)
    chosen = [(family, int(index)) for family, _, index in named] or cases(order.count)
    wealth, tally = material(), Bundles()
    for name, index in chosen:
        with sandbox() as root:
            results = run_case(name, index, order.seed, wealth, root)
        tally.judged(f"{name}:{index}", results)
        for end in results if order.cases and not order.short else ():
            if isinstance(end, Ended):
                print(f"exit {end.code}\n{end.out[-2000:]}{end.err[-2000:]}")
    return tally


@contextlib.contextmanager
def sandbox() -> Iterator[Path]:
    """A folder with everything that a process of ours may see: home, programs, a secret."""
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as path:
        root = Path(path)
        for name in ("home", "tmp", "bin", "outside", "output"):
            (root / name).mkdir()
        (root / "outside" / "secret").write_bytes(PRECIOUS)
        places = {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp")}
        with patch.dict(os.environ, places), contextlib.chdir(root / "tmp"):
            yield root
        for folder, _, _ in os.walk(root):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)
