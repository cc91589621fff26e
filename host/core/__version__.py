"""The version that ``ianvs -v`` prints."""

__version__ = "0.2.0"
