<<<<<<< Updated upstream
"""Rendered training bundles live as their targets would let them, with the real tools."""
=======
"""Bundles that live."""
>>>>>>> Stashed changes
