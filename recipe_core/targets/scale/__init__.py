"""The request's scaling policy in the terms of autoscalers: one module per kind of object.

Numbers are written as they are. What an object cannot be told is refused with the field that is in
the way; no policy is replaced by another.
"""
