"""Load benchmark: the same requests at several rates for each speculation policy.

``plan``: options; ``arrivals``, ``traces``: requests; ``generator``: the process that sends them; ``servers``;
``rounds``: one policy at one rate; ``sweep``: all rounds; ``results``, ``output``; ``simulation``: simulated time.
"""
