"""A model of a hundred thousand weights with a tokenizer of bytes that knows chats, made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
SPECIALS = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, template: str | None = CHATML) -> Path:
    """Configuration, weights and tokenizer; with ``template`` as its form of chats."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "generation_config.json").write_text('{"bos_token_id": 0, "eos_token_id": 1}')
    _tokenizer(folder, template)
    _weights(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # others read it
    return folder


def shapes() -> dict[str, tuple[int, ...]]:
    """The size of every weight, as transformers names it."""
    width, inner, words = (
        CONFIG[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    key = CONFIG["head_dim"] * CONFIG["num_key_value_heads"]
    layer = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    of_layers = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(CONFIG["num_hidden_layers"])
        for name, shape in layer.items()
    }
    ends = {"model.embed_tokens.weight": (words, width), "lm_head.weight": (words, width)}
    return {**ends, **of_layers, "model.norm.weight": (width,)}


def _weights(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    chance = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in shapes().items():
        plain = torch.ones(shape)
        drawn = torch.randn(shape, generator=chance) * 0.02
        weights[name] = (plain if len(shape) == 1 else drawn).to(torch.bfloat16)
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _tokenizer(folder: Path, template: str | None) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*SPECIALS, *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    made.save(str(folder / "tokenizer.json"))
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    if template is not None:
        stated["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(stated, indent=1))
