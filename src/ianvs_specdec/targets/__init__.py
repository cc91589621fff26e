"""Implementations of a model: native, torch, transformers."""
