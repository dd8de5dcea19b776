"""A placed fleet as files: what joins its bundles, and the folder of all of them."""
