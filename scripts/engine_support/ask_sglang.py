"""Backends that SGLang's own argument code takes, by architecture, asked without a GPU.

Only ``ServerArgs`` is resolved and checked: no model is built, so that a missing kernel or a
refusal inside a layer is not seen. "no": the arguments are refused, or a chosen FlashMLA or
FlashAttention 3 has no code for the architecture in the kernel wheels that lie beside SGLang's.
"yes": every chosen attention backend is documented for the architecture (``RUNS_ON``) and the
attention is one that the documentation lists for it, or the model is (``COOKBOOK``). What a rank's
share may cut was read in the sources (``CUTS``). All else is "unknown".
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path

import machine
from ask_vllm import judge
from machine import CUDA, Finder, capability, compiled
from questions import FORMATS, KINDS, MODELS

PACKAGES = ("torchvision", "torchaudio", "sgl_kernel", "decord", "torchcodec", "flash_mla")
PACKAGES += ("torch_memory_saver", "flash_attn", "flash_attn_interface", "kernels", "gguf")
PACKAGES += ("fast_hadamard_transform", "IPython", "vllm")
CACHES = {"auto": "auto", "fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"}
AMPERE = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90")
BLACKWELL = ("sm_100", "sm_103")
RUNS_ON = {
    "fa3": AMPERE,
    "flashinfer": (*AMPERE, *BLACKWELL, "sm_75", "sm_120", "sm_121"),
    "triton": (*AMPERE, *BLACKWELL, "sm_75", "sm_120", "sm_121", "gfx942", "gfx950"),
    "trtllm_mha": BLACKWELL,
    "trtllm_mla": BLACKWELL,
    "cutlass_mla": BLACKWELL,
    "flashmla": ("sm_90",),
    "aiter": ("gfx942", "gfx950"),
}
"""Architectures that the documentation of attention backends names for each
(https://docs.sglang.ai/advanced_features/attention_backend.html and the platforms' pages)."""
PLAIN = ("gqa 128", "gqa 64 sinks", "mla")
"""Attention that the same page lists by backend; hybrids and sparse attention it does not."""
COOKBOOK = {
    "sparse-mla": ("sm_90", *BLACKWELL, "gfx942", "gfx950"),
    "compressed": ("sm_90", *BLACKWELL),
    "delta": ("sm_90", *BLACKWELL, "gfx950"),
    "mamba": ("sm_90", *BLACKWELL),
}
"""Architectures that the cookbook (https://docs.sglang.io/cookbook), or a published run, names for
DeepSeek-V3.2, DeepSeek-V4, Qwen3.5 and Nemotron 3."""
ALIGNED = "The input size is not aligned with the quantized weight shape."
FINER = "marlin experts need whole groups; moe_wna16 halves them until they fit"
CUTS = {
    "dense fp8-block": ("no", "is not divisible by weight quantization block_k", "fp8_utils.py"),
    "experts fp8-block": ("no", "is not divisible by weight quantization block_k", "fp8_utils.py"),
    "dense awq-g128": ("no", ALIGNED, "awq/schemes/awq_linear.py"),
    "dense gptq-g128": ("no", ALIGNED, "gptq/schemes/gptq_linear.py"),
    "dense ct-int4-g128": (
        "no",
        "assert input_size_per_partition % group_size == 0",
        "compressed_tensors_wNa16.py",
    ),
    "dense modelopt-nvfp4": ("no", "input_size_per_partition % group_size", "modelopt_quant.py"),
    "experts awq-g128": ("yes", FINER, "moe_wna16.py"),
    "experts gptq-g128": ("yes", FINER, "moe_wna16.py"),
    "experts mxfp4": ("yes", "blocks are shared out whole", "srt/models/gpt_oss.py"),
}
"""What becomes of a share that cuts a group or block; files of ``srt/layers/quantization``."""
KEYS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
KEYS += ("moe_runner_backend", "kv_cache_dtype", "page_size", "fp8_gemm_runner_backend")
KEYS += ("linear_attn_backend", "nsa_prefill_backend", "nsa_decode_backend", "quantization")
KEYS += ("dsa_prefill_backend", "dsa_decode_backend")
UNBUILT = "arguments accepted; no model was built"
CHECKS = "srt/server_args.py:check_server_args"


def cases():
    """Kind, subject, model, format and cache of every question."""
    for kind, models in KINDS.items():
        for name in models:
            for cache in CACHES:
                yield "attention", f"{kind} {cache}", name, "bf16", cache
    for cache in ("auto", "fp8"):
        yield "attention", f"compressed {cache}", "DeepSeek-V4-Flash", None, cache
    for form in FORMATS:
        yield "weights", f"dense {form}", "Llama-3.1-8B", form, "auto"
        yield "weights", f"experts {form}", "Qwen3-30B-A3B", form, "auto"
    yield "weights", "experts mxfp4", "gpt-oss-120b", None, "auto"


def load_before_pretending(transformers):
    """Import what takes torchvision for real before that is a stub."""
    for name in ("AutoImageProcessor", "AutoModel", "AutoModelForCausalLM", "AutoProcessor"):
        getattr(transformers, name)


def kernel_code(wheels):
    """Architectures that the kernel wheels beside SGLang's hold FlashMLA and FA3 code for."""
    architectures = {"flashmla": set(), "fa3": set()}
    names = [*wheels.glob("sglang_kernel-*.whl"), *wheels.glob("sgl_flash_mla-*.whl")]
    for wheel in names:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".so") and re.search("flash_?mla|flash_ops", name):
                    family = "fa3" if "flash_ops" in name else "flashmla"
                    architectures[family] |= set(compiled(archive.read(name))["archs"])
    return architectures


def missing(picks, arch, code):
    """A chosen backend whose compiled module has nothing that this architecture can load."""
    major, minor = capability(arch)
    for family, archs in code.items():
        cubins = [int(architecture[3:]) for architecture in archs if architecture.startswith("sm_")]
        loads = any(
            architecture == major * 10 + minor
            or (major < 9 and architecture // 10 == major and architecture % 10 <= minor)
            for architecture in cubins
        )
        if arch in CUDA and archs and family in picks and not loads:
            listed = ", ".join(sorted(archs))
            return f"arguments accepted, but its {family} is compiled for {listed} only"
    return None


def accepted(subject, arch, view, picks):
    """The answer where arguments are accepted, by what the documentation says of the choice."""
    backends = {getattr(view, key, None) for key in KEYS[:3]} - {None}
    plain = subject.rsplit(" ", 1)[0] in PLAIN and not subject.endswith("nvfp4")
    documented = all(arch in RUNS_ON.get(name, ()) for name in backends)
    if plain and backends and documented:
        return "yes", picks, "", "documentation of attention backends"
    if arch in COOKBOOK.get(subject.split(" ")[0], ()) and not subject.endswith("nvfp4"):
        return "yes", picks, "", "cookbook"
    return "unknown", picks, UNBUILT, CHECKS


def resolve(config, cache, finder):
    """Server arguments for a config, resolved and checked; a package that lacks is a stub."""
    from sglang.srt.server_args import ServerArgs

    with tempfile.TemporaryDirectory(prefix="ask") as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        for _ in range(15):
            try:
                args = ServerArgs(
                    model_path=folder,
                    device="cuda",
                    kv_cache_dtype=CACHES[cache],
                    skip_tokenizer_init=True,
                    mem_fraction_static=0.85,
                )
                for step in ("resolve_once", "check_server_args"):
                    if hasattr(args, step):
                        getattr(args, step)()
            except ModuleNotFoundError as error:
                finder.stubs = (*finder.stubs, error.name.split(".")[0])
                continue
            break
    with contextlib.suppress(Exception):
        from sglang.srt.arg_groups.attention_hook import resolved_view

        return resolved_view(args)
    return args


def ask(arch, root, code, emit, only=()):
    """Ask everything on one architecture, or subjects that begin with one of ``only``.

    ``emit`` takes kind, subject and the answer's parts.
    """
    sys.path.insert(0, str(root))
    machine.STUBS = (*machine.STUBS, *PACKAGES)
    machine.pretend(arch, {})
    finder = next(
        finder_class for finder_class in sys.meta_path if isinstance(finder_class, Finder)
    )
    from sglang.srt.utils import common

    common.get_amdgpu_memory_capacity = common.get_nvgpu_memory_capacity = lambda *a: 192 * 1024
    for subject, (answer, words, file) in () if only else CUTS.items():
        place = file if file.startswith("srt/") else f"srt/layers/quantization/{file}"
        emit("cut", subject, answer, "", words, place)
    for kind, subject, name, form, cache in cases():
        if only and not subject.startswith(tuple(only)):
            continue
        config = dict(MODELS[name])
        if form:
            config.pop("quantization_config", None)
            if FORMATS[form]:
                config["quantization_config"] = FORMATS[form]
        try:
            silent = io.StringIO()
            with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
                view = resolve(config, cache, finder)
            settings = ((key, getattr(view, key, None)) for key in KEYS)
            picks = "; ".join(f"{key}={v}" for key, v in settings if v not in (None, "auto"))
            if lacks := missing(picks, arch, code):
                emit(kind, subject, "no", picks, lacks, "kernel wheel")
            elif kind == "attention":  # of weights, arguments alone tell nothing
                emit(kind, subject, *accepted(subject, arch, view, picks))
        except BaseException as error:
            answer, words, where = judge(error, "sglang")
            emit(kind, subject, answer, "", words, where)
