"""``python launch.py COMMAND``: preflight, up, bench, status, restart, down, logs, doctor.

Exit codes: 0 done; 1 the answer is no (a check failed, a server died, not running); 2 bad input;
130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import commands, compress, doctor, logs
from .errors import InputError, LauncherError, file_error
from .limits import OPTIONS, Supervision, option_of
from .plan import check_port_number
from .report import complain, flushed, print_any_letter, print_json
from .request import Request
from .signals import interruptible

_COMMANDS: dict[str, tuple[Callable[[Request], int], str]] = {
    "preflight": (commands.run_preflight, "check files, machine, engine, model and ports"),
    "compress": (
        compress.run_compress,
        "make the checkpoint that the recipe serves, and hold it against its base",
    ),
    "up": (
        commands.run_up,
        "start the servers and wait until they answer, or start the training run",
    ),
    "bench": (
        commands.run_bench,
        "measure against the prediction: servers with real requests, training by its steps",
    ),
    "status": (commands.run_status, "show what runs, as JSON"),
    "restart": (
        commands.run_restart,
        "restart one replica after the other, each healthy before the next",
    ),
    "down": (commands.run_down, "stop what runs"),
    "logs": (logs.run_logs, "show the ends of the logs"),
    "doctor": (doctor.run_doctor, "pack what a report needs, without secrets"),
}
# What the launcher calls itself.
_HIDDEN: dict[str, Callable[[Request], int]] = {"keep": commands.run_keep_command}


class _Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message + ".", hint=f"See: {self.prog} --help")


def main(argv: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run one command on the bundle in ``root``, by default the one this package is part of."""
    words = list(sys.argv[1:] if argv is None else argv)
    print_any_letter()
    code = _run_launcher_command(words, root or Path(__file__).parent.parent)
    return code if flushed() else code or 1


def _run_launcher_command(words: list[str], root: Path) -> int:
    try:
        with interruptible():
            request = _parse_launcher_request(words, root.resolve())
            run = _HIDDEN.get(request.command) or _COMMANDS[request.command][0]
            return run(request)
    except LauncherError as error:
        return _report(error, as_json="--json" in words)
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        return 1
    except OSError as error:  # a file or folder of the bundle cannot be used
        return _report(file_error(error), as_json="--json" in words)


def _report(error: LauncherError, *, as_json: bool) -> int:
    complain(f"launch: {error}")
    if error.detail:
        complain(error.detail)
    if as_json:
        with suppress(OSError):
            print_json(error.to_json())
    return error.exit_code


def _parse_launcher_request(words: list[str], root: Path) -> Request:
    options: dict[str, Any] = vars(_launcher_parser().parse_args(words))
    if options.get("port") is not None:
        check_port_number(options["port"], "--port")
    if options.get("metrics_port"):
        check_port_number(options["metrics_port"], "--metrics-port")
    options["limits"] = {name: options.pop(name) for name in OPTIONS if name in options}
    return Request(root=root, **options)


def _launcher_parser() -> argparse.ArgumentParser:
    # SUPPRESS: an option may come before or after the command; its absence in one place must not
    # undo the other.
    shared = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    _add_shared(shared)
    parser = _Parser(
        prog="launch.py",
        description="Start, check and measure the deployment in this folder.",
        parents=[shared],
    )
    actions = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    subs = {
        name: actions.add_parser(
            name, help=text, description=text, parents=[shared], argument_default=argparse.SUPPRESS
        )
        for name, (_, text) in _COMMANDS.items()
    }
    for name in _HIDDEN:
        subs[name] = actions.add_parser(name, parents=[shared], argument_default=argparse.SUPPRESS)
    _add_compress(subs["compress"])
    _add_start(subs)
    _add_stop(subs)
    _add_reading(subs)
    _add_bench(subs["bench"])
    return parser


Subparsers = Mapping[str, argparse.ArgumentParser]


def _add_shared(shared: argparse.ArgumentParser) -> None:
    """Options of every command."""
    shared.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    shared.add_argument(
        "--model", metavar="FOLDER|NAME", help="serve this model instead of the recipe's"
    )
    shared.add_argument("--host", help="listen on this address")
    shared.add_argument(
        "--port", type=int, help="listen on this port (servers after the first count up from it)"
    )
    shared.add_argument("--node", type=int, metavar="N", help="which node of the bundle this is")
    shared.add_argument(
        "--head",
        metavar="ADDRESS",
        help="address of node 0, or of all nodes with commas between where pools span nodes",
    )


def _add_compress(compress: argparse.ArgumentParser) -> None:
    """Options of what makes a checkpoint; ``--model`` names its base."""
    compress.add_argument(
        "--python", metavar="PYTHON", help="Python of the environment that has the tool"
    )
    compress.add_argument("--again", action="store_true", help="make it again, and replace it")
    compress.add_argument(
        "--no-verify", action="store_true", help="do not hold the result against its base"
    )
    compress.add_argument(
        "--anyway", action="store_true", help="try it with less memory or disk than estimated"
    )


def _add_start(subs: Subparsers) -> None:
    """Options of what starts processes."""
    subs["up"].add_argument(
        "--foreground",
        action="store_true",
        help="stay and supervise; SIGTERM lets requests finish, Ctrl-C stops everything",
    )
    subs["up"].add_argument(
        "--compress", action="store_true", help="make the checkpoint first where it is missing"
    )
    subs["up"].add_argument(
        "--no-keep", action="store_true", help="leave no keeper: nobody restarts what fails"
    )
    subs["keep"].add_argument("--strict", action="store_true")
    subs["keep"].add_argument("--data")
    for name in ("up", "keep", "restart"):
        _add_limits(subs[name])
    subs["up"].add_argument(
        "--data", metavar="FILE", help="train on this text (.txt, .jsonl) instead of the bundle's"
    )
    for name in ("up", "bench"):
        subs[name].add_argument(
            "--strict",
            action="store_true",
            help="start what the recipe decided or nothing",
        )
        subs[name].add_argument(
            "--choice", metavar="NAME", help="start this choice (launch.json lists them)"
        )
        subs[name].add_argument(
            "--timeout",
            type=_positive(float),
            metavar="S",
            help="seconds to wait until the servers answer",
        )


def _add_stop(subs: Subparsers) -> None:
    """Options of what stops and restarts them."""
    subs["restart"].add_argument(
        "names", nargs="*", metavar="NAME", help="only these servers (default: every replica)"
    )
    subs["restart"].add_argument(
        "--timeout", type=_positive(float), metavar="S", help="seconds until all are restarted"
    )
    subs["down"].add_argument(
        "--drain",
        nargs="?",
        type=_positive(float),
        const=0.0,
        metavar="S",
        help="let running requests finish first, for S seconds at most (default: the bundle's)",
    )
    subs["down"].add_argument(
        "--checkpoint", action="store_true", help="let a training run save a checkpoint first"
    )


def _add_reading(subs: Subparsers) -> None:
    """Options of what only looks."""
    subs["logs"].add_argument(
        "name", nargs="?", metavar="NAME", help="of this process, or: keeper, events"
    )
    subs["logs"].add_argument(
        "--follow", action="store_true", help="go on with what comes, until Ctrl-C"
    )
    subs["logs"].add_argument(
        "--lines",
        type=_parse_option_count,
        metavar="N",
        help=f"lines of each log (default {logs.LINES})",
    )
    subs["doctor"].add_argument(
        "--output", "-o", metavar="FILE", help="write this .tar.gz instead of one in run/"
    )


def _add_bench(bench: argparse.ArgumentParser) -> None:
    """Add the options of what is measured."""
    bench.add_argument(
        "--steps", type=_positive(int), metavar="N", help="how many training steps to measure"
    )
    bench.add_argument(
        "--requests", type=_positive(int), metavar="N", help="how many requests to measure"
    )
    bench.add_argument(
        "--concurrency", type=_positive(int), metavar="C", help="how many requests at once"
    )
    bench.add_argument(
        "--duration-limit",
        type=_positive(float),
        metavar="S",
        help="send no new request after this many seconds",
    )


def _parse_option_count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _add_limits(command: argparse.ArgumentParser) -> None:
    """The limits of supervision; their defaults are those of the bundle, else the usual ones."""
    command.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="port of the keeper's /healthz and /metrics on the loopback; 0 for none",
    )
    usual = Supervision()
    for name, text in OPTIONS.items():
        counts = name == "crash_budget"
        command.add_argument(
            option_of(name),
            dest=name,
            type=_parse_option_count if counts else _positive(float),
            metavar="N" if counts else "S",
            help=f"{text} (usually {getattr(usual, name):g})",
        )


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return convert
