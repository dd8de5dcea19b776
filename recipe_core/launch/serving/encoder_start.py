"""Put an encoder's exported file into a model repository, then become Triton.

It travels in bundles, standard library only: ``python3 encoder_start.py SOURCE TARGET FRONT ENCODER
FILE -- EXPORT WORD … -- PROGRAM WORD …``. SOURCE is copied to TARGET. Unless TARGET has FILE in
ENCODER already, EXPORT is run with ``--output`` there; the tokenizer that it writes moves to FRONT.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path


def prepare_repository(places: list[str], export: list[str]) -> None:
    """Copy the repository and export once, whichever server of a machine comes first.

    Raises:
        SystemExit: where the export fails, with the command to run where its packages are.
    """
    source, target = Path(places[0]), Path(places[1])
    front, encoder, file = places[2:]
    target.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.copytree(source, target, dirs_exist_ok=True)
        folder = target / encoder / "1"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / file).is_file():
            words = [*export, "--output", str(folder)]
            if subprocess.run(words, check=False).returncode:
                sys.exit(
                    f"encoder_start: {folder / file} is missing and could not be made here. Run "
                    f"this where torch and transformers are, and start again: {' '.join(words)}"
                )
        if (folder / "tokenizer.json").is_file():
            shutil.copyfile(folder / "tokenizer.json", target / front / "1" / "tokenizer.json")


def main(words: list[str]) -> None:
    """Prepare, and start the server in this process's place."""
    first = words.index("--")
    second = words.index("--", first + 1)
    prepare_repository(words[:first], words[first + 1 : second])
    program = words[second + 1 :]
    os.execvp(program[0], program)  # noqa: S606 - as the launcher starts all words of the bundle


if __name__ == "__main__":
    main(sys.argv[1:])
