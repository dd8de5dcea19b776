"""What trains inside a training bundle: torch, transformers and safetensors, nothing else.

The folder is copied into the bundle as ``trainer/`` beside a ``train.py`` of three lines, so every
import inside it is relative and nothing here may import ``recipe_core``. One process a device,
started by ``torchrun``; NCCL on CUDA, RCCL on ROCm, gloo on a CPU.
"""
