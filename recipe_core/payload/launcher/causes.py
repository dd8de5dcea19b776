"""Known causes of a server's or run's end: how logs show them, and what to change.

In the order of causality: where a log shows several, the first here made the others. A rank that
ran out of memory lets all other ranks' collectives fail; a full disk damages what is read later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import Pattern


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause; ``patterns`` are searched for in every line of a log.

    ``transient``: a start without any change may succeed. ``device``: an accelerator is lost or at
    fault. ``exact``: the fix where a pattern's named groups matched, with their texts in it.
    ``benign``: lines that look like it but are not. ``signals``: ends that mean it by themselves.
    ``kernel``: the kernel's words, which count in the kernel's log too.
    """

    id: str
    title: str
    fix: str
    patterns: tuple[Pattern[str], ...] = ()
    transient: bool = False
    device: bool = False
    exact: str = ""
    benign: Pattern[str] | None = None
    signals: tuple[int, ...] = ()
    kernel: tuple[Pattern[str], ...] = ()


def _any(*texts: str) -> tuple[Pattern[str], ...]:
    return tuple(re.compile(text) for text in texts)


_OF_MACHINE = (
    Cause(
        "host-memory-killed",
        "the kernel killed it: the machine's memory ran out",
        "Free memory of the machine or raise the container's limit; lower the engine's swap space"
        " and its number of loading processes.",
        _any(
            r"[Kk]illed by the (kernel )?OOM[- ]?[Kk]iller",
            r"ray\.exceptions\.OutOfMemoryError: Task was killed due to the node running low",
        ),
        transient=True,
        kernel=_any(
            r"[Oo]ut of memory: Kill(ed)? process",
            r"oom-kill:constraint",
            r"\boom_kill [1-9]",
        ),
    ),
    Cause(
        "device-lost",
        "an accelerator is gone",
        "Run the vendor's tool (nvidia-smi, rocm-smi): a device it does not list needs a reset of"
        " its bus or of the machine. Until then use fewer devices.",
        _any(
            r"NVML_ERROR_GPU_IS_LOST|[Uu]nable to determine the device handle for GPU",
            r"GPU is lost\b",
            r"No (CUDA|HIP) GPUs are available|no (CUDA|ROCm)-capable device is detected",
            r"hipError(NoDevice|InvalidDevice)\b|CUDA_ERROR_NO_DEVICE|[Ii]nvalid device ordinal",
            r"[Uu]nable to open /dev/kfd",
            r"Failed to infer device type|Torch not compiled with CUDA enabled",
        ),
        device=True,
        kernel=_any(
            r"GPU has fallen off the bus",
            r"\bXid \([^)]*\): (79|119|120|136|154)\b|\bXid 79\b",
            r"amdgpu .*(device lost from bus|GPU reset\(\d+\) failed)",
        ),
    ),
    Cause(
        "driver",
        "the driver does not match what the engine was built for",
        "Install the driver that docs and image of the engine ask for, restart the machine after an"
        " update of it, and start the fabric manager on machines with NVSwitch.",
        _any(
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"forward compatibility was attempted on non supported HW",
            r"Driver/library version mismatch",
            r"no kernel image is available for execution on the device",
            r"(Error 802|cudaErrorSystemNotReady): system not yet initialized",
            r"The NVIDIA driver on your system is too old",
            r"couldn't communicate with the NVIDIA driver",
        ),
        device=True,
    ),
    Cause(
        "device-memory-error",
        "memory of an accelerator is damaged (uncorrectable ECC error)",
        "Restart the machine or reset the device, so that the row is remapped; replace a device"
        " whose errors come back (nvidia-smi -q -d ECC,ROW_REMAPPER; amd-smi metric --ecc).",
        _any(r"uncorrectable ECC error|ECC[ _]Uncorrectable|cudaErrorECCUncorrectable"),
        transient=True,
        device=True,
        kernel=_any(
            r"\bXid \([^)]*\): (48|63|64|94|95|171|172)\b",
            r"amdgpu .*([Uu]ncorrectable|RAS.*error)",
        ),
    ),
    Cause(
        "shared-memory",
        "/dev/shm is too small",  # noqa: S108 - words for people
        "Give the container more of it: --shm-size 16g or --ipc=host (docker), an emptyDir with"
        " medium Memory (Kubernetes).",
        _any(
            r"[Ee]rror while (creating|attaching to) shared memory segment",
            r"unable to (open|allocate|resize|mmap).*shared memory|out of shared memory",
            r"/dev/shm.*No space left on device|No space left on device.*/dev/shm",  # noqa: S108
            r"insufficient shared memory \(shm\)",
        ),
        signals=(7,),
    ),
    Cause(
        "disk-full",
        "a disk is full",
        "Free space on the disk of the bundle, of the model cache (HF_HOME) and of /tmp.",
        _any(
            r"No space left on device|\[Errno 28\]|os error 28\b|StorageFull",
            r"Disk quota exceeded|\[Errno 122\]|File too large|\[Errno 27\]",
        ),
        signals=(25,),
    ),
    Cause(
        "host-memory",
        "the machine's memory does not suffice",
        "Free memory of the machine or raise the container's limit; lower the engine's share of"
        " memory, its swap or offloading space.",
        _any(
            r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup",
            r"DefaultCPUAllocator: (can't allocate memory|not enough memory)",
            r"(^|[\s(])MemoryError\b|Cannot allocate memory|\[Errno 12\]",
            r"std::bad_alloc|memory allocation of \d+ bytes failed",
            r"VLLM_CPU_KVCACHE_SPACE.*(exceeds|larger|too)|Available memory on node .* less than",
        ),
        exact="Only {free} of {total} GiB were free: lower the engine's share of memory"
        " (memory_fraction of the candidate), or free memory.",
    ),
)

_OF_SIZE = (
    Cause(
        "memory-taken",
        "another process holds memory of an accelerator",
        "End the processes that the vendor's tool lists on it, or lower the engine's share of"
        " memory.",
        _any(
            r"Free memory on device .*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)",
            r"[Ff]ree memory on device .* is less than desired",
            r"less than desired GPU memory utilization",
            r"[Mm]emory usage .* unbalanced|memory capacity is unbalanced",
        ),
        transient=True,
        exact="Only {free} of {total} GiB are free: end the processes that the vendor's tool lists"
        " on the device, or lower the engine's share of memory.",
    ),
    Cause(
        "cache-memory",
        "weights and workspace leave too little memory for the cache",
        "Lower the longest context or the batch limits, or take more devices or a smaller weight"
        " format; plan again with the free memory that the log states.",
        _any(
            r"estimated maximum model length is (?P<length>\d+)",
            r"[Nn]o available memory for the cache blocks",
            r"KV cache is needed, which is larger than",
            r"larger than the maximum number of tokens that can be stored in KV cache",
            r"Available KV cache memory: -",
            r"Not enough memory\. Please try to increase --mem-fraction-static",
            r"Not enough memory to handle \d+ prefill tokens",
            r"[Ii]mpossible to fit (in )?any sequence in kv ?[Cc]ache",
            r"The memory capacity is .*not enough|[Ll]oading the model failed.*mem-fraction-static",
        ),
        exact="Lower the longest context to {length} tokens, or take more devices or a smaller"
        " weight format.",
    ),
    Cause(
        "device-memory",
        "an accelerator ran out of memory",
        "Lower the batch limits, the longest context or the engine's share of memory, and end other"
        " processes on the device.",
        _any(
            r"(CUDA|HIP|XPU) (error: )?out of memory|torch\.(cuda\.)?OutOfMemoryError",
            r"hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
            r"(CUBLAS|HIPBLAS)_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
            r"Error Code 2: OutOfMemory|Requested amount of GPU memory .* could not be allocated",
            r"ggml_backend_\w+_buffer.*: (allocating|failed to allocate)|cudaMalloc failed",
        ),
        transient=True,
    ),
)

_OF_MODEL = (
    Cause(
        "weights-damaged",
        "files of the model are damaged",
        "Fetch the model again and compare its digests; a disk that was full while it was fetched"
        " leaves files cut short.",
        _any(
            r"Error while deserializing header|SafetensorError\b|safetensors_rust",
            r"(Header|Invalid header|Metadata)(TooLarge|TooSmall|IncompleteBuffer)",
            r"UnpicklingError|PytorchStreamReader failed|failed finding central directory",
            r"(invalid|bad) magic (number|characters)|tensor .* data is not within the file bounds",
            r"(size|shape) mismatch for |Attempted to load weight .* into parameter",
            r"(config|tokenizer\w*)\.json.* is not a valid JSON file|^\S*JSONDecodeError: ",
        ),
    ),
    Cause(
        "model-access",
        "the hub does not let this machine read the model",
        "Accept the model's licence on its page and set HF_TOKEN to a token that may read it.",
        _any(
            r"GatedRepoError|gated repo|Access to model .* is restricted",
            r"(401|403) Client Error.*huggingface|Invalid (username or password|user token)",
        ),
    ),
    Cause(
        "hub-unreachable",
        "the hub cannot be reached",
        "Check the network and HF_ENDPOINT, or fetch the model first and serve the folder:"
        " --model FOLDER.",
        _any(
            r"We couldn't connect to 'https?://|LocalEntryNotFoundError|OfflineModeIsEnabled",
            r"(HTTPSConnectionPool|Max retries exceeded|ConnectError).*(huggingface|hf\.co)",
            r"Temporary failure in name resolution|Name or service not known",
            r"(50[0-9]|429) (Server|Client) Error.*(huggingface|hf\.co)",
        ),
        transient=True,
    ),
    Cause(
        "model-missing",
        "the model, or a file of it, is not there",
        "Check the model's name or folder (--model), and that it holds config.json, the tokenizer"
        " and all files of weights.",
        _any(
            r"is not a local folder and is not a valid model identifier|RepositoryNotFoundError",
            r"Repository Not Found|Invalid repository ID or local directory",
            r"does not appear to have (a file named|files? )|Can't load the configuration of",
            r"Cannot find any model weights|no (file named )?.*\.safetensors.* found",
            r"No such file or directory: .*(\.safetensors|\.gguf|\.bin|config\.json|tokenizer)",
            r"Cannot find (the )?(requested files|weight files)|EntryNotFoundError",
        ),
    ),
    Cause(
        "model-unsupported",
        "the engine's version does not know the model",
        "Use a version of the engine that lists the model's architecture, or plan with another"
        " engine.",
        _any(
            r"Model architectures .* are not supported for now",
            r"does not recognize this architecture|Unsupported (model type|architecture)",
            r"[Uu]nknown model architecture|Unknown architecture|has no vLLM implementation",
            r"requires? you to execute the configuration file|trust_remote_code=True",
        ),
    ),
    Cause(
        "format-unsupported",
        "the accelerator cannot compute in the weights' or the cache's number format",
        "Plan again for this device: another weight or cache format is needed.",
        _any(
            r"quantization method .* is not supported for the current GPU",
            r"Bfloat16 is only supported on GPUs with compute capability",
            r"is only supported on CUDA devices with compute capability",
            r"(fp8|FP8|e4m3)\w*\b.* (is )?not supported (on|for|in|by) ",
            r"engine was built (with|for) (a )?different GPU|Engine was built for SM",
            r"No (valid )?attention backend|backend .* is not supported on this (GPU|platform)",
        ),
        signals=(4,),
    ),
)

_OF_COMMAND = (
    Cause(
        "split",
        "the model cannot be split over these devices as the command says",
        "Plan again for the devices that are there: heads and layers must divide by the split.",
        _any(
            r"must be divisible by (the )?(tensor|pipeline|tp|num)",
            r"is not divisible by (the )?(tensor|tp)",
            r"[Ww]orld size \(?\d*\)? ?is larger than the number of available",
            r"is (greater|larger) than the number of available (gpus|GPUs|devices)",
            r"Total number of attention heads",
        ),
    ),
    Cause(
        "context",
        "the longest context is beyond what the model was made for",
        "Lower the longest context to what the log states.",
        _any(
            r"max_model_len \((?P<wanted>\d+)\) is greater than the derived max_model_len"
            r" \(max_position_embeddings=(?P<most>\d+)",
            r"max_model_len .* is greater than the derived max_model_len",
            r"context length .* is (longer|greater) than the (model's|derived)",
        ),
        exact="Lower the longest context from {wanted} to {most} tokens.",
    ),
    Cause(
        "flag",
        "the engine does not take an option of its command",
        "Install the version of the engine that the recipe pins, or remove the option from the"
        " recipe's own.",
        _any(
            r"unrecognized arguments?: (?P<option>.+)",
            r"[Nn]o such option:? (?P<option>\S+)",
            r"unexpected argument '(?P<option>[^']+)'",
            r"error: (the following arguments are required|argument |invalid )",
            r"invalid choice: |Got unexpected extra argument|unknown argument: ",
            r"validation errors? for \w*(Config|Args)\b",
            r"TypeError: \w+Args\.__init__\(\) got an unexpected keyword",
        ),
        exact="{option}: install the version of the engine that the recipe pins, or remove it from"
        " the recipe's own options.",
    ),
    Cause(
        "port",
        "the port is taken",
        "End what listens there, or start on another port: --port N.",
        _any(
            r"error while attempting to bind on address .*?(?P<port>\d{2,5})[,)]",
            r"[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]|os error 98\b",
            r"Port (?P<port>\d+) is (already )?(in use|occupied)",
        ),
        transient=True,
        exact="End what listens on port {port}, or start on another: --port N.",
        # NCCL tries the next port by itself.
        benign=re.compile(r"NCCL|Call to bind failed"),
    ),
    Cause(
        "permission",
        "a file or device may not be used by this user",
        "Give the user of the launcher access to what the log names (devices of AMD: the groups"
        " video and render).",
        _any(r"Permission denied|\[Errno 13\]|Operation not permitted|\[Errno 1\]"),
        benign=re.compile(r"pidfd|perf_event|mbind|set_mempolicy|sched_set|numa", re.IGNORECASE),
    ),
    Cause(
        "version",
        "packages of the engine are missing or do not fit each other",
        "Install the engine again in an environment of its own, with the versions that the recipe"
        " pins.",
        _any(
            r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
            r"(?<!Module)(?<!\w)ImportError: |undefined symbol: |GLIBC(XX)?_[\d.]+' not found",
            r"cannot open shared object file|VersionConflict|is incompatible with .*version",
            r"requires .*==.*, but you have|AttributeError: module '\w+' has no attribute",
            r"(?<!\w)exec format error|command not found",
        ),
        exact="Module {module} is missing: install the engine again in an environment of its own,"
        " with the versions that the recipe pins.",
    ),
)

_OF_RUN = (
    Cause(
        "loss-not-a-number",
        "the loss is not a number",
        "Resume from the checkpoint before it with a lower learning rate, clip gradients, and look"
        " at the data of that step.",
        _any(
            r"loss (is|was|became) (not a number|nan|inf)",
            r"[Ff]ound (NaN|Inf) in|NaN (loss|gradient)|gradient .*\b(nan|inf)\b",
        ),
    ),
    Cause(
        "device-fault",
        "an accelerator failed while it computed",
        "A restart often helps; if it comes back on the same device, take that one out"
        " (dmesg names it) and report it with `doctor`.",
        _any(
            r"CUDA error: (an illegal memory access|unspecified launch failure|misaligned address)",
            r"(CUDA|HIP).*(illegal (memory access|instruction|address)|unknown error)",
            r"CUDA error: (device-side assert|the launch timed out|hardware|an? NVLink)",
            r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)|CUDNN_STATUS_EXEC",
            r"Memory access fault by GPU node|HW Exception by GPU node|GPU [Hh]ang\b",
            r"HSA_STATUS_ERROR_(EXCEPTION|MEMORY_APERTURE|ILLEGAL)|hipError(Illegal|LaunchFail|Unk)",
        ),
        transient=True,
        device=True,
        kernel=_any(r"NVRM: Xid|amdgpu .*(ring .* timeout|GPU reset|page fault)"),
    ),
    Cause(
        "network",
        "ranks lost each other",
        "Look at the other ranks' logs first: one that died is the usual reason. Else check the"
        " network between the nodes and its interface (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO).",
        _any(
            r"Watchdog caught collective operation timeout|Some NCCL operations have failed",
            r"(NCCL|RCCL) (error|WARN .*(Connect|connection|closed|timed? ?out|remote))",
            r"nccl(System|Remote|Internal|UnhandledCuda|InvalidUsage)Error|ncclUnhandled",
            r"Dist(Network|Backend|Store)Error|client socket has timed out",
            r"Connection (reset|closed) by (remote )?peer|gloo.*(timed out|[Cc]onn)",
            r"TimeoutError: RPC call to .* timed out|execute_model.*timed out|shm_broadcast.*timed",
        ),
        transient=True,
        # A client that went away, as Python's HTTP servers log it.
        benign=re.compile(r"(GET|POST) /|client disconnected|RequestDisconnect|ConnectionResetErr"),
    ),
)

# All that logs show, the deepest causes first.
KNOWN: tuple[Cause, ...] = (*_OF_MACHINE, *_OF_SIZE, *_OF_MODEL, *_OF_COMMAND, *_OF_RUN)

# What says that a part of an engine ended, without saying why.
SYMPTOMS = _any(
    r"EngineDeadError|EngineCore (encountered|failed)|Engine core (initialization failed|proc)",
    r"WorkerProc (initialization failed|hit an exception|failed)|died unexpectedly",
    r"(Scheduler|Detokenizer|DataParallelController|Tokenizer\w*) hit an exception",
    r"Received sigquit from a child process|subprocess exited with code",
    r"Shard (process was signaled|\d+ failed|complete standard error)|ShardCannotStart",
    r"Failed to initialize executor|ChildFailedError|Segmentation fault|Fatal Python error",
    r"terminate called after throwing|[Bb]roken ?[Pp]ipe",
)

WORKER = Cause(
    "worker-died",
    "a process of the engine died",
    "Read the log above these lines; report it with `doctor` if it comes back.",
    transient=True,
)
EXCEPTION = Cause(
    "exception",
    "the engine met an error that is not known here",
    "Read the error; look it up in the engine's issues for the version that the recipe pins.",
    transient=True,
)
# Ends by signal, for people.
SIGNALS = {
    4: "it used an instruction that this processor lacks (SIGILL)",
    6: "it aborted itself (SIGABRT)",
    7: "it touched memory that is not there (SIGBUS)",
    8: "it divided by zero (SIGFPE)",
    9: "it was killed (SIGKILL)",
    11: "it used memory that is not its own (SIGSEGV)",
    15: "somebody ended it (SIGTERM)",
    24: "it used up its processor time (SIGXCPU)",
    25: "it wrote a file beyond a limit (SIGXFSZ)",
}
KILLED = Cause(
    "killed",
    "it was killed (SIGKILL)",
    "Look for the kernel's out-of-memory killer (`dmesg`, the container's memory.events) and for"
    " who else kills processes here.",
    transient=True,
)
CRASHED = Cause(
    "crashed",
    "it ended by a signal",
    "Report it with `doctor` and the engine's version; a core dump (`coredumpctl`) tells where.",
    transient=True,
)
TERMINATED = Cause(
    "terminated",
    "somebody ended it (SIGTERM)",
    "Find who ended it; the launcher did not.",
    transient=True,
)
ENDED = Cause(
    "ended",
    "it ended by itself without an error",
    "A server should not end: read what it logged last.",
    transient=True,
)
UNKNOWN = Cause(
    "unknown",
    "the log does not say why",
    "A process that ends without a word was mostly killed: look for the kernel's out-of-memory"
    " killer (`dmesg`). `doctor` packs everything for a report.",
    transient=True,
)
