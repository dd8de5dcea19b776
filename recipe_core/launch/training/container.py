"""How to build an image with a training framework: no project publishes one for its release."""

from __future__ import annotations

from recipe_core.engines.training_programs import program_facts, training_engine

PATH = "container/Containerfile"
BUILD = "Build one from container/Containerfile, and name it with a tag or a digest."


def training_containerfile(name: str, runtime: str) -> str | None:
    """A Containerfile: torch's image of that runtime, and the framework's packages, pinned.

    None where no base is known (other runtimes than CUDA), or the framework is not a package.
    """
    container = training_engine(name).container
    base = program_facts().bases.get(runtime, {}).get(container.base) if container else None
    if container is None or base is None:
        return None
    # The base's own torch is named, so that no dependency replaces it.
    packages = " \\\n    ".join((f"torch=={base.torch}", *container.packages))
    build = f"docker build -f {PATH} -t REGISTRY/NAME:TAG ."
    return f"""# Targets that start containers name an image built from this: {build}
FROM {base.image.pinned}
RUN PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir \\
    {packages}
"""
