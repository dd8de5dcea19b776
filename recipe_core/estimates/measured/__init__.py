"""Published runs of serving and training, and how well they cover a device.

Tables and their readers; ``calibration`` holds estimates against them.
"""
