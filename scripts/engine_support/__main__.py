"""Ask an engine's release what starts on which architecture, and write what its code answers.

    python scripts/engine_support vllm 0.33.0 [--wheels FOLDER] [--architectures sm_80]

Needs an environment with torch (CPU), triton, transformers and the engine's other pure-Python
requirements: that of ``scripts/vllm_cpu`` is enough (SGLang needs orjson besides). The release's
wheel is taken from ``--wheels`` (``pip download --no-deps --only-binary :all: vllm==0.33.0``, 300
MB; for SGLang also the sglang-kernel and sgl-flash-mla that it requires), unpacked and never
installed. Rows go to ``recipe_core/engines/support/ENGINE-RELEASE.csv``; ``tables.py`` says how.
"""

import argparse
import contextlib
import csv
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import ask_sglang  # noqa: E402
import ask_vllm  # noqa: E402
import tables  # noqa: E402
from machine import CUDA, ROCM, code_answer, unpack  # noqa: E402

ASKING = {"vllm": ask_vllm.ask, "sglang": ask_sglang.ask}
LIMIT_S = 420


def load_before_pretending():
    """Import what looks at the machine before it is a pretended one."""
    import torch._dynamo
    import torch._inductor.utils
    import torch.utils.cpp_extension
    import transformers

    with contextlib.suppress(Exception):
        import torch.testing._internal.distributed.fake_pg  # noqa: F401
        import triton.language  # noqa: F401
        import xgrammar  # noqa: F401
    ask_sglang.load_before_pretending(transformers)


def ask_in_child(engine, arch, root, code, part, only):
    """Fork a process that asks on one architecture and writes its rows to ``part``.

    ``held``: what the compiled modules hold, as the engine's questions need it.
    """
    pid = os.fork()
    if pid:
        return pid
    log = root / f"log-{arch}.txt"
    with part.open("w", newline="", encoding="utf-8") as file, log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        rows = csv.writer(file)

        def emit(kind, subject, answer, picks, words, source):
            words = words.replace(str(root), "")
            rows.writerow((kind, subject, arch, answer, picks, words, source))
            file.flush()

        try:
            ASKING[engine](arch, root, code, emit, only)
        except BaseException:
            traceback.print_exc()
            last = traceback.format_exc().strip().splitlines()[-1][:200]
            emit("build", "asking", "unknown", "", f"asking failed: {last}", "")
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("engine", choices=list(ASKING))
    parser.add_argument("release")
    parser.add_argument("--wheels", type=Path, default=Path("build/wheels"))
    parser.add_argument("--architectures", default=",".join([*CUDA, *ROCM]))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "engine_support"))
    parser.add_argument("--only", default="", help="ask subjects that begin so, besides the kept")
    parser.add_argument("--keep", action="store_true", help="ask no architecture again")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    wheels = sorted(arguments.wheels.glob(f"{arguments.engine}-{arguments.release}-*.whl"))
    if not wheels:
        sys.exit(f"{arguments.wheels} holds no wheel of {arguments.engine} {arguments.release}")
    root = arguments.work / f"{arguments.engine}-{arguments.release}"
    root.mkdir(parents=True, exist_ok=True)
    kernel_code = unpack(wheels[0], root)
    if arguments.engine == "sglang":  # whose kernels are wheels of their own
        kernel_code = ask_sglang.kernel_code(arguments.wheels)
    load_before_pretending()
    rows = []
    for arch in arguments.architectures.split(","):
        part = root / f"rows-{arch}{f'-{arguments.only}' if arguments.only else ''}.csv"
        code = (
            code_answer(kernel_code, arch) if arguments.engine == "vllm" and arch in CUDA else None
        )
        if code is not None:
            rows.append(("build", "code", arch, *code))
        if code is not None and code[0] == "no":
            continue
        if arguments.keep and part.exists():
            continue
        began = time.monotonic()
        pid = ask_in_child(
            arguments.engine,
            arch,
            root,
            kernel_code,
            part,
            tuple(filter(None, arguments.only.split(","))),
        )
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() - began > LIMIT_S:
                os.kill(pid, 9)
            time.sleep(0.2)
        print(f"{arch}: {time.monotonic() - began:.0f} s", flush=True)
    for part in sorted(root.glob("rows-*.csv")):
        with part.open(newline="", encoding="utf-8") as file:
            rows += [row for row in csv.reader(file) if row[:2] != ["build", "code"]]
    tables.write_support_table(arguments.engine, arguments.release, rows, arguments.output)


main()
