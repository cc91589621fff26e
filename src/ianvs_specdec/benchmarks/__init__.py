"""Benchmarks: rows of Ianvs data files as queries, scorers for the answers, converters from the original files."""
