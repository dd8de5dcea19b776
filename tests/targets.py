"""Contexts for tests of targets and monitoring: fixed estimates, launches as engines make them."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.launch.process import Launch, Process
from recipe_core.targets import Context, Image, Parameters, target_files
from recipe_core.targets.pod import object_name

MODEL = "meta-llama/Llama-3.1-70B-Instruct"
DIGEST = "sha256:" + "5b8511ec" * 8
ESTIMATE: dict[str, Any] = {
    "memory": {
        "weights_bytes": 17.6e9,
        "kv_needed_bytes": 3.4e9,
        "total_bytes": 26.6e9,
        "kv_cache_bytes": 54.9e9,
        "max_concurrency": 1047,
    },
    "serving": {
        "ttft_s": 0.284,
        "tpot_s": 0.0239,
        "request_latency_s": 6.37,
        "output_tokens_per_s": 2573.0,
    },
    "bands": {
        "ttft_s": [0.207, 0.798],
        "tpot_s": [0.0174, 0.047],
        "output_tokens_per_s": [1672.0, 3267.0],
    },
}
WORKLOAD = {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64}


def options(**values: Any) -> dict[str, Any]:
    """Options of vLLM by name, as a launch records them."""
    return {"host": "${host}", "port": "${port}", "served_model_name": "llama"} | values


def argv(values: dict[str, Any]) -> tuple[str, ...]:
    """The options as words."""
    words = [
        word
        for name, value in values.items()
        if value is not False
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return ("vllm", "serve", "${model}", *(word for word in words if word != "True"))


def launched(processes: tuple[Process, ...], values: dict[str, Any], **parts: Any) -> Launch:
    return Launch(processes, values, "/health", 1800, "/v1/completions", "llama", **parts)


def single(devices: int = 8, **more: Any) -> Launch:
    """One server on one node."""
    values = (
        options(
            tensor_parallel_size=devices,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            max_num_seqs=256,
        )
        | more
    )
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    return launched(
        (Process("server-0", argv(values), environment, 0, tuple(range(devices))),), values
    )


def replicas(count: int = 4, tp: int = 2) -> Launch:
    """Servers that know nothing of each other, on consecutive ports of one node."""
    values = options(tensor_parallel_size=tp, pipeline_parallel_size=1, data_parallel_size=1)
    processes = [
        Process(f"server-{n}", argv(values), {}, n, tuple(range(n * tp, n * tp + tp)), group=n)
        for n in range(count)
    ]
    return launched(tuple(processes), values)


def spread(nodes: int = 2, tp: int = 8) -> Launch:
    """One engine over several nodes, its workers numbered."""
    values = options(tensor_parallel_size=tp, pipeline_parallel_size=nodes, data_parallel_size=1)
    processes = []
    for node in range(nodes):
        node_values = values | {
            "nnodes": nodes,
            "node_rank": node,
            "master_addr": "${head}",
            "headless": node > 0,
        }
        processes.append(
            Process(
                f"node-{node}",
                argv(node_values),
                {},
                0,
                tuple(range(tp)),
                node,
                "worker" if node else "server",
            )
        )
    return launched(tuple(processes), values)


def pools(nodes: int = 1) -> Launch:
    """Prefill and decode servers behind a router; on two nodes each pool has one."""
    values = options(tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=1)
    last = nodes - 1

    def pool(name: str, offset: int, node: int, devices: tuple[int, ...]) -> Process:
        environment = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": f"${{node{node}}}",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(5500 + 100 * offset),
        }
        return Process(
            f"{name}-0", argv(values), environment, offset, devices, node, name, offset - 1
        )  # type: ignore[arg-type]

    servers = [
        word
        for name, node, offset in (("prefill", 0, 1), ("decode", last, 2))
        for word in (f"--{name}", f"http://${{node{node}}}:${{port{offset}}}")
    ]
    router = Process(
        "router",
        ("vllm-router", "--host", "${host}", "--port", "${port}", *servers),
        {},
        0,
        (),
        0,
        "router",
        2,
    )
    processes = (
        pool("prefill", 1, 0, (0, 1, 2, 3)),
        pool("decode", 2, last, (4, 5, 6, 7) if nodes == 1 else (0, 1, 2, 3)),
        router,
    )
    return launched(processes, values)


def training(nodes: int = 2, devices: int = 8) -> Launch:
    """One torchrun a node."""
    words = (
        "torchrun",
        "--nnodes",
        str(nodes),
        "--nproc-per-node",
        str(devices),
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "recipe",
    )
    words += (
        "--rdzv-endpoint",
        "${head}:29500",
        "${root}/trainer/train.py",
        "--config",
        "${root}/training.yaml",
        "--folder",
        "${run}",
    )
    processes = [
        Process(
            f"node-{node}",
            words,
            {"OMP_NUM_THREADS": "1"},
            0,
            tuple(range(devices)),
            node,
            "trainer",
        )
        for node in range(nodes)
    ]
    files = {"training.yaml": "steps: 10\n", "trainer/train.py": "print('a trainer')\n"}
    return Launch(
        tuple(processes), {"tensor_parallel": devices}, "", 0, "", "", files=files, kind="training"
    )


NVIDIA = {
    "device": "h100-sxm",
    "device_names": ("NVIDIA H100 80GB HBM3", "h100"),
    "vendor": "nvidia",
    "runtime": "cuda",
    "architecture": "sm_90",
    "device_memory_bytes": 85520809984,
    "network": "ib-ndr-400",
    "network_title": "InfiniBand NDR, 400 Gb/s a device",
}
AMD = {
    "device": "mi300x",
    "device_names": ("AMD Instinct MI300X", "AMD Instinct MI300X OAM", "mi300"),
    "vendor": "amd",
    "runtime": "rocm",
    "architecture": "gfx942",
    "device_memory_bytes": 206141652992,
    "network": "roce-400",
    "network_title": "RDMA over converged Ethernet, 400 Gb/s a device",
}
VLLM = Image(reference="vllm/vllm-openai:v0.32.0", digest=DIGEST)
ROCM = Image(reference="vllm/vllm-openai-rocm:v0.32.0")


def context(
    launch: Launch | None = None, hardware: dict[str, Any] = NVIDIA, **parts: Any
) -> Context:
    """A recipe of a model of 70 billion parameters; ``parts`` replace fields."""
    launch = launch or single()
    fields: dict[str, Any] = {
        "name": "llama-3-1-70b-h100-sxm-tp8-vllm",
        "kind": launch.kind,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "launch": launch,
        "parameters": Parameters(),
        "model": MODEL,
        "devices_per_node": 8,
        "host_memory_bytes": 2_200_000_000_000,
        "image": VLLM,
        "weights_bytes": 141_107_412_992,
        "estimate": ESTIMATE,
        "workload": WORKLOAD,
        "limits": {"tpot_ms": 40.0},
        **hardware,
    }
    return Context(**fields | parts)


def with_parameters(value: Context, **parts: Any) -> Context:
    return replace(value, parameters=Parameters(**value.parameters.model_dump() | parts))


EXAMPLES: dict[str, Context] = {
    "nvidia-one-node": with_parameters(context(), max_replicas=4, token_secret="hf-token"),
    "amd-one-node": with_parameters(
        context(
            replicas(),
            AMD,
            name="qwen3-30b-a3b-mi300x-tp2-dp4-vllm",
            model="Qwen/Qwen3-30B-A3B",
            image=ROCM,
            weights_bytes=61_064_245_248,
        )
    ),
    "two-nodes": context(
        spread(),
        name="llama-3-1-405b-h100-sxm-tp8-pp2-vllm",
        model="meta-llama/Llama-3.1-405B-Instruct",
    ),
    "pools": context(pools(), name="llama-3-1-70b-h100-sxm-tp4-pools-vllm"),
    "pools-two-nodes": context(
        pools(2), name="llama-3-1-70b-h100-sxm-tp4-pools-2-vllm", devices_per_node=4
    ),
    "training-two-nodes": context(
        training(),
        name="llama-3-1-8b-training",
        image=Image(reference="pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"),
        engine="torch",
    ),
}


def needs(program: str) -> Any:
    """Skips a test, saying so, where a system program is missing."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def documents(value: Context, *suffixes: str) -> dict[str, Any]:
    """The parsed YAML and JSON files of the context's targets whose path ends in ``suffixes``."""
    texts = {
        path: text
        for path, text in target_files(value).items()
        if path.endswith((".yaml", ".json"))
    }
    return {
        path: parse_yaml(text, path)
        for path, text in texts.items()
        if not suffixes or path.endswith(suffixes)
    }


def write_bundle(value: Context, folder: Path) -> None:
    """The files of the targets, and those that processes read, as a bundle has them."""
    for path, text in (target_files(value) | value.mounted).items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


GOLDENS = Path(__file__).with_name("goldens") / "targets"
WHOLE = ("nvidia-one-node", "pools-two-nodes", "training-two-nodes")
"""Examples of which every file is kept for review; between them they have every target."""


def shape(value: Context, text: str) -> str:
    """A file with names, digests, the model, the image and numbers of its deployment blanked."""
    image = value.image
    names = (
        value.name,
        object_name(value),
        value.model,
        image and image.reference,
        image and image.digest,
    )
    for name in filter(None, names):
        text = text.replace(name, "NAME")
    return re.sub(r"\b[0-9a-f]{12}\b|\d+(\.\d+)?(e[+-]?\d+)?", "0", text)


def reviewed(name: str) -> dict[str, str]:
    """The goldens of an example: all files of ``WHOLE``, of others those that read differently.

    A file is left out where an example of ``WHOLE`` has the same one but for names and numbers. A
    file that begins to differ in more becomes a golden that is missing, which fails the test.
    """
    files = target_files(EXAMPLES[name])
    if name in WHOLE:
        return files
    known: dict[str, set[str]] = {}
    for other in WHOLE:
        for path, text in target_files(EXAMPLES[other]).items():
            known.setdefault(path, set()).add(shape(EXAMPLES[other], text))
    return {
        path: text
        for path, text in files.items()
        if shape(EXAMPLES[name], text) not in known.get(path, ())
    }


def main() -> None:
    """Rewrite the goldens: ``python -m tests.targets``; review the changes before committing."""
    shutil.rmtree(GOLDENS, ignore_errors=True)
    for name in EXAMPLES:
        for path, text in reviewed(name).items():
            place = GOLDENS / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)


if __name__ == "__main__":
    main()
