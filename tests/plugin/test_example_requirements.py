"""What the example folder says it needs is what the plugin's package asks for."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

FILE = ROOT / "examples" / "cloud-edge-speculative-decoding" / "requirements.txt"


def test_the_requirements_of_the_example_are_those_of_the_package() -> None:
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert lines == re.findall(r'"(.+)"', listed.group(1))
