"""A tool that makes a checkpoint slowly enough to be killed, or a check of one, or a failure.

    fake_tool.py MODE JOB [--verify-only --result PATH]

``slow`` writes half of its output and waits until a file ``go`` lies beside the job, ten minutes at
most.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

LONGEST_S = 600
"""A test that was ended itself leaves nothing behind for longer."""


def main() -> int:
    mode, path = sys.argv[1], Path(sys.argv[2])
    job = json.loads(path.read_text())
    output = Path(job["output"])
    if mode == "check":
        retained = 0.97 if (output / "b.safetensors").is_file() else 0.0
        figures = {"tool": job["tool"], "perplexity": {"retained": retained}}
        Path(sys.argv[5]).write_text(json.dumps(figures))
        return 3 if job["verify"]["least_retained"] > retained else 0
    if mode == "fail":
        sys.stderr.write("no such layer\n")
        return 1
    output.mkdir()
    (output / "config.json").write_text("{}")
    (output / "a.safetensors").write_bytes(b"a" * 100)
    until = time.monotonic() + LONGEST_S
    while mode == "slow" and not path.with_name("go").exists() and time.monotonic() < until:
        time.sleep(0.02)
    (output / "b.safetensors").write_bytes(b"b" * 100)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
