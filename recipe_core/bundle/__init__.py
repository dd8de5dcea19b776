"""A recipe as files: written, digested, signed, listed, and read back with suspicion.

The only room that writes bundles, whole or not at all, and no secrets. It carries ``launcher``
along. May import base, launcher, hardware, engines, request, launch, recipe and targets.
"""
