"""Routers that are trained on outcomes: classifiers, calibration, thresholds, and their folders."""
