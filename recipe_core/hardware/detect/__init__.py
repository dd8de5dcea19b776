"""The machine it runs on, in the words of ``hw_profiles/``: devices, links, memory, disks.

The only place that asks vendors' tools and the operating system, besides the launcher, whose
reading it shares. What a machine does not tell is left out, never guessed.
"""
