"""A deployment over time: traces, loads, and replicas that a policy starts and ends.

Policies of autoscalers as their documentation states them, a simulator by requests and one by
flows, bounds of what any policy can reach, and the search for the cheapest parameters.
"""
