"""Techniques that make models smaller: their cost in accuracy, and the runners that have them.

Data with sources, the model of accuracy that is fitted to published figures, and checkpoints that
bundles measured.
"""
