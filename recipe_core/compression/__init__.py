"""Smaller checkpoints: which format to choose, what a job takes, how it is launched.

``advisor`` compares formats, ``jobs`` estimates the work of making one, ``scripts`` writes it.
"""
