"""GPT-QModel: ``GPTQModel.load``, ``quantize`` and ``save`` with a GPTQ or AWQ configuration."""

from __future__ import annotations

from recipe_core.compression.scripts.work import CompressionLaunch, Work, script, script_launch

_GROUP = 128
_CLASSES = {"GPTQ": "GPTQConfig", "AWQ": "AWQConfig"}
_BODY = """
def main():
    job, source, output = read_job()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = GPTQModel.load(source, Config(bits=BITS, group_size=GROUP))
    rows = windows(job, tokenizer)
    model.quantize([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])
    model.save(output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    main()
"""


def compress_gptqmodel(work: Work) -> CompressionLaunch:
    """A script whose result most engines load."""
    imports = (
        "import os",
        # its loader asks for two threads, of which it has one on a machine of two processors
        'if (os.cpu_count() or 1) < 3: os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")',
        f"from gptqmodel.quantization.config import {_CLASSES[work.choice.method]} as Config",
        "from gptqmodel import GPTQModel",
        "from transformers import AutoTokenizer",
    )
    constants = {"BITS": int(work.choice.scheme), "GROUP": _GROUP}
    return script_launch(work, script(work, constants, _BODY, *imports))
