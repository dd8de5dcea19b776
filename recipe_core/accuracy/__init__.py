"""What makes models smaller: techniques, what they cost in accuracy, and what runs them where.

Data with sources, the model of accuracy that is fitted to published figures, and checkpoints that
bundles measured.
"""
