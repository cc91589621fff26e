"""Routing without running a model: recorded outcomes of two models, routers trained on them, and their evaluation.

``outcomes`` holds what both models made of a set of queries, ``labels`` what a router is to learn from it,
``classifier`` the kinds of routers that can be trained and ``folder`` a trained one on disk.
"""
