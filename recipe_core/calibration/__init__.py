"""Measured runs: read from other programs' files, kept, learned from, held against estimates.

``importers`` read files, the store keeps runs until they expire, ``validation`` states errors, and
``trials`` measures a bundle on the real machine.
"""
