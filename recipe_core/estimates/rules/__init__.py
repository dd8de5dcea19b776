"""Rules that a split can break: widths, kernels, memory tiers, places on nodes.

Pure functions over columns; a rule is a mask and a sentence.
"""
