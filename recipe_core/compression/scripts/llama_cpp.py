"""llama.cpp: ``convert_hf_to_gguf.py`` to 16 bit, then ``llama-quantize`` to the type."""

from __future__ import annotations

from recipe_core.compression.scripts.work import (
    GGUF_FILE,
    CompressionLaunch,
    Work,
    script,
    script_launch,
)

_BODY = '''
def found(name):
    """A program of llama.cpp: of the folder that LLAMA_CPP names, or on the PATH."""
    folder = os.environ.get("LLAMA_CPP")
    places = [Path(folder, name), Path(folder, "build", "bin", name)] if folder else []
    known = next((str(place) for place in places if place.is_file()), None) or shutil.which(name)
    if known is None:
        sys.exit(f"{name} is not on the PATH. Set LLAMA_CPP to the folder of llama.cpp {VERSION}.")
    return known


def main():
    job, source, output = read_job()
    Path(output).mkdir(parents=True, exist_ok=True)
    wide, small = Path(output, "wide.gguf"), Path(output, FILE)
    converter, quantizer = found("convert_hf_to_gguf.py"), found("llama-quantize")
    words = [sys.executable, converter, source, "--outfile", str(wide), "--outtype", "bf16"]
    subprocess.run(words, check=True)
    subprocess.run([quantizer, str(wide), str(small), TYPE, str(os.cpu_count() or 1)], check=True)
    wide.unlink()


if __name__ == "__main__":
    main()
'''


def compress_llama_cpp(work: Work) -> CompressionLaunch:
    """A script that leaves one GGUF file."""
    constants = {
        "TYPE": work.choice.scheme,
        "FILE": GGUF_FILE,
        "VERSION": work.choice.program.version,
    }
    imports = ("import os", "import shutil", "import subprocess")
    text = script(work, constants, _BODY, *imports, calibrated=False)
    return script_launch(work, text, loaded=GGUF_FILE)
