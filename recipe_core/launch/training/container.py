"""How an image is built that holds a training framework: no project publishes one for the pinned release."""

from __future__ import annotations

from recipe_core.engines.training_programs import facts, training_engine

PATH = "container/Containerfile"
BUILD = "Build one from container/Containerfile, and name it with a tag or a digest."


def containerfile(name: str, runtime: str) -> str | None:
    """A Containerfile: torch's own image of that runtime, and the framework's packages at exact versions.

    None where no base is known (other runtimes than CUDA), or the framework is not a package.
    """
    wanted = training_engine(name).container
    base = facts().bases.get(runtime, {}).get(wanted.base) if wanted else None
    if wanted is None or base is None:
        return None
    packages = " \\\n    ".join(
        (f"torch=={base.torch}", *wanted.packages)
    )  # the base's own torch, so that no other one replaces it
    return f"""# Targets that start containers name an image built from this: docker build -f {PATH} -t REGISTRY/NAME:TAG .
FROM {base.image.pinned}
RUN PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir \\
    {packages}
"""
