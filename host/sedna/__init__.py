"""The part of KubeEdge Sedna's interface that joint-inference plugins for Ianvs import.

This is not the mathematics package that the Python package index calls ``sedna``.
"""
