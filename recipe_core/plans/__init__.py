"""From a request to a plan: names looked up, candidates judged and ranked, changes that help.

It estimates by ``estimates`` and holds no formula of its own; a plan of serving and one of training
answer alike.
"""
