"""Plain values as one short text that a link carries: JSON, compressed, in letters that URLs keep.

``~1.`` names the version; then the bytes of a zlib stream (RFC 1950) at level 9, in base64url
(RFC 4648) without padding. The stream begins with a dictionary of texts that requests, profiles and
configs repeat. The dictionary belongs to the version: another one is another version, because links
must be read for years. The stream's checksums find what was cut off or changed on the way. No
model, device or file name has the form of such a text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

from recipe_core.base.documents import parse_json, to_json
from recipe_core.base.errors import InputError

VERSION = 1
# Characters of a packed text that is read.
MAX_TEXT = 64 << 10
# Bytes of JSON that a packed text may become: a stream of zeros grows a thousandfold.
MAX_UNPACKED = 512 << 10
# Characters of JSON, as a link writes them, that stay as they are: people read and edit links.
LEGIBLE = 600

_FORM = re.compile(r"~(\d{1,9})\.([A-Za-z0-9_-]*)")
_LOOKS = re.compile(r"~\d{1,9}\.")

# What is most frequent stands last: near matches take fewer bits.
_DICTIONARY = (
    # configs of models
    b'{"_name_or_path":"config","architectures":["ForCausalLM"],"attention_bias":false,'
    b'"first_k_dense_replace":3,"kv_lora_rank":512,"q_lora_rank":1536,"qk_nope_head_dim":128,'
    b'"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":256,"n_shared_experts":1,'
    b'"num_local_experts":128,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":'
    b'2048,"sliding_window":4096,"layer_types":["full_attention","sliding_attention"],'
    b'"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],'
    b'"modules_to_not_convert":["lm_head"]},"head_dim":128,"hidden_size":4096,'
    b'"intermediate_size":14336,"max_position_embeddings":131072,"model_type":"qwen3",'
    b'"num_attention_heads":32,"num_hidden_layers":36,"num_key_value_heads":8,'
    b'"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":151936}'
    # profiles of devices
    b'{"schema_version":1,"name":"my-h100-sxm","title":"NVIDIA","based_on":"h100-sxm","vendor":'
    b'"nvidia","runtime":"cuda","architecture":"sm_90","aliases":[],"memory_bytes":{"value":'
    b'85520809984.0,"source":"sheet","status":"measured","note":""},"reserved_bytes":{"value":'
    b'"memory_bandwidth_bytes_per_s":{"value":3350000000000.0,"source":"sheet","status":'
    b'"datasheet"},"peak_flops_per_s":{"bf16":{"value":989400000000000.0,"source":"sheet","status":'
    b'"datasheet"},"fp16":{"value":"fp8":{"value":"int8":{"value":"fp32":{"value":'
    b'"weight_dtypes":["fp32","bf16","fp16","fp8","fp8-block","int8","int4","mxfp4","nvfp4"],'
    b'"kv_dtypes":["bf16","fp16","fp8"],"tdp_watts":{"value":700.0,"idle_watts":{"value":70.0,'
    b'"source":"estimate","status":"assumed"},"node":{"devices":8,"fabric":"nvlink4","alternatives":'
    b'[],"network":"ib-ndr-400","host_memory_bytes":{"value":"roofline":{"moe":{"mla_prefill":'
    b'{"mla_decode":{"attention_prefill":{"attention_decode":{"gemm":{"bf16":'
    b'{"compute_efficiency":0.797,"memory_efficiency":0.869,"row_efficiency":0.5,"overhead_s":'
    b'3.33e-06,"smoothing":1.0,"sort_s":0.0,"source":"fits","status":"fitted","note":"n 2252, '
    b'median error 4.8%"},"any":{"compute_efficiency":0."sources":{"ours":{"title":"","date":'
    b'"2026-","url":"https://","command":"python '
    # choices that are kept: fields of links
    b'"objective.optimize":"cost","objective.limits.tpot_ms":"40","objective.limits.ttft_ms":"2000",'
    b'"options.nodes":"any","options.weight_dtypes":"auto,fp8","options.engines":"sglang",'
    b'"workload.kind":"training","workload.method":"lora","workload.sequence_length":"4096",'
    b'"workload.global_batch":"256","workload.tokens":"10000000000","candidate.engine":"torchtitan",'
    b'"candidate.precision":"bf16","candidate.virtual_stages":"1","candidate.zero_stage":"1",'
    b'"candidate.micro_batch":"1","candidate.recompute":"none","hardware.usd_per_device_hour":"2.5",'
    b'"hardware.nodes":"2","hardware.per_node":"8","hardware.device":"h200-sxm","hardware.device":'
    b'"mi300x","model":"deepseek-ai/DeepSeek-V3","model":"Qwen/Qwen3-32B","model":'
    b'"meta-llama/Llama-3.1-70B-Instruct","workload.input_tokens":"1024","workload.output_tokens":'
    b'"256","workload.concurrency":"64","candidate.engine":"vllm","candidate.tp":"8",'
    b'"candidate.pp":"1","candidate.dp":"1","candidate.ep":"1","candidate.cp":"1",'
    b'"candidate.weight_dtype":"bf16","candidate.kv_dtype":"bf16","candidate.max_batched_tokens":'
    b'"8192"}],["'
)


def pack_values(value: Any) -> str:
    """Plain values as a packed text; a number that is not finite becomes null."""
    return _pack_text(compact(value))


def compact(value: Any) -> str:
    """Plain values as JSON without a needless character."""
    return json.dumps(json.loads(to_json(value)), separators=(",", ":"), ensure_ascii=False)


def shorter(value: Any) -> str:
    """Plain values as JSON, or packed where that is shorter in a link and JSON is a long read."""
    plain = compact(value)
    if len(quote_plus(plain)) <= LEGIBLE:
        return plain
    return min(plain, _pack_text(plain), key=lambda text: len(quote_plus(text)))


@lru_cache(maxsize=256)
def _pack_text(text: str) -> str:
    press = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=_DICTIONARY)
    data = press.compress(text.encode()) + press.flush()
    return f"~{VERSION}.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"


def is_packed(text: str) -> bool:
    return _LOOKS.match(text) is not None


def unpack_values(text: str, name: str = "the packed text") -> Any:
    """The plain values of a packed text; ``name`` stands for it in errors.

    Raises:
        InputError: when it is of another version, cut off, changed or too large, and for what
            ``parse_json`` refuses.
    """
    if len(text) > MAX_TEXT:
        raise InputError(f"{name} has {len(text):,} characters; the limit is {MAX_TEXT:,}.")
    form = _FORM.fullmatch(text)
    if form is None:
        raise InputError(f"{name} is not a packed text.", hint="Copy the whole link.")
    if int(form[1]) != VERSION:
        raise InputError(
            f"{name} is packed in version {form[1]}; this builder reads version {VERSION}.",
            hint="Open the link in the builder that made it.",
        )
    return parse_json(_inflated(form[2], name), name)


def _inflated(text: str, name: str) -> str:
    damaged = InputError(
        f"{name} was cut off or changed on the way.", hint="Copy the whole link again."
    )
    stream = zlib.decompressobj(zlib.MAX_WBITS, zdict=_DICTIONARY)
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        data = stream.decompress(packed, MAX_UNPACKED + 1)
    except (zlib.error, binascii.Error):
        raise damaged from None
    if len(data) > MAX_UNPACKED:
        raise InputError(f"{name} becomes more than {MAX_UNPACKED:,} bytes.")
    if not stream.eof or stream.unused_data:
        raise damaged
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise damaged from None
