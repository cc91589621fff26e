"""Simulation of a server and its users: the real engine loop and speculation lengths, without a model.

Step times are from a cost table, acceptance from recorded answers.
"""
