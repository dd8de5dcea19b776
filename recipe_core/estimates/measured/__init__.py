"""What was measured: published runs of serving and training, and how well a device is known.

Tables, their readers and importers of other programs' files (``imports``); they are held against
estimates in ``calibration``. May import base, launcher, model, hardware, engines
and request.
"""
