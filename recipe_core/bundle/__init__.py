"""A recipe as files: written, digested, signed, listed, and verified when read back.

Only this room writes bundles: atomically, without secrets, with the launcher inside, and never over
one that runs.
"""
