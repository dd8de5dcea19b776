"""The trainer of a training bundle: torch, transformers and safetensors, nothing else.

The folder is copied into the bundle as ``trainer/`` next to a ``train.py`` that loads its sources
only, so every import inside it is relative and nothing here may import ``recipe_core``.
``torchrun`` starts one process per device; NCCL on CUDA, RCCL on ROCm, gloo on a CPU.
"""
