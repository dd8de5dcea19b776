"""AMD Quark: a template of the model's family, ``ModelQuantizer``, and its safetensors export."""

from __future__ import annotations

from recipe_core.compression.scripts.work import CompressionLaunch, Work, script, script_launch

_ALGORITHMS = {"RTN": None, "GPTQ": "gptq", "AWQ": "awq", "SmoothQuant": "smoothquant"}
_IMPORTS = (
    "import torch",
    "from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors",
    "from torch.utils.data import DataLoader",
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
)
_BODY = """
def main():
    job, source, output = read_job()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", device_map=DEVICES)
    family = model.config.model_type
    if family not in LLMTemplate.list_available():
        known = ", ".join(LLMTemplate.list_available())
        sys.exit(f"AMD Quark has no template for {family}. It has: {known}.")
    config = LLMTemplate.get(family).get_config(
        scheme=SCHEME, algorithm=ALGORITHM, kv_cache_scheme="fp8" if KV else None
    )
    data = None
    if CALIBRATED:
        rows = [torch.tensor(row, device=model.device) for row in windows(job, tokenizer)]
        data = DataLoader(rows, batch_size=1)
    quantizer = ModelQuantizer(config)
    model = quantizer.freeze(quantizer.quantize_model(model, data))
    with torch.no_grad():
        export_safetensors(model, output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    main()
"""


def compress_quark(work: Work) -> CompressionLaunch:
    """A script whose result vLLM and SGLang load."""
    constants = {
        "SCHEME": work.choice.scheme,
        "ALGORITHM": _ALGORITHMS[work.choice.method],
        "KV": work.choice.kv,
        "CALIBRATED": work.choice.samples > 0,
        "DEVICES": None if work.runtime == "cpu" else "auto",
    }
    return script_launch(work, script(work, constants, _BODY, *_IMPORTS))
