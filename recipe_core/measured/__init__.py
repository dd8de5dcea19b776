"""What was measured: published runs of serving and training, and how well a device is known.

Tables and their readers only; they are held against estimates in ``calibration``. May import base,
hardware and engines.
"""
