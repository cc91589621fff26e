"""Paths that have a name. docs/link.md has the sources of the figures, which are typed in and not measured here."""

from __future__ import annotations

from collections.abc import Mapping

NONE = "none"
PRESETS: Mapping[str, Mapping[str, str]] = {
    NONE: {},
    "lan": {"delay": "0.15ms", "jitter": "0.05ms", "up": "1gbit", "down": "1gbit"},
    "fibre": {"delay": "5ms", "jitter": "0.5ms", "up": "100mbit", "down": "300mbit"},
    "lte": {"delay": "25ms", "jitter": "5ms", "up": "9mbit", "down": "27mbit", "loss": "0.1%"},
    "5g": {"delay": "15ms", "jitter": "3ms", "up": "21mbit", "down": "166mbit", "loss": "0.05%"},
    "satellite-leo": {"delay": "25ms", "jitter": "5ms", "up": "17mbit", "down": "178mbit", "loss": "0.4%"},
    "satellite-geo": {"delay": "300ms", "jitter": "10ms", "up": "10mbit", "down": "100mbit", "loss": "0.1%"},
}
"""Name -> options of a path."""
