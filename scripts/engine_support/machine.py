"""A machine without a GPU that engines take for one with: for asking their own selection code.

Fakes NVML or amdsmi (the engine then finds its platform by itself), torch.cuda and
torch.accelerator (capability, name, 64 devices), triton's active driver, every compiled module
(empty) and optional kernel packages (complete). Operator schemas are read from the wheel's .so
files and registered without code, so that "is this operator there?" is true to the release. The
compiled yes/no predicates are restated from public sources, for CUDA 13.
"""

import collections
import contextlib
import importlib.abc
import importlib.machinery
import json
import re
import struct
import sys
import types
import zipfile
from pathlib import Path

CUDA = {
    "sm_70": (7, 0),
    "sm_75": (7, 5),
    "sm_80": (8, 0),
    "sm_86": (8, 6),
    "sm_87": (8, 7),
    "sm_89": (8, 9),
    "sm_90": (9, 0),
    "sm_100": (10, 0),
    "sm_103": (10, 3),
    "sm_110": (11, 0),
    "sm_120": (12, 0),
    "sm_121": (12, 1),
}
ROCM = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201")
NAMES = {
    "sm_70": "Tesla V100-SXM2-32GB",
    "sm_75": "Tesla T4",
    "sm_80": "NVIDIA A100-SXM4-80GB",
    "sm_86": "NVIDIA GeForce RTX 3090",
    "sm_87": "Orin",
    "sm_89": "NVIDIA GeForce RTX 4090",
    "sm_90": "NVIDIA H100 80GB HBM3",
    "sm_100": "NVIDIA B200",
    "sm_103": "NVIDIA B300",
    "sm_110": "NVIDIA Thor",
    "sm_120": "NVIDIA RTX PRO 6000 Blackwell",
    "sm_121": "NVIDIA GB10",
}
UNITS = {"sm_75": 40, "sm_80": 108, "sm_86": 82, "sm_87": 16, "sm_89": 128, "sm_90": 132}
UNITS |= {"sm_70": 80, "sm_100": 148, "sm_103": 148, "sm_110": 20, "sm_120": 188, "sm_121": 48}
STUBS = ("cutlass", "humming", "tokenspeed_mla", "deep_gemm", "cuda", "cudnn", "nvidia")
STUBS += ("flashinfer", "flashinfer_cubin", "tilelang", "quack", "bitsandbytes")
SPACES = ("_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils")
NAMESPACES = {"_C_stable_libtorch": SPACES, "_C": SPACES, "_moe_C_stable_libtorch": ("_moe_C",)}
"""Where operators of a compiled module are registered; of other modules, under their own name."""


def unpack(wheel, dest):
    """All but compiled modules to `dest`; of these, schemas and architectures of their code."""
    info = Path(dest, "_compiled.json")
    if info.exists():
        return json.loads(info.read_text())
    architectures = {}
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if not name.endswith(".so"):
                z.extract(name, dest)
            else:
                architectures[
                    re.sub(r"(\.abi3|\.cpython[^/]*)?\.so$", "", name).replace("/", ".")
                ] = compiled(z.read(name))
    info.write_text(json.dumps(architectures))
    return architectures


def compiled(blob):
    """Operator schemas and counts of device code by architecture in a shared library."""
    ops = set()
    for arrow in re.finditer(rb"\) *-> *", blob):
        start, end = (
            blob.rfind(b"\0", max(0, arrow.start() - 6000), arrow.start()) + 1,
            blob.find(b"\0", arrow.end()),
        )
        text = blob[start:end].split(b"\n")[0]
        if re.fullmatch(rb"(?:\w+::)?[a-z_][\w.]*\([ -~]*\) *-> *[ -~]{1,300}", text):
            ops.add(text.decode())
    archs, at = collections.Counter(), 0
    # A fat binary: its header, then entries (kind 1 is PTX, 2 a cubin).
    while (at := blob.find(b"\x50\xed\x55\xba", at)) >= 0:
        _, _, head, size = struct.unpack_from("<IHHQ", blob, at)
        entry, stop = at + head, min(at + head + size, len(blob))
        while entry + 64 <= stop:
            kind, _, entry_head, payload = struct.unpack_from("<HHIQ", blob, entry)
            archs[
                f"{'ptx' if kind == 1 else 'sm'}_{struct.unpack_from('<I', blob, entry + 28)[0]}"
            ] += 1
            entry += entry_head + payload
        at = max(entry, at + 16)
    return {"ops": sorted(ops), "archs": dict(archs)}


class Anything(type):
    """A name of a stubbed package: class, decorator, function, number or type at once."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = Anything(name, (Base,), {})
        setattr(cls, name, value)
        return value

    def __call__(cls, *args, **kwargs):
        return (
            args[0]
            if len(args) == 1
            and not kwargs
            and callable(args[0])
            and not isinstance(args[0], Anything)
            else cls
        )

    def same(cls, *_):
        return cls

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = (
        __floordiv__
    ) = __truediv__ = __and__ = __lshift__ = same
    __lt__ = __gt__ = __le__ = __ge__ = lambda cls, other: False

    def __iter__(cls):
        return iter(())

    def __bool__(cls):
        return True

    def __int__(cls):
        return 0

    __index__ = __int__


class Base(metaclass=Anything):
    def __init_subclass__(cls, **_):
        pass


class Stub(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name == "__version__":
            return "99.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        value = Anything(name, (Base,), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, ready, empty, stubs):
        self.ready, self.empty, self.stubs = ready, empty, stubs

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        is_stubbed = name in self.ready or name in self.empty or name.split(".")[0] in self.stubs
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_stubbed else None

    def create_module(self, spec):
        if spec.name in self.ready:
            return self.ready[spec.name]
        return types.ModuleType(spec.name) if spec.name in self.empty else Stub(spec.name)

    def exec_module(self, module):
        pass


def capability(arch):
    if arch in CUDA:
        return CUDA[arch]
    digits = arch[3:]
    return (
        (int(digits[0]), int(digits[1], 16))
        if len(digits) == 3
        else (int(digits[:2]), int(digits[2]))
    )


def fake_nvml(arch):
    m = types.ModuleType("pynvml")
    m.NVMLError = type("NVMLError", (Exception,), {})

    def init():
        if arch not in CUDA:
            raise m.NVMLError("no NVML")

    m.nvmlInit, m.nvmlShutdown, m.nvmlDeviceGetCount = init, lambda: None, lambda: 64
    m.nvmlDeviceGetHandleByIndex = m.nvmlDeviceGetIndex = lambda i: i
    m.nvmlDeviceGetHandleByUUID = lambda u: 0
    m.nvmlDeviceGetCudaComputeCapability = lambda h: capability(arch)
    m.nvmlDeviceGetName, m.nvmlDeviceGetUUID = lambda h: NAMES[arch], lambda h: f"GPU-{h}"
    m.nvmlDeviceGetMemoryInfo = lambda h: types.SimpleNamespace(
        total=192 << 30, free=191 << 30, used=1 << 30
    )
    m.nvmlDeviceGetP2PStatus, m.NVML_P2P_CAPS_INDEX_NVLINK, m.NVML_P2P_STATUS_OK = (
        lambda *a: 0,
        1,
        0,
    )
    m.nvmlSystemGetDriverVersion, m.nvmlSystemGetCudaDriverVersion = lambda: "580.00", lambda: 13000
    return m


def fake_amdsmi(arch):
    m = Stub("amdsmi")
    m.AmdSmiException = type("AmdSmiException", (Exception,), {})
    m.amdsmi_init = m.amdsmi_shut_down = lambda *a: None
    m.amdsmi_get_processor_handles = lambda: list(range(64))
    m.amdsmi_get_gpu_asic_info = lambda h: {
        "target_graphics_version": arch,
        "device_id": "0x0",
        "market_name": arch,
    }
    m.amdsmi_get_gpu_memory_total = lambda *a: 192 << 30
    m.amdsmi_get_gpu_device_uuid = lambda *a: "0"
    return m


def pretend(arch, modules):
    """Make this process take the machine for one with GPUs of an architecture."""
    cuda, cap = arch in CUDA, capability(arch)
    _pretend_modules(arch, modules, cuda)
    shared = _shared_memory(cap, cuda)
    props = _properties(arch, cuda, cap, shared)
    _pretend_torch(cuda, cap, props)
    _pretend_triton(arch, cuda, cap, props)
    _register(modules, cuda, shared)


def _shared_memory(cap, cuda):
    """Bytes of shared memory that a block can have."""
    if cuda and cap[0] in (9, 10):
        return 227 << 10
    return (163 if cap == (8, 0) else 99) << 10


def _pretend_modules(arch, modules, cuda):
    """Drivers, compiled modules and optional packages of kernels, as imports find them."""
    ready = {"vllm.third_party.pynvml": fake_nvml(arch), "pynvml": fake_nvml(arch)}
    if not cuda:
        ready["amdsmi"] = fake_amdsmi(arch)
    plan = ready["flashinfer.mla._sparse_mla_sm120"] = Stub("flashinfer.mla._sparse_mla_sm120")
    # It has everything, which is true of flashinfer 0.7 (1 to 128 heads, any top-k).
    everything = type("Everything", (), {"__contains__": lambda self, pair: True})
    plan._DECODE_DSV4_DISPATCH = everything()
    stubs = STUBS if cuda else (*STUBS, "aiter", "flash_attn", "quark")
    sys.meta_path.insert(0, Finder(ready, {*modules, "vllm._rocm_C"}, stubs))


def _properties(arch, cuda, cap, shared):
    """Return torch's properties of a device; ``shared``: bytes of shared memory of a block."""
    return types.SimpleNamespace(
        name=NAMES.get(arch, arch),
        major=cap[0],
        minor=cap[1],
        total_memory=192 << 30,
        multi_processor_count=UNITS.get(arch, 120),
        is_integrated=False,
        gcnArchName=arch,
        warp_size=32 if cuda or cap[0] > 9 else 64,
        L2_cache_size=50 << 20,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=shared,
        shared_memory_per_multiprocessor=shared + 1024,
    )


class Stream:
    """A stream, or an event, on which nothing ever runs."""

    cuda_stream = device = 0

    def __init__(self, *a, **k):
        pass

    def __getattr__(self, name):
        return lambda *a, **k: None

    def __enter__(self):
        return self

    def __exit__(self, *a):
        return False


def nothing(*a, **k):  # noqa: ARG001
    return None


def _pretend_torch(cuda, cap, props):
    """``torch.cuda`` and ``torch.accelerator`` of a machine with 64 such devices."""
    import torch

    shared_api = dict(  # noqa: C408
        is_available=lambda: True,
        device_count=lambda: 64,
        synchronize=nothing,
        empty_cache=nothing,
        current_stream=lambda *a: Stream(),
        get_device_capability=lambda *a: cap,
    )
    for k, v in dict(
        shared_api,
        current_device=lambda: 0,
        is_initialized=lambda: True,
        _is_compiled=lambda: True,
        _lazy_init=nothing,
        init=nothing,
        set_device=nothing,
        get_device_name=lambda *a: props.name,
        get_device_properties=lambda *a: props,
        mem_get_info=lambda *a: (191 << 30, 192 << 30),
        is_bf16_supported=lambda *a, **k: cap >= (8, 0),
        _device_count_nvml=lambda: 64,
        Stream=Stream,
        Event=Stream,
        default_stream=lambda *a: Stream(),
        stream=lambda s: Stream(),
    ).items():
        setattr(torch.cuda, k, v)
    for k, v in dict(
        shared_api,
        current_device_index=lambda: 0,
        current_accelerator=lambda *a, **k: torch.device("cuda"),
        set_device_index=nothing,
        set_stream=nothing,
    ).items():
        setattr(torch.accelerator, k, v)
    torch.Stream = torch.Event = Stream
    torch.compile = lambda model=None, **k: model if model is not None else (lambda f: f)
    torch.version.cuda, torch.version.hip = ("13.0", None) if cuda else (None, "7.2.0")


def _pretend_triton(arch, cuda, cap, props):
    """Triton's active driver."""
    import torch
    import triton
    import triton.backends

    triton.backends.backends = {
        "nvidia" if cuda else "amd": types.SimpleNamespace(
            driver=types.SimpleNamespace(is_active=lambda: True), compiler=None
        )
    }
    target = types.SimpleNamespace(
        backend="cuda" if cuda else "hip",
        arch=cap[0] * 10 + cap[1] if cuda else arch,
        warp_size=props.warp_size,
    )
    driver = types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda *a: 0,
        get_active_torch_device=lambda: torch.device("cuda"),
        utils=types.SimpleNamespace(
            get_device_properties=lambda d: {
                "multiprocessor_count": props.multi_processor_count,
                "max_shared_mem": props.shared_memory_per_block_optin,
            }
        ),
    )
    triton.runtime.driver._active = triton.runtime.driver._default = driver


def _register(modules, cuda, shared):
    """Operators of compiled modules by their schemas, and the predicates among them with code."""
    from torch import library

    # compiled predicates, restated from the public C++ sources (CUDA 13 build)
    says = {
        "cutlass_scaled_mm_supports_fp8": lambda c: cuda and c >= 89,
        "cutlass_scaled_mm_supports_block_fp8": lambda c: cuda and c >= 90,
        "cutlass_scaled_mm_supports_fp4": lambda c: cuda and 100 <= c < 130,
        "cutlass_group_gemm_supported": lambda c: cuda and c >= 90,
        "cutlass_sparse_scaled_mm_supported": lambda c: cuda and 90 <= c < 100,
        "mxfp4_experts_quant_supported": lambda c: cuda and 100 <= c < 120,
        "moe_permute_unpermute_supported": lambda: True,
        "get_max_shared_memory_per_block_device_attribute": lambda d: shared,
        "get_device_attribute": lambda a, d: shared,
    }
    _register.keep = []
    for module, d in modules.items():
        own_name = module.split(".")[-1]
        for schema in d["ops"]:
            space, _, rest = (
                schema.partition("::") if "::" in schema.split("(")[0] else ("", "", schema)
            )
            for ns in (space,) if space else NAMESPACES.get(own_name, (own_name,)):
                lib = library.Library(ns, "FRAGMENT")
                _register.keep.append(lib)
                with contextlib.suppress(Exception):
                    lib.define(rest)
                    if (op := rest.split("(")[0]) in says:
                        lib.impl(op, says[op], "CompositeExplicitAutograd")


ON_ARM = ("sm_87", "sm_110", "sm_121")
"""Architectures of devices whose hosts have Arm cores only."""
MAIN = ("vllm._C_stable_libtorch", "vllm._C")
"""The module that holds an engine's own kernels, by release."""


def code_answer(modules, arch):
    """Return whether an architecture can load the engine's main module; None if unread.

    Cubins run on later architectures of their family, as published runs on B300 and DGX Spark show
    of those for sm_100 and sm_120.
    """
    major, minor = capability(arch)
    number, compiled_for = (
        major * 10 + minor,
        next((modules[m] for m in MAIN if m in modules), None),
    )
    if compiled_for is None or not compiled_for["archs"]:
        return None
    cubins = {int(k.split("_")[1]) for k in compiled_for["archs"] if k.startswith("sm_")}
    ptx = {int(k.split("_")[1]) for k in compiled_for["archs"] if k.startswith("ptx_")}
    text = f"compiled for {', '.join(f'sm_{k}' for k in sorted(cubins))}"
    older = any(k // 10 == major and k < number for k in cubins)
    if number in cubins or older:
        answer = "yes"
    elif any(k <= number for k in ptx):
        answer = "unknown"
    else:
        answer = "no"
    if answer == "no" and arch in ON_ARM:
        answer, text = "unknown", f"the x86-64 wheel is {text}; builds for Arm were not read"
    return answer, "", "" if answer == "yes" else text, "compiled module"
