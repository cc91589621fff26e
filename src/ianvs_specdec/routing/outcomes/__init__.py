"""Outcomes: how good the edge's and the cloud's answer to each query is, collected, read and labelled."""
