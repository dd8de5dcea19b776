"""What can be chosen: candidates as columns, every split of a cluster, and the rules they break.

Pure functions over arrays; a rule is a mask and a sentence. What a split would do is ``physics``.
May import base, model, hardware, engines, request, measured and compression.
"""
