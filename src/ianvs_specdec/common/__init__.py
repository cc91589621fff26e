"""Errors, plain types, settings, progress and durable files, used by all packages."""
