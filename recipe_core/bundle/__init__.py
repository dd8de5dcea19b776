"""A recipe as files: written, digested, signed, listed, and verified when read back.

Only this room writes bundles: atomically, without secrets, with ``launcher`` inside, and never over
one that runs. May import base, launcher, model, hardware, engines, request, space, fleet, launch,
recipe and targets.
"""
