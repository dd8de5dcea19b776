"""NVIDIA Model Optimizer: ``mtq.quantize`` with a preset, then its export for engines."""

from __future__ import annotations

from recipe_core.compression.scripts.work import CompressionLaunch, Work, script, script_launch

_IMPORTS = (
    "import modelopt.torch.quantization as mtq",
    "import torch",
    "from modelopt.torch.export import export_hf_checkpoint",
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
)
_BODY = """
def main():
    job, source, output = read_job()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", device_map=DEVICES)
    config = getattr(mtq, SCHEME)
    if KV:
        config = mtq.update_quant_cfg_with_kv_cache_quant(config, mtq.FP8_KV_CFG["quant_cfg"])
    rows = windows(job, tokenizer)

    def forward_loop(model):
        with torch.no_grad():
            for row in rows:
                model(torch.tensor([row], device=model.device))

    model = mtq.quantize(model, config, forward_loop)
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    main()
"""


def compress_modelopt(work: Work) -> CompressionLaunch:
    """A script whose result TensorRT-LLM, vLLM and SGLang load."""
    constants = {
        "SCHEME": work.choice.scheme,
        "KV": work.choice.kv,
        "DEVICES": None if work.runtime == "cpu" else "auto",
    }
    return script_launch(work, script(work, constants, _BODY, *_IMPORTS))
