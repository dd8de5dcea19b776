"""Ends of logs and what they mean.

The excerpts are made up in the shape of what the named programs write: the log prefixes of vLLM
0.32 (`(EngineCore pid=…) ERROR …`), SGLang 0.5 (`[date TP0] …`), TensorRT-LLM 1.2
(`[TensorRT-LLM][ERROR] …`), TGI 3 (JSON-less tracing lines), transformers 5 serve (uvicorn), torch
2.13, NCCL and RCCL, the drivers' and the kernel's own lines (Xid numbers: NVIDIA's Xid catalog).
"""

from __future__ import annotations

import re
import signal

import pytest

from recipe_core.launcher import causes
from recipe_core.launcher.diagnosis import LONGEST_LINE, MOST_LINES, diagnose, signal_of
from tests.fixtures.command_line import ROOT

VLLM_CACHE = """\
(EngineCore pid=3709) INFO 09-18 21:37:58 [gpu_worker.py:341] Available KV cache memory: 4.34 GiB
(EngineCore pid=3709) ERROR 09-18 21:38:02 [core.py:1374] EngineCore failed to start.
(EngineCore pid=3709) ERROR 09-18 21:38:02 [core.py:1374] Traceback (most recent call last):
(EngineCore pid=3709) ERROR 09-18 21:38:02 [core.py:1374] ValueError: To serve at least one request\
 with the model's max seq len (131072), (5.07 GiB KV cache is needed, which is larger than the\
 available KV cache memory (4.34 GiB). Based on the available memory, the estimated maximum model\
 length is 112208. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.
(APIServer pid=3653) RuntimeError: Engine core initialization failed. See root cause above. Failed\
 core proc(s): {}
"""
VLLM_TAKEN = """\
(EngineCore pid=412) ERROR 09-18 21:38:02 [core.py:1374] ValueError: Free memory on device cuda:0\
 (3.25/23.43 GiB) on startup is less than desired GPU memory utilization (0.96, 22.49 GiB).\
 Decrease GPU memory utilization or reduce GPU memory used by other processes.
(APIServer pid=300) RuntimeError: Engine core initialization failed. See root cause above.
"""
VLLM_OOM_OF_ONE_RANK = """\
(Worker_TP1 pid=77) ERROR 10-02 03:11:40 [multiproc_executor.py:900] WorkerProc hit an exception.
(Worker_TP1 pid=77) ERROR 10-02 03:11:40 [multiproc_executor.py:900] torch.OutOfMemoryError: CUDA\
 out of memory. Tried to allocate 1.16 GiB. GPU 1 has a total capacity of 79.11 GiB
(Worker_TP0 pid=76) [rank0]:[E1002 03:11:41.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught\
 collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 600081 milliseconds
(EngineCore pid=70) ERROR 10-02 03:11:41 [core.py:710] EngineCore encountered a fatal error.
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
"""
SGLANG_MEMORY = """\
[2026-03-29 18:56:25 TP0] Load weight end. type=Qwen3ForCausalLM, avail mem=1.20 GB
[2026-03-29 18:56:25 TP0] Scheduler hit an exception: Traceback (most recent call last):
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.
[2026-03-29 18:56:26] Received sigquit from a child process. It usually means the child failed.
"""
SGLANG_PORT = """\
  File "/sgl/python/sglang/srt/managers/detokenizer_manager.py", line 124, in init_ipc_channels
zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:29236')
[2026-09-22 06:50:07] Received sigquit from a child process. It usually means the child failed.
"""
TGI_PREFILL = """\
2026-08-11T09:36:31.9Z ERROR warmup{max_input_length=4095}: text_generation_router_v3: Not enough\
 memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`
2026-08-11T09:36:32.0Z ERROR text_generation_launcher: Webserver Crashed
"""
TGI_KILLED = """\
2026-08-11T09:36:31.9Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to\
 shutdown with signal 9 rank=0
2026-08-11T09:36:32.0Z ERROR text_generation_launcher: Shard 0 failed to start
"""
TRT_MEMORY = """\
[TensorRT-LLM][ERROR] [executor][RANK 0] Failed to initialize executor
RuntimeError: Executor worker returned error: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
TRT_OTHER_GPU = """\
[TensorRT-LLM][ERROR] Engine was built for SM 8.9, but running on SM 9.0
"""
TRANSFORMERS_PORT = """\
INFO:     Application startup complete.
ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8119): address already\
 in use
INFO:     Waiting for application shutdown.
"""
TRANSFORMERS_FLAG = """\
Usage: transformers serve [OPTIONS]
Try 'transformers serve --help' for help.
| No such option: --continous-batching Did you mean --continuous-batching?
"""
SAFETENSORS = """\
  File "/venv/lib/python3.11/site-packages/transformers/modeling_utils.py", line 4100, in load
safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not\
 fully covered
"""
NCCL_CHATTER = """\
node0:1180825 [4] misc/socket.cc:484 NCCL WARN Call to bind failed: Address already in use
INFO:     127.0.0.1:51000 - "POST /v1/completions HTTP/1.1" 200 OK
"""
ILLEGAL = """\
(EngineCore pid=413) ERROR 11-10 12:30:57 [core.py:710] torch.AcceleratorError: CUDA error: an\
 illegal memory access was encountered
"""
XID = "[5.1] NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', GPU has fallen off the bus."
KERNEL_OOM = """\
[337533.31] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=23793,uid=0
[337533.31] Memory cgroup out of memory: Killed process 23793 (python) total-vm:2623712kB
"""

CASES = [
    # name, log, exit code, kernel, cause, transient, device, a piece of the fix
    ("vllm cache", VLLM_CACHE, 1, "", "cache-memory", False, False, "112208 tokens"),
    ("vllm taken", VLLM_TAKEN, 1, "", "memory-taken", True, False, "3.25 of 23.43 GiB"),
    ("vllm rank", VLLM_OOM_OF_ONE_RANK, 1, "", "device-memory", True, False, "batch limits"),
    ("sglang memory", SGLANG_MEMORY, -3, "", "cache-memory", False, False, "more devices"),
    ("sglang port", SGLANG_PORT, -9, "", "port", True, False, "--port"),
    ("tgi prefill", TGI_PREFILL, 1, "", "cache-memory", False, False, "batch limits"),
    ("tgi killed", TGI_KILLED, 1, "", "worker-died", True, False, "doctor"),
    ("tgi killed, kernel", TGI_KILLED, 1, KERNEL_OOM, "host-memory-killed", True, False, "limit"),
    ("trt memory", TRT_MEMORY, 1, "", "device-memory", True, False, "batch"),
    ("trt other", TRT_OTHER_GPU, 1, "", "format-unsupported", False, False, "Plan again"),
    ("transformers port", TRANSFORMERS_PORT, 1, "", "port", True, False, "port 8119"),
    ("transformers flag", TRANSFORMERS_FLAG, 2, "", "flag", False, False, "--continous-batching"),
    ("safetensors", SAFETENSORS, 1, "", "weights-damaged", False, False, "digests"),
    ("illegal access", ILLEGAL, 1, "", "device-fault", True, True, "restart"),
    ("xid 79", ILLEGAL, -6, XID, "device-lost", False, True, "vendor's tool"),
    ("kernel", "loading", -9, KERNEL_OOM, "host-memory-killed", True, False, "memory"),
    ("cgroup", "loading", 137, "oom_kill 1", "host-memory-killed", True, False, "memory"),
    ("cgroup before", "loading", 137, "oom_kill 0", "killed", True, False, "dmesg"),
]
LINES = [
    ("nvidia-smi: Unable to determine the device handle for GPU0: GPU is lost.", "device-lost"),
    ("RuntimeError: No HIP GPUs are available", "device-lost"),
    ("torch.AcceleratorError: CUDA error: invalid device ordinal", "device-lost"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "device-memory-error"),
    ("Failed to initialize NVML: Driver/library version mismatch", "driver"),
    ("Error 802: system not yet initialized (Triggered internally", "driver"),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "driver",
    ),
    ("OSError: [Errno 28] No space left on device: '/models/x'", "disk-full"),
    (
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-ab (size 1)",
        "shared-memory",
    ),
    (
        "RuntimeError: unable to allocate shared memory(shm): No space left on device",
        "shared-memory",
    ),
    (
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
        "host-memory",
    ),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 448.00 MiB", "device-memory"),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096 MiB on device 0",
        "device-memory",
    ),
    (
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo",
        "model-access",
    ),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "hub-unreachable",
    ),
    (
        "OSError: nope/nope is not a local folder and is not a valid model identifier",
        "model-missing",
    ),
    ("OSError: /m does not appear to have a file named config.json.", "model-missing"),
    ("RuntimeError: Cannot find any model weights with `/m`", "model-missing"),
    (
        "ValueError: Model architectures ['XForCausalLM'] are not supported for now.",
        "model-unsupported",
    ),
    ("but Transformers does not recognize this architecture.", "model-unsupported"),
    (
        "The quantization method awq is not supported for the current GPU. Minimum",
        "format-unsupported",
    ),
    ("World size (16) is larger than the number of available GPUs (8) in this node", "split"),
    (
        "Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        "split",
    ),
    (
        "User-specified max_model_len (65536) is greater than the derived max_model_len"
        " (max_position_embeddings=32768 or model_max_length=None in model's config.json).",
        "context",
    ),
    ("vllm: error: unrecognized arguments: --no-such-flag", "flag"),
    ("error: unexpected argument '--max-foo' found", "flag"),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "flag"),
    ("PermissionError: [Errno 13] Permission denied: '/cache'", "permission"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "version"),
    ("ModuleNotFoundError: No module named 'triton'", "version"),
    ("RuntimeError: the loss is not a number", "loss-not-a-number"),
    (
        "Memory access fault by GPU node-4 (Agent handle: 0x26ff) on address 0x7e. Reason",
        "device-fault",
    ),
    ("HW Exception by GPU node-1 (Agent handle: 0x1b) reason :GPU Hang", "device-fault"),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 600s", "network"),
    ("RuntimeError: NCCL error: remote process exited or there was a network error", "network"),
]


@pytest.mark.parametrize(
    ("log", "code", "kernel", "cause", "transient", "device", "fix"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_ends_of_logs(
    log: str, code: int, kernel: str, cause: str, transient: bool, device: bool, fix: str
) -> None:
    diagnosis = diagnose(log, code, kernel=kernel)
    assert diagnosis.cause == cause
    assert (diagnosis.transient, diagnosis.device) == (transient, device)
    assert fix in diagnosis.fix
    assert diagnosis.lines
    assert diagnosis.title in diagnosis.text()
    assert all(line in (log + kernel) for line in diagnosis.lines)


@pytest.mark.parametrize(("line", "cause"), LINES, ids=[line[:40] for line, _ in LINES])
def test_lines(line: str, cause: str) -> None:
    around = (
        f"INFO 10-02 03:11:40 loading\n{line}\nRuntimeError: Engine core initialization failed."
    )
    diagnosis = diagnose(around, 1)
    assert diagnosis.cause == cause
    assert diagnosis.lines[0] == line


def test_every_cause_has_an_example() -> None:
    shown = {cause for _, cause in LINES} | {case[4] for case in CASES}
    assert {cause.id for cause in causes.KNOWN} <= shown


def test_every_cause_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    for cause in causes.KNOWN:
        answer = "restart" if cause.transient else "next choice, or stop"
        assert f"| `{cause.id}` | {cause.title} | {answer} |" in text


def test_causes_are_sound() -> None:
    ids = [cause.id for cause in causes.KNOWN]
    assert len(set(ids)) == len(ids)
    for cause in causes.KNOWN:
        assert cause.patterns or cause.kernel
        assert cause.title[0].islower() or cause.title.startswith("/")
        assert cause.fix.endswith(".")
        fields = set(re.findall(r"\{(\w+)\}", cause.exact))
        groups = [set(pattern.groupindex) for pattern in cause.patterns if pattern.groupindex]
        assert all(group <= fields for group in groups)
        assert bool(fields) == bool(groups)
        assert any(fields == group for group in groups) or not fields


def test_out_of_memory_before_the_first_answer_comes_again() -> None:
    assert diagnose(TRT_MEMORY, 1).transient
    assert diagnose(TRT_MEMORY, 1, ready=True).transient
    assert not diagnose(TRT_MEMORY, 1, ready=False).transient
    assert diagnose(TRANSFORMERS_PORT, 1, ready=False).transient


def test_clients_that_went_away_are_no_cause() -> None:
    log = "ConnectionResetError: [Errno 104] Connection reset by peer\nBrokenPipeError: [Errno 32]"
    assert diagnose(log, -9).cause == "killed"
    assert diagnose("RuntimeError: Connection reset by peer [10.0.0.2]:29500", 1).cause == "network"


def test_a_line_that_is_no_error_is_no_cause() -> None:
    assert diagnose(NCCL_CHATTER, 1).cause == "unknown"
    assert (
        diagnose("INFO 10-02 03:11:40 torch.OutOfMemoryError is caught here", 1).cause == "unknown"
    )


@pytest.mark.parametrize(
    ("code", "cause", "title"),
    [
        (-signal.SIGKILL, "killed", "killed"),
        (137, "killed", "killed"),
        (-signal.SIGSEGV, "crashed", "SIGSEGV"),
        (139, "crashed", "SIGSEGV"),
        (-signal.SIGBUS, "shared-memory", "shm"),
        (-signal.SIGILL, "format-unsupported", "format"),
        (-signal.SIGXFSZ, "disk-full", "disk"),
        (-signal.SIGTERM, "terminated", "SIGTERM"),
        (-40, "crashed", "signal 40"),
        (0, "ended", "by itself"),
        (1, "unknown", "does not say"),
        (None, "unknown", "does not say"),
    ],
)
def test_an_end_without_words(code: int | None, cause: str, title: str) -> None:
    diagnosis = diagnose("loading\n\nserving", code)
    assert (diagnosis.cause, diagnosis.lines) == (cause, ("loading", "serving"))
    assert title in diagnosis.title


def test_a_killed_rank_is_not_the_network() -> None:
    log = "RuntimeError: Connection closed by peer [127.0.0.1]:29500"
    assert diagnose(log, 1).cause == "network"
    assert diagnose(log, -9).cause == "killed"


def test_an_error_that_nobody_knows_is_shown() -> None:
    log = "Traceback (most recent call last):\n  File 'x.py', line 1\nKeyError: 'rope_theta'\n"
    diagnosis = diagnose(log + "WorkerProc hit an exception.", 1)
    assert (diagnosis.cause, diagnosis.lines) == ("worker-died", ("KeyError: 'rope_theta'",))
    assert diagnose(log, 1).cause == "exception"


def test_lines_are_few_short_and_plain() -> None:
    line = "\x1b[31mtorch.OutOfMemoryError: CUDA out of memory.\x1b[0m " + "x" * 5000
    log = "\n".join(f"rank {n}: {line}" for n in range(50)) + "\rdone\x07"
    diagnosis = diagnose(log, 1)
    assert len(diagnosis.lines) == 1  # ranks differ by numbers only
    assert len(diagnosis.lines[0]) == LONGEST_LINE
    assert diagnosis.lines[0].isprintable()
    different = "\n".join(f"{'x' * n} CUDA out of memory" for n in range(50))
    assert len(diagnose(different, 1).lines) == MOST_LINES
    assert diagnose("", -9).lines == ()


def test_odd_text_takes_no_time() -> None:
    for piece in ("x", "{", "(", "Error ", "No space ", "memory mismatch for ", "a.b.", "\\"):
        diagnose(piece * 200_000, 1)


@pytest.mark.parametrize(
    ("code", "number"), [(None, None), (0, None), (1, None), (128, None), (-9, 9), (143, 15)]
)
def test_signals(code: int | None, number: int | None) -> None:
    assert signal_of(code) == number
    assert signal_of(255) is None
