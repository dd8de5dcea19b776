"""Hold training bundles against a tool's own parser: ``PYTHON scripts/training_parsers.py trl
FOLDER < CASES``.

FOLDER holds the tool's package, unpacked without what it depends on; PYTHON has torch, transformers
and Accelerate. Each line is JSON: the bundle's ``files`` by name, the command's ``argv`` with every
placeholder filled, and how many ``devices`` the run has. For each a line comes back, with the
``values`` that the tool understood by the names of its own fields, or why it ``refused``.

``trl``: the parsers of ``trl sft`` and ``trl dpo``, and those of ``accelerate launch`` for what
these hand on. ``axolotl``: its schema with all validators, for an H100. ``llama-factory``: its
``get_train_args``, with transformers' comparison of the trainer's arguments and DeepSpeed's file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib.util
import io
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Case = dict[str, Any]
Values = dict[str, Any]


def plain(value: Any) -> Any:
    """A value as JSON has it; texts for what JSON has not."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def dataclass_fields(*parsed: Any) -> Values:
    """The fields of several dataclasses together."""
    return {
        field.name: plain(getattr(instance, field.name, None))
        for instance in parsed
        for field in dataclasses.fields(instance)
    }


def module(name: str, **contents: Any) -> None:
    """Stand-in for a package that a parser imports and does not need."""
    stub = types.ModuleType(name)
    stub.__dict__.update(contents)
    stub.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]
    sys.modules[name] = stub


def with_gpus() -> None:
    """Checks of transformers that ask the machine for a GPU find one; nothing is started."""
    import transformers.training_args as arguments

    arguments.is_torch_bf16_gpu_available = lambda: True


def trl(case: Case) -> Values:
    """``trl sft`` or ``trl dpo``: both of its parsers, then Accelerate's."""
    import importlib

    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    words = case["argv"][case["argv"].index("trl") + 1 :]
    parser = importlib.import_module(f"trl.scripts.{words[0]}").make_parser()
    *parsed, of_file, rest = parser.parse_args_and_config(
        words[1:], return_remaining_strings=True, separate_remaining_strings=True
    )
    if of_file:
        raise ValueError(f"not known in the file: {of_file}")
    if rest[0] != "--accelerate_config":
        raise ValueError(f"not known: {rest}")
    config = load_config_from_file(rest[1])
    launched = launch_command_parser().parse_args(["--config_file", *rest[1:], "sft.py"])
    extra = set(config.fsdp_config or {}) | set(config.parallelism_config or {})
    if unknown := extra - vars(launched).keys():
        raise ValueError(f"Accelerate does not know {sorted(unknown)}")
    at = ("machine_rank", "main_process_ip", "main_process_port")
    return dataclass_fields(*parsed) | {
        "accelerate": plain(vars(config)),
        "launched": {name: plain(getattr(launched, name)) for name in at},
    }


def module_at(file: Path) -> Any:
    """A module alone, without its package, whose other modules need what is not there."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def axolotl(case: Case) -> Values:
    """Axolotl's schema over the file and the command's own options."""
    import axolotl as axolotl_package
    from axolotl.cli.config_options import AXOLOTL_CONFIG_CLI_OPTIONS
    from axolotl.utils.schemas.config import AxolotlConfigWCapabilities
    from axolotl.utils.schemas.datasets import DPODataset, SFTDataset

    _, file, *words = case["argv"][case["argv"].index("axolotl") + 1 :]
    own_words, started = words[: words.index("--")], words[words.index("--") + 1 :]
    config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    options = {word for option in AXOLOTL_CONFIG_CLI_OPTIONS for word in option[0][0].split("/")}
    for name, value in zip(own_words[::2], own_words[1::2], strict=True):
        if name in options:
            config[name.removeprefix("--").replace("-", "_")] = value
        elif name != "--launcher":
            raise ValueError(f"not an option: {name}")
    schema: type[Any] = AxolotlConfigWCapabilities
    if any("liger" in plugin for plugin in config.get("plugins", ())):  # as plugins are merged in
        liger = Path(axolotl_package.__file__).parent / "integrations" / "liger" / "args.py"
        schema = type("Schema", (module_at(liger).LigerArgs, schema), {})
    names = set(schema.model_fields)
    kind = DPODataset if config.get("rl") else SFTDataset
    unknown = config.keys() - names
    unknown |= {key for rows in config["datasets"] for key in rows.keys() - kind.model_fields}
    if unknown:
        raise ValueError(f"not fields: {sorted(unknown)}")
    config["datasets"] = [kind(**rows) for rows in config["datasets"]]
    gpu = {"bf16": True, "fp8": True, "tf32": True, "n_gpu": case["devices"], "n_node": 1}
    machine = {"torch_version": "2.13.0"}
    parsed = schema(
        **config,
        capabilities=gpu | {"compute_capability": "sm_90"},
        env_capabilities=machine,
    )
    return plain(parsed.model_dump(mode="json", exclude_none=True)) | {"started": started}


def llama_factory(case: Case) -> Values:
    """LLaMA-Factory's arguments, as from its file and the words after it."""
    import transformers.training_args as arguments
    from llamafactory.hparams import get_train_args

    _, file, *words = case["argv"][case["argv"].index("llamafactory-cli") + 1 :]
    config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    config |= dict(word.split("=", 1) for word in words)
    base = arguments.TrainingArguments
    base.parallel_mode = property(lambda _: arguments.ParallelMode.DISTRIBUTED)
    base.world_size = property(lambda _: case["devices"])
    *parsed, _ = get_train_args(config)
    deepspeed = parsed[2].hf_deepspeed_config
    deepspeed.trainer_config_finalize(parsed[2], _Model(), case["steps"])
    return dataclass_fields(*parsed) | {"zero": plain(deepspeed.config)}


class _Colour:
    """No colours: any of them is an empty text."""

    def __getattr__(self, name: str) -> str:
        return ""


class _Model:
    """Enough of a model for DeepSpeed's buffers by its width."""

    config = types.SimpleNamespace(hidden_size=4096)


def stand_in_for(tool: str) -> None:
    """Packages that a tool names at import: colours, an enumeration, names of files."""
    if tool == "axolotl":
        module("colorama", Fore=_Colour(), Style=_Colour(), init=lambda **_: None)
    if tool == "llama-factory":
        modes = enum.Enum("DownloadMode", ["REUSE_DATASET_IF_EXISTS"])
        module("datasets", DownloadMode=modes)
        module("omegaconf", OmegaConf=None)
        module("peft")
        names = {"SAFETENSORS_WEIGHTS_NAME": "adapter.safetensors", "WEIGHTS_NAME": "adapter.bin"}
        module("peft.utils", **names)
        os.environ["DISABLE_VERSION_CHECK"] = "1"  # of these, which are not there


INSTALLED = (("deepspeed", "0.18.9"), ("bitsandbytes", "0.50.2"), ("liger-kernel", "0.8.5"))


def installed(folder: Path) -> None:
    """Install what is asked for its version only, before transformers looks for it."""
    for name, version in INSTALLED:
        module_name = name.replace("-", "_")
        (folder / f"{module_name}.py").write_text("")
        info = folder / f"{module_name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sys.path.insert(0, str(folder))


CHECKS: dict[str, Callable[[Case], Values]] = {
    "trl": trl,
    "axolotl": axolotl,
    "llama-factory": llama_factory,
}


@contextlib.contextmanager
def bundle(case: Case) -> Iterator[Case]:
    """The case with its files in a folder, which ``${root}`` and ``${run}`` become."""
    with tempfile.TemporaryDirectory() as name:
        for path, text in case["files"].items():
            file = Path(name) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        places = {"${root}": name, "${run}": f"{name}/run"}
        words = case["argv"]
        for mark, place in places.items():
            words = [word.replace(mark, place) for word in words]
        yield {**case, "argv": words}


def answer_of_tool(check: Callable[[Case], Values], case: Case) -> Values:
    """Return what a tool understood of a case, or why it refused it."""
    output = io.StringIO()
    try:
        with (
            bundle(case) as at,
            contextlib.redirect_stderr(output),
            contextlib.redirect_stdout(output),
        ):
            return {"values": check(at)}
    except SystemExit:
        return {"refused": output.getvalue()[-1000:]}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:2000]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tool", choices=sorted(CHECKS))
    parser.add_argument("folder", type=Path, help="the tool's package, unpacked")
    options = parser.parse_args()
    sys.path.insert(0, str(options.folder))
    cases = [json.loads(line) for line in sys.stdin]
    with tempfile.TemporaryDirectory() as stand_ins:
        installed(Path(stand_ins))
        with_gpus()
        stand_in_for(options.tool)
        for case in cases:
            print(json.dumps(answer_of_tool(CHECKS[options.tool], case)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
