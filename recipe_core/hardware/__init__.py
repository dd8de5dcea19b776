"""Hardware: devices, links, prices, profiles of one's own, this machine.

It reads ``hw_profiles/`` and the profiles it is told to. Every figure has a source and a status.
"""
