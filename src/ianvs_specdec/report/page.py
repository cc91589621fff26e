"""The HTML page: one self-contained file, built from the document and the files in ``page``."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

SCRIPTS = (
    *("basics.js", "tips.js", "marks.js", "charts.js", "leaderboard.js", "figures.js", "times.js", "kinds.js"),
    *("drafts.js", "load.js", "split.js", "queries.js", "main.js"),
)


def to_json(document: dict[str, Any]) -> str:
    """The document as JSON; lone surrogates become question marks."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")


def to_html(document: dict[str, Any]) -> str:
    """The page. Questions and answers are embedded as data only, and the content security policy permits no script but
    the page's own."""
    script = "'use strict';\n(() => {\n" + "\n".join(map(_part, SCRIPTS)) + "\n})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {"POLICY": f"'sha256-{digest}'", "STYLE": _part("report.css"), "SCRIPT": script}
    head, _, tail = _part("report.html").partition("{{DATA}}")
    for name, text in parts.items():
        head, tail = head.replace(f"{{{{{name}}}}}", text), tail.replace(f"{{{{{name}}}}}", text)
    # Without "<" the data cannot close its element.
    return head + to_json(document).replace("<", "\\u003c") + tail


def _part(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")
