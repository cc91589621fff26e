"""Implementations of a target model: native, torch, transformers."""
