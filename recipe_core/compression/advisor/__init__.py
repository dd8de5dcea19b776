"""What each technique of compression would do to one plan: memory, speed, cost, accuracy, energy.

May import base, model, hardware, engines, request, compression, space, physics, search, sizing,
fleet and explain.
"""
