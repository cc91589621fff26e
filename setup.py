"""What pyproject.toml has no words for: the example goes into the package, and an index gets a README without relative
links.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# The build asks the package itself, which is not installed yet, which files the example has.
sys.path.insert(0, str(ROOT / "src"))
from ianvs_specdec.commands.example import EXAMPLE, contents  # noqa: E402

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#]*)[^)]*\)")
WHERE = "*The files and pages named below are in the source distribution.*"


class BuildWithExample(build_py):
    """Copies the example into ``ianvs_specdec/examples`` of a wheel. The repository holds it once."""

    def run(self) -> None:
        super().run()
        # An editable installation reads the repository's.
        if not self.editable_mode:
            for source, target in self._example().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        own = list(super().get_outputs(include_bytecode))
        return own if self.editable_mode else [*own, *self._example().values()]

    def get_source_files(self) -> list[str]:
        """The source distribution holds what the wheel is built from."""
        return [*super().get_source_files(), *self._example()]

    def _example(self) -> dict[str, str]:
        """File of the repository, relative to its root -> file in the folder from which the wheel is made."""
        place = Path(self.build_lib, "ianvs_specdec", EXAMPLE)
        return {str(EXAMPLE / file): str(place / file) for file in contents(ROOT / EXAMPLE)}


def index_readme(text: str) -> str:
    """The README as an index can show it: a relative link becomes its text and the file's name, an image its text."""

    def plain(link: re.Match[str]) -> str:
        image, words, file = link.groups()
        return words if image else f"{words} (`{file}`)"

    title, _, rest = text.partition("\n")
    return f"{title}\n\n{WHERE}\n{LINK.sub(plain, rest)}"


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithExample},
        long_description=index_readme((ROOT / "README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )
