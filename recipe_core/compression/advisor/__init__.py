"""Techniques of compression beside one plan: memory, speed, cost, accuracy, energy of each.

Each row is a plan of its own; ``combine`` asks which techniques go together.
"""
