"""What makes models smaller: techniques, what they cost in accuracy, and what runs them where.

Data with sources, and the model of accuracy that is fitted to published figures. May import base,
model, hardware, engines, request and measured.
"""
