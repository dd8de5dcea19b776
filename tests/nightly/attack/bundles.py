"""Hostile bundles, read, started, stopped and built over, as a user would.

``python -m tests.nightly.attack.bundles --count 2000 --seed 1``. Each bundle is read in a process
of its own with limits on time and memory. It must end with 0, 1 or 2 and no traceback, write
nowhere but where it may, and be accepted only with what its author wrote, or else be called
unsigned. ``--only FAMILY:INDEX`` runs one again and prints what it said.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe_core.base.errors import RecipeError
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.signing import SIGNATURE, new_key
from recipe_core.bundle.verify import read_bundle, unpack
from recipe_core.bundle.write import bundle_files
from recipe_core.doors.cli import main as recipe_main
from recipe_core.launcher.main import main as launcher_main
from recipe_core.recipe import make_recipe
from recipe_core.request.schema import PlanRequest
from tests.nightly.attack import hostile_archives as archives
from tests.nightly.attack import hostile_documents as documents
from tests.nightly.attack.hostile_bundles import Hostile, Maker, Material
from tests.nightly.attack.hostile_folders import odd_folder

CPU_S, WALL_S, MEMORY = 60, 120.0, 1 << 30
"""What one bundle may take: seconds of processor and wall, and bytes beyond the program's own."""
CRASHED = 99
Snapshot = dict[str, tuple[object, ...]]
PRECIOUS = b"precious"

FAMILIES: dict[str, tuple[Maker, int]] = {
    "zip-bytes": (archives.zip_bytes_changed, 8),
    "zip-directory": (archives.zip_directory_changed, 8),
    "zip-cut": (archives.zip_cut, 4),
    "file-bytes": (archives.file_changed, 8),
    "names": (archives.name_added, 8),
    "members": (archives.odd_member, 8),
    "bombs": (archives.bomb, 1),
    "folders": (odd_folder, 5),
    "manifests": (documents.odd_manifest, 6),
    "yaml": (documents.yaml_bomb, 2),
    "recipes": (documents.recipe_values, 8),
    "launches": (documents.launch_values, 8),
    "keys": (documents.keys, 4),
}
"""Makers by name, each with its share of the cases."""
REQUESTS = (
    {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"device": "h100-sxm", "per_node": 2},
        "workload": {"input_tokens": 512, "output_tokens": 128, "concurrency": 16},
    },
    {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"device": "h100-sxm", "per_node": 4, "nodes": 2},
        "workload": {
            "kind": "training",
            "sequence_length": 1024,
            "global_batch": 64,
            "tokens": 10**7,
        },
    },
)


@dataclass(frozen=True)
class Failure:
    """A bundle that did what none may."""

    case: str
    reason: str


@dataclass
class Tally:
    """What was tried, and what it cost at most."""

    tried: Counter[str]
    accepted: Counter[str]
    failures: list[Failure]
    cpu_s: tuple[float, str] = (0.0, "")
    wall_s: tuple[float, str] = (0.0, "")
    memory: tuple[int, str] = (0, "")


def material() -> Material:
    """A serving and a training bundle, both signed, and the key."""
    private, public = new_key()
    recipes = [make_recipe(PlanRequest.parse(request)) for request in REQUESTS]
    bundles = tuple(bundle_files(recipe, private) for recipe in recipes)
    return Material(bundles, private, public)


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


# --- one bundle ---------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a process ended, what it printed and what it took."""

    code: int
    out: str
    err: str
    cpu_s: float
    wall_s: float
    memory: int


def in_a_process(work: Callable[[], int], folder: Path) -> Ended:
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
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > WALL_S:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    out, err = (path.read_text(errors="replace") if path.exists() else "" for path in paths)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Ended(code, out, err, cpu_s, time.monotonic() - began, usage.ru_maxrss << 10)


def _limited(work: Callable[[], int], paths: list[Path]) -> int:
    for number, path in enumerate(paths, 1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    try:
        code = work()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else CRASHED
    except BaseException:
        traceback.print_exc()
        code = CRASHED
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def check(bundle: Hostile, key: Path | None) -> int:
    """``recipe check --json``; of an accepted bundle also the digests of its files."""
    words = ["recipe", "check", str(bundle.path), "--json"]
    sys.argv = [*words, "--public-key", str(key)] if key else words
    code = 0
    try:
        recipe_main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    if code == 0:
        sys.stdout.flush()
        files = read_bundle(bundle.path, bundle.key).files
        print("\n===", json.dumps(digests(files)))
    return code


def start(bundle: Hostile) -> int:
    """What `recipe up` does before it starts something: unpack, and the launcher's checks.

    Programs are those of an empty PATH, and names are not resolved: nothing of a bundle is run.
    """
    folder = unpack(bundle.path)
    os.environ["PATH"] = str(folder.parent.parent / "bin")
    socket.getaddrinfo = _unresolved
    node = ["--node", "0", "--head", "127.0.0.1"]
    codes = [
        launcher_main([command, *words], root=folder)
        for command in ("preflight", "status", "down")
        for words in ([], node)
    ]
    return max(codes)


def _unresolved(host: object, *_: object, **__: object) -> list[object]:
    raise socket.gaierror(-2, f"Name or service not known: {host!r}"[:200])


def look_after(bundle: Hostile) -> int:
    """``recipe status`` and ``recipe down`` of a folder that `recipe check` refuses."""
    codes = []
    for command in ("status", "down"):
        sys.argv = ["recipe", command, str(bundle.path)]
        try:
            recipe_main()
        except SystemExit as left:
            codes.append(left.code if isinstance(left.code, int) else 0)
    return max(codes)


def build_over(bundle: Hostile, files: dict[str, bytes]) -> int:
    """A build whose output is this folder."""
    replace_folder(bundle.path, files)
    return 0


def told(work: Callable[[], int]) -> Callable[[], int]:
    """``work`` with its errors as the command line's: a sentence and an exit code."""

    def run() -> int:
        try:
            return work()
        except RecipeError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code

    return run


# --- what must hold ------------------------------------------------------------------------------


def digests(files: dict[str, bytes]) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def snapshot(root: Path, *, without: Path | None = None) -> Snapshot:
    """Kind, size, time and owner of everything below a folder, links not followed."""
    entries: Snapshot = {}
    for parent, folders, names in os.walk(os.fsencode(root)):
        if without is not None and Path(os.fsdecode(parent)) == without:
            folders[:] = []
            continue
        for name in [*folders, *names]:
            path = os.path.join(parent, name)  # noqa: PTH118 - bytes, which Path does not take
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            size = status.st_size if kind == stat.S_IFREG else 0
            changed = status.st_mtime_ns if kind == stat.S_IFREG else 0
            entries[repr(path)] = (kind, size, changed, status.st_ino)
    return entries


def judge_end(ended: Ended, step: str) -> str | None:
    """Why a process ended as none may."""
    if ended.code not in (0, 1, 2):
        return f"{step}: exit code {ended.code}: {ended.err[-400:]}"
    if "Traceback" in ended.err:
        return f"{step}: traceback: {ended.err[-400:]}"
    if ended.code and not ended.err.strip() and not ended.out.strip():
        return f"{step}: no word about exit code {ended.code}"
    return None


def judge_accepted(bundle: Hostile, ended: Ended) -> str | None:
    """Why a bundle that `recipe check` accepts should not have been."""
    text, _, listed = ended.out.rpartition("\n===")
    answer, given = json.loads(text), json.loads(listed)
    wanted = digests(bundle.original)
    manifest = given.get(MANIFEST) == wanted[MANIFEST]
    content = {n: d for n, d in given.items() if n not in (MANIFEST, SIGNATURE)}
    same = content == {n: d for n, d in wanted.items() if n not in (MANIFEST, SIGNATURE)}
    if bundle.key is not None:
        trusted = answer["signed"] and answer["signed"]["trusted"]
        return None if same and manifest and trusted else "accepted, though its key did not sign it"
    if not same and not bundle.sealed:
        return "accepted with other content than its author's"
    if not same and answer["signed"] and manifest:
        return "accepted as signed with other content"
    if not any(answer["differs"].values()):
        changed = {n for n in content.keys() | wanted.keys() if content.get(n) != wanted.get(n)}
        # A recipe may say something else, and its files say it too.
        if untold := changed - {MANIFEST, SIGNATURE, "recipe.yaml"}:
            return f"no difference is told of {sorted(untold)[:3]}"
    if answer["signed"] is None and not answer["verdict"].startswith("unsigned"):
        return "accepted without being called unsigned"
    return None


def run_case(name: str, index: int, seed: int, wealth: Material, root: Path) -> list[Ended | str]:
    """Make one bundle, do everything to it, and return the ends of processes and what is wrong."""
    case = root / "case"
    case.mkdir()
    random_ = random.Random(f"{seed}:{name}:{index}")
    bundle = FAMILIES[name][0](random_, case, wealth, index)
    key = None
    if bundle.key is not None:
        key = root / "key.pem"
        key.write_bytes(bundle.key)
    folder = bundle.path.is_dir()
    results: list[Ended | str] = []
    before = snapshot(root)

    checked = in_a_process(told(lambda: check(bundle, key)), root / "output")
    results.append(checked)
    problem = judge_end(checked, "check")
    if problem is None and checked.code == 0:
        problem = judge_accepted(bundle, checked)
    results += [problem] if problem else []
    if changed := differences(before, snapshot(root)):
        results.append(f"check wrote {changed[:3]}")

    target = bundle.path if folder else bundle.path.with_suffix("")
    outside = snapshot(root, without=target)
    started = in_a_process(told(lambda: start(bundle)), root / "output")
    results.append(started)
    if problem := judge_end(started, "start"):
        results.append(problem)
    after = snapshot(root, without=target)
    changed = [path for path in differences(outside, after) if path != repr(os.fsencode(target))]
    if changed:
        results.append(f"start wrote {changed[:3]}")

    if folder:
        precious = (case / "b" / "run" / "checkpoints" / "step-1" / "weights").exists()
        others = snapshot(root, without=case)
        if checked.code:
            cared = in_a_process(told(lambda: look_after(bundle)), root / "output")
            results.append(cared)
            if problem := judge_end(cared, "status and down"):
                results.append(problem)
        build = told(lambda: build_over(bundle, wealth.bundles[0]))
        built = in_a_process(build, root / "output")
        results.append(built)
        if problem := judge_end(built, "build"):
            results.append(problem)
        if changed := differences(others, snapshot(root, without=case)):
            results.append(f"build wrote {changed[:3]}")
        if precious and not any(
            path.read_bytes() == PRECIOUS for path in case.rglob("step-1/weights")
        ):
            results.append("build lost a run")
    return results


def differences(
    before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]
) -> list[str]:
    """Paths that were made, changed or removed, but for the output of our own processes."""
    paths = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return sorted(path for path in paths if "/output/" not in path)


def attack(count: int, seed: int, only: str | None = None, *, verbose: bool = False) -> Tally:
    """Make and judge ``count`` bundles, or the one named ``FAMILY:INDEX``."""
    wealth = material()
    tally = Tally(Counter(), Counter(), [])
    chosen = list(cases(count))
    if only:
        family, _, index = only.partition(":")
        chosen = [(family, int(index))]
    for name, index in chosen:
        with sandbox() as root:
            results = run_case(name, index, seed, wealth, root)
        ends = [result for result in results if isinstance(result, Ended)]
        tally.tried[name] += 1
        tally.accepted[name] += ends[0].code == 0
        for end in ends:
            tally.cpu_s = max(tally.cpu_s, (end.cpu_s, f"{name}:{index}"))
            tally.wall_s = max(tally.wall_s, (end.wall_s, f"{name}:{index}"))
            tally.memory = max(tally.memory, (end.memory, f"{name}:{index}"))
        reasons = [result for result in results if isinstance(result, str)]
        tally.failures += [Failure(f"{name}:{index}", reason) for reason in reasons]
        if verbose:
            for end in ends:
                print(f"exit {end.code}, {end.cpu_s:.2f} s\n{end.out[-2000:]}{end.err[-2000:]}")
    return tally


@contextlib.contextmanager
def sandbox() -> Iterator[Path]:
    """A folder with everything that a process of ours may see: home, programs, a secret."""
    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    for name in ("home", "tmp", "bin", "outside", "output"):
        (root / name).mkdir()
    (root / "outside" / "secret").write_bytes(PRECIOUS)
    kept = {name: os.environ.get(name) for name in ("HOME", "TMPDIR")}
    os.environ.update(HOME=str(root / "home"), TMPDIR=str(root / "tmp"))
    try:
        with contextlib.chdir(root / "tmp"):
            yield root
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        for folder, _, _ in os.walk(root):
            with contextlib.suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(root, ignore_errors=True)


def _own_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="FAMILY:INDEX")
    options = parser.parse_args()
    began = time.monotonic()
    tally = attack(options.count, options.seed, options.only, verbose=bool(options.only))
    for name in FAMILIES:
        print(f"{name:14} {tally.tried[name]:5} tried, {tally.accepted[name]:5} accepted")
    for failure in tally.failures:
        print(f"FAILED --seed {options.seed} --only {failure.case}: {failure.reason}")
    print(
        f"{tally.tried.total()} bundles in {time.monotonic() - began:.0f} s, seed {options.seed}: "
        f"{tally.accepted.total()} accepted, {len(tally.failures)} failures; "
        f"at most {tally.cpu_s[0]:.1f} s of processor ({tally.cpu_s[1]}), "
        f"{tally.wall_s[0]:.1f} s ({tally.wall_s[1]}) and {tally.memory[0] >> 20} MiB "
        f"({tally.memory[1]}; the program alone has {_own_memory() >> 20})"
    )
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
