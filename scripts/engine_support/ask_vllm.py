"""Starts that vLLM's own Python code allows, by architecture, asked without a GPU.

Every model is built on the meta device from a config cut to a few layers (a fake process group, so
any tensor-parallel size): config checks, attention selector, expert oracle, choice of linear
kernels, checks of groups and blocks are the engine's. Each chosen attention backend is asked once
more for the capability, and its metadata builder is made. "no": the engine raised in a frame of
its own, or a backend refuses the capability; an error of the fakes is "unknown", as is a share that
cuts a quantisation group without complaint and an AITER backend where AITER does not work. "yes"
means that it constructs: weights are not loaded and no kernel runs.
"""

import collections
import contextlib
import enum
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from machine import CUDA, ROCM, Finder, capability, pretend
from questions import FORMATS, MODELS, questions, selections

REFUSALS = ("ValueError", "RuntimeError", "NotImplementedError", "AssertionError")
REFUSALS += ("ValidationError",)
FAKE = (
    "rebuild C|could not convert|failed to be inspected|Install a |dependencies not available"
    "|package not available|not installed|pip install|not initialized|not linked with|FakeTensor"
    "|meta tensor|no fallback function|Cannot access accelerator|Stub|Anything|No module named"
    "|cannot import|torch.lib|c10|Triton Error|libcuda|nvcc|Parameter|Could not run 'aten"
    "|has a device type|not enough values to unpack|pin_memory|Cannot pin|CUDA error"
    "|not compiled with"
)
ARTEFACT = re.compile(FAKE, re.IGNORECASE)
"""Errors of the pretended machine rather than of the engine."""
OPTIONAL = r"ConchLinearKernel cannot implement due to: conch-triton-kernels is not installed"
OPTIONAL += r".*?again! ?"
"""Words about a package that is not among the requirements."""


def judge(error, package):
    """The answer that an error is, the engine's words, and where it raised them."""
    frames = traceback.extract_tb(error.__traceback__)
    package_frames = [f for f in frames if f"/{package}/" in f.filename]
    last = package_frames[-1] if package_frames else frames[-1]
    file = last.filename.split(f"/{package}/")[-1] if package_frames else Path(last.filename).name
    words = re.sub(r"\s+", " ", str(error))
    wrapped = r"1 validation error for \w+ (Value|Assertion) error, | \[type=\w+_error.*"
    words = re.sub(OPTIONAL, "", re.sub(wrapped, "", words))
    if "Reasons: {" in words:
        words = words[: words.index(" with ")] + ". " + words[words.index("Reasons: {") :]
    kind = type(error).__name__
    inside = (package_frames and frames[-1].filename == last.filename) or kind == "ValidationError"
    answer = "no" if kind in REFUSALS and inside and not ARTEFACT.search(words) else "unknown"
    shown = words if answer == "no" else f"{kind}: {words}"
    return answer, shown[:330], f"{file}:{last.name}"


def meta_only():
    """A mode in which every tensor becomes a meta tensor, whatever device is asked for."""
    import torch
    from torch.overrides import TorchFunctionMode

    class MetaOnly(TorchFunctionMode):
        def __torch_function__(self, func, kinds, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if func in (torch.Tensor.cuda, torch.Tensor.cpu):
                return args[0]
            meta = torch.device("meta")
            if func is torch.Tensor.to:
                args = tuple(meta if isinstance(a, torch.device | str) else a for a in args)
            if kwargs.get("device") is not None:
                kwargs["device"] = meta
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
            return func(*args, **kwargs)

    return MetaOnly()


COMMUNICATOR = "vllm.distributed.device_communicators.base_device_communicator"
COMMUNICATOR += ".DeviceCommunicatorBase"


def process_groups(tp):
    """Start torch's fake process group with ``tp`` ranks, in place of the last one."""
    import torch.distributed as dist
    import vllm.distributed.parallel_state as ps
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.platforms import current_platform

    process_groups.size = tp
    if not hasattr(process_groups, "new_group"):
        process_groups.new_group = dist.new_group
        dist.new_group = lambda ranks=None, *a, **k: process_groups.new_group(ranks, backend="fake")
        communicator = classmethod(lambda c: COMMUNICATOR)
        type(current_platform).get_device_communicator_cls = communicator
        from vllm.distributed.device_communicators import shm_broadcast

        # It would wait for the other ranks.
        none = staticmethod(lambda *a, **k: None)
        shm_broadcast.MessageQueue.create_from_process_group = none
        ps.in_the_same_node_as = lambda *a, **k: [True] * process_groups.size
    else:
        ps.destroy_model_parallel()
        ps.destroy_distributed_environment()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    ps.init_distributed_environment(
        world_size=tp, rank=0, distributed_init_method="env://", local_rank=0, backend="fake"
    )
    ps.initialize_model_parallel(tp)


def build_vllm_model(question):
    """The engine's configuration and model for a question, on the meta device."""
    import torch
    import vllm.model_executor.models.registry as registry
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform as platform

    registry._run_in_subprocess = lambda fn: fn()
    config = dict(MODELS[question.model])
    if question.form is not None:
        config.pop("quantization_config", None)
        if FORMATS[question.form]:
            config["quantization_config"] = FORMATS[question.form]
    wide = platform.is_rocm() or platform.has_device_capability(80)
    folder = tempfile.mkdtemp(prefix="ask")
    usual = torch.get_default_dtype()
    try:
        Path(folder, "config.json").write_text(json.dumps(config))
        args = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=2048,
            kv_cache_dtype=question.cache,
            tensor_parallel_size=question.tp,
            distributed_executor_backend="mp",
            dtype="auto" if wide else "half",
        )
        engine_config = args.create_engine_config()
        with set_current_vllm_config(engine_config):
            process_groups(question.tp)
            with contextlib.suppress(Exception):
                import vllm.v1.worker.workspace as workspace

                workspace.init_workspace_manager(torch.device("meta"))
            torch.set_default_dtype(engine_config.model_config.dtype)
            with torch.device("meta"), meta_only():
                return engine_config, initialize_model(engine_config)
    finally:
        torch.set_default_dtype(usual)
        shutil.rmtree(folder, ignore_errors=True)


def backends_of(layer):
    """Attention backends that a layer holds, or says that it takes."""
    attributes = (getattr(layer, name, None) for name in ("attn_backend", "backend_cls"))
    backends = [attribute for attribute in attributes if isinstance(attribute, type)]
    if not backends and hasattr(layer, "get_kv_cache_spec"):
        with contextlib.suppress(Exception):
            backends = [layer.get_attn_backend()]
    return backends


def refusing(model, cap):
    """The first attention backend of a model that refuses the capability, in words; else None."""
    for layer in model.modules():
        for backend in backends_of(layer):
            with contextlib.suppress(Exception):
                if not backend.supports_compute_capability(cap):
                    method_name = f"{backend.get_name()}.supports_compute_capability"
                    return f"constructs, but {method_name}({cap.major}.{cap.minor}) is False"
    return None


def cut_group(model):
    """Return how a rank's share cuts a group of a layer, in words; None where none is cut."""
    for layer in model.modules():
        config = getattr(getattr(layer, "quant_method", None), "quant_config", None)
        share = getattr(layer, "input_size_per_partition", None)
        group = getattr(config, "group_size", None)
        if isinstance(share, int) and isinstance(group, int) and group > 0 and share % group:
            return f"constructs, but a rank's share of {share} cuts a group of {group}"
    return None


TOLD = {"attention": ("attn",), "model": ("attn",), "weights": ("linear", "moe", "via MoeWNA16")}
TOLD["cut"] = TOLD["weights"]
"""What of the engine's choices an answer tells, by kind of question."""


def chosen_kernels(model, kind):
    """Return what the engine chose, read from the built layers: backends, kernels and methods."""
    picks = collections.Counter()
    for layer in model.modules():
        for backend in backends_of(layer):
            with contextlib.suppress(Exception):
                picks["attn " + backend.get_name()] += 1
        method = getattr(layer, "quant_method", None)
        schemes = (method, getattr(layer, "scheme", None), getattr(method, "scheme", None))
        for scheme in filter(None, schemes):
            for key, value in vars(scheme).items():
                if key.endswith("backend") and isinstance(value, enum.Enum | str):
                    picks["moe " + str(getattr(value, "name", value))] += 1
                elif type(value).__name__.endswith("Kernel"):
                    picks["linear " + type(value).__name__.removesuffix("LinearKernel")] += 1
            label = type(scheme).__name__
            if not label.startswith("Unquantized") and "KVCache" not in label:
                picks["via " + label] += 1
    return "; ".join(pick for pick in sorted(picks) if pick.startswith(TOLD[kind]))


def quantised(model):
    """Return whether any layer has a quantisation method."""
    methods = (getattr(layer, "quant_method", None) for layer in model.modules())
    names = [type(method).__name__ for method in methods if method is not None]
    return any(not name.startswith("Unquantized") and "KVCache" not in name for name in names)


def metadata_refusal(config, model):
    """Return where making a chosen backend's metadata builder fails by the engine's own words."""
    import torch
    from vllm.config import set_current_vllm_config

    builders = set()
    for name, layer in model.named_modules():
        if not hasattr(layer, "get_kv_cache_spec"):
            continue
        for backend in backends_of(layer):
            if backend in builders:
                continue
            builders.add(backend)
            try:
                with set_current_vllm_config(config):
                    spec = layer.get_kv_cache_spec(config)
                    backend.get_builder_cls()(spec, [name], config, torch.device("cpu"))
            except Exception as error:
                answer, words, where = judge(error, "vllm")
                if answer == "no" and words:  # a bare assertion may be about the fakes
                    return words, where
    return None


def aiter_works():
    """Return whether the engine's own test says that AITER runs here."""
    try:
        from vllm._aiter_ops import is_aiter_found_and_supported

        return is_aiter_found_and_supported()
    except ImportError:
        return True


LOADER = "model_loader/utils.py:initialize_model"
NO_AITER = "constructs with an AITER backend, but is_aiter_found_and_supported() is False"
UNREAD = "constructs without the quantisation: weight files say which layers have it"


def answer_of(question, cap):
    """Answer, what was chosen, words and where, of a question that a model is built for."""
    config, model = build_vllm_model(question)
    picks = chosen_kernels(model, question.kind)
    if cut := cut_group(model):
        return "unknown", picks, f"{cut}; only loading would tell", LOADER
    if question.form and FORMATS[question.form] and not quantised(model):
        return "unknown", picks, UNREAD, LOADER
    if "attn ROCM_AITER_MLA" in picks and not aiter_works():
        return "unknown", picks, NO_AITER, "_aiter_ops.py:is_aiter_found_and_supported"
    if refused := refusing(model, cap):
        return "no", picks, refused, "supports_compute_capability"
    if question.kind == "attention" and (failed := metadata_refusal(config, model)):
        return "no", picks, *failed
    return "yes", picks, "", LOADER


def start(arch, root, modules):
    """Import the unpacked engine on the pretended machine; a requirement that lacks is a stub."""
    environment = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_HAS_FLASHINFER_CUBIN": "1", "VLLM_LOGGING_LEVEL": "CRITICAL"}
    environment |= {"VLLM_CONFIG_ROOT": f"{root}/_c", "VLLM_CACHE_ROOT": f"{root}/_c"}
    os.environ.update(environment)
    sys.path.insert(0, str(root))
    pretend(arch, modules)
    finder = next(importer for importer in sys.meta_path if isinstance(importer, Finder))
    for _ in range(12):
        try:
            import vllm
            import vllm.config
            import vllm.engine.arg_utils
            import vllm.model_executor.model_loader
            import vllm.v1.attention.selector  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name.startswith("vllm"):
                break
            finder.stubs = (*finder.stubs, error.name.split(".")[0])
            continue
        break


def ask(arch, root, modules, emit, only=()):
    """Ask everything on one architecture, or subjects that begin with one of ``only``.

    ``emit`` takes kind, subject and the answer's parts.
    """
    start(arch, root, modules)
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform as platform
    from vllm.v1.attention import selector

    cap = platform.get_device_capability()
    assert (cap.major, cap.minor) == capability(arch), (cap, arch)
    half = torch.bfloat16 if arch in ROCM or capability(arch) >= (8, 0) else torch.float16
    fields = selector.AttentionSelectorConfig._fields
    parameters = inspect.signature(platform.get_attn_backend_cls).parameters
    more = {"num_heads": 16} if "num_heads" in parameters else {}
    place = f"platforms/{'cuda' if arch in CUDA else 'rocm'}.py:get_attn_backend_cls"
    usual = {"head_size": 128, "dtype": half, "kv_cache_dtype": "auto", "block_size": None}
    for subject, wish in () if only else selections():
        settings = {k: v for k, v in (usual | wish).items() if k in fields}
        try:
            with set_current_vllm_config(VllmConfig()):
                config = selector.AttentionSelectorConfig(**settings)
                path = platform.get_attn_backend_cls(None, config, **more)
            emit("attention", subject, "yes", f"attn {path.split('.')[-1]}", "", place)
        except Exception as error:
            answer, words, where = judge(error, "vllm")
            emit("attention", subject, answer, "", words, where)
    for question in questions():
        if only and not question.subject.startswith(tuple(only)):
            continue
        try:
            emit(question.kind, question.subject, *answer_of(question, cap))
        except BaseException as error:
            answer, words, where = judge(error, "vllm")
            emit(question.kind, question.subject, answer, "", words, where)
