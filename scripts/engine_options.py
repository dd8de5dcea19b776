"""Write an engine's option table from its own argument parser: ``python scripts/engine_options.py
vllm > FILE``.

Run it with a Python that has the engine at the version to describe (vLLM: the CPU build will do;
SGLang, the routers and Dynamo need no GPU to make their parsers). What an option means for an
estimate is not here: that is written by hand in ``recipe_core/engines/options/<engine>.yaml``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, get_args

import yaml

Made = tuple[argparse.ArgumentParser, dict[str, list[str]]]


VLLM_ARGUMENTS = (
    "vllm.entrypoints.common.cli_args",  # from 0.33
    "vllm.entrypoints.launchers.cli_args",  # from 0.29
    "vllm.entrypoints.openai.cli_args",
)


def vllm_arguments() -> Any:
    """The module with the arguments of ``vllm serve``, wherever a release keeps it."""
    name = next(name for name in VLLM_ARGUMENTS if _exists(name))
    return importlib.import_module(name)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor its package
        return False


def vllm_parser() -> Made:
    """The parser of ``vllm serve``, and values that are checked only after parsing."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = vllm_arguments().make_arg_parser(FlexibleArgumentParser())
    cache = importlib.import_module("vllm.config.cache")
    return parser, {
        "--quantization": [*QUANTIZATION_METHODS],
        "--kv-cache-dtype": [*get_args(cache.CacheDType)],
    }


def sglang_parser() -> Made:
    """The parser of ``sglang serve``."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser, {}


def router_parser(module: str) -> Callable[[], Made]:
    """The parser of ``vllm-router`` or ``sglang_router.launch_router``."""

    def made() -> Made:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"{module}.router_args").RouterArgs.add_cli_args(parser)
        return parser, {}

    return made


def dynamo_parser() -> Made:
    """Return what ``dynamo.vllm`` and ``dynamo.frontend`` take besides vLLM's own options."""
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup
    from dynamo.frontend.frontend_args import FrontendArgGroup
    from dynamo.vllm.backend_args import DynamoVllmArgGroup

    parser = argparse.ArgumentParser(conflict_handler="resolve")
    for group in (FrontendArgGroup(), DynamoRuntimeArgGroup(), DynamoVllmArgGroup()):
        group.add_arguments(parser)
    return parser, {}


PARSERS: dict[str, Callable[[], Made]] = {
    "vllm": vllm_parser,
    "sglang": sglang_parser,
    "vllm-router": router_parser("vllm_router"),
    "sglang-router": router_parser("sglang_router"),
    "dynamo": dynamo_parser,
}
DISTRIBUTIONS = {"dynamo": "ai-dynamo"}

# How the engines name the functions that read a value: type, and what is accepted besides.
READERS: dict[str, dict[str, Any]] = {
    "int": {"type": "int"},
    "float": {"type": "float"},
    "str": {"type": "str"},
    "loads": {"type": "json"},
    "parse_dataclass": {"type": "json"},
    "json_list_type": {"type": "json"},
    "human_readable_int": {"type": "int", "scaled": True},
    "parse_cuda_graph_config_arg": {"type": "json"},
    "<lambda>": {"type": "str", "folded": True},
    "human_readable_int_or_auto": {"type": "int", "scaled": True, "words": ["auto"]},
}
SWITCHES = {
    "_StoreTrueAction",
    "_StoreFalseAction",
    "_StoreConstAction",
    "BooleanOptionalAction",
    "EnableDisableAction",
    "DeprecatedStoreTrueAction",
    "DeprecatedAction",
}


def innermost(kind: Any) -> Any:
    """The function that reads a value: engines wrap it to accept "None", and the like."""
    inner = [
        cell.cell_contents
        for cell in getattr(kind, "__closure__", None) or ()
        if callable(cell.cell_contents)
    ]
    wrapped = getattr(kind, "__name__", "") in ("_optional_type", "_parse_type")
    return innermost(inner[0]) if wrapped and inner else kind


def reader(kind: Any) -> str:
    """The name of the function that reads a value."""
    return getattr(innermost(kind), "__name__", "str")


def json_keys(kind: Any) -> list[str]:
    """The keys of a JSON value that is parsed into a dataclass (a default of vLLM's parser)."""
    classes = [
        default
        for default in getattr(innermost(kind), "__defaults__", None) or ()
        if dataclasses.is_dataclass(default)
    ]
    return [field.name for field in dataclasses.fields(classes[0]) if field.init] if classes else []


def facts(
    action: argparse.Action, after: dict[str, list[str]]
) -> tuple[str, dict[str, Any]] | None:
    """An option's flag and non-default ``Option`` fields; None for positional words and help."""
    negative = set(getattr(action, "negative_option_strings", ()))
    flags = [
        flag
        for flag in action.option_strings
        if flag not in negative
        and (not flag.startswith("--no-") or f"--{flag[5:]}" not in action.option_strings)
    ]
    if not flags or "--help" in flags:
        return None
    flag, *also = flags
    if type(action).__name__ in SWITCHES or action.nargs == 0:
        out: dict[str, Any] = {"type": "switch"}
        if len(flags) < len(action.option_strings) or negative:
            out["negated"] = True
        # vLLM 0.33: --enable-x goes with --disable-x besides --no-enable-x
        inverse = sorted(negative - {f"--no-{flag[2:]}"})
        out |= {"inverse": inverse} if inverse else {}
    else:
        out = dict(READERS.get(reader(action.type), {"type": "str"}))
        out |= {"many": True} if action.nargs in ("+", "*") else {}
        out |= {"repeated": True} if type(action).__name__ == "_AppendAction" else {}
        out |= {"optional": True} if action.nargs in ("?", "*") else {}
        out |= {"keys": keys} if (keys := json_keys(action.type)) else {}
        listed = action.choices or after.get(flag, ())
        choices = [str(choice) for choice in listed if choice is not None]
        if isinstance(listed, set | frozenset):
            choices.sort()  # else another order in each run
        out |= {"choices": choices} if choices else {}
        if not choices:
            out.pop("folded", None)
    if also:
        out["also"] = also
    if "eprecated" in (action.help or "")[:12] or type(action).__name__.startswith("Deprecated"):
        out["deprecated"] = True
    return flag, out


def parser_release(engine: str) -> str:
    """The release whose parser was read, which its sources know best.

    Sources of another release may stand before an installed one on the path of modules.
    """
    module = sys.modules.get(engine)
    version = getattr(module, "__version__", None) or importlib.metadata.version(
        DISTRIBUTIONS.get(engine, engine)
    )
    return str(version).split("+")[0]


def main(engine: str) -> None:
    parser, after = PARSERS[engine]()
    options = dict(sorted(filter(None, (facts(action, after) for action in parser._actions))))
    version = parser_release(engine)
    print(f"# Written by: python scripts/engine_options.py {engine}")
    print(f"schema_version: 1\nengine: {engine}\nversion: {version}\noptions:")
    for flag, values in options.items():
        text = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=1 << 20)
        print(f"  {flag}: {text.strip()}")


if __name__ == "__main__":
    main(sys.argv[1])
