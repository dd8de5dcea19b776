"""A deployment over time: replicas that start, serve, queue and end as a policy decides.

Policies of autoscalers as their documentation states them, a simulator by requests and one by
flows, bounds of what any policy can reach, and the search for the cheapest parameters. May import
base, hardware, engines, request, traffic, space, physics, search and sizing.
"""
