"""Where it runs: devices, what joins them, what they cost, profiles of one's own, this machine.

It reads ``hw_profiles/`` and the profiles it is told to. Every figure has a source and a status.
"""
