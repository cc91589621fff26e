"""What pyproject.toml has no words for: the example goes into the package, the native step is compiled, and an index
gets a README without relative links.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# The build asks the package itself, which is not installed yet, which files the example has.
sys.path.insert(0, str(ROOT / "src"))
from ianvs_specdec.commands.example import EXAMPLE, contents  # noqa: E402

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#]*)[^)]*\)")
NATIVE = Path("ianvs_specdec", "targets", "native")
WHERE = "*The files and pages named below are in the source distribution.*"


def native_build() -> ModuleType:
    """How the native step is compiled. The package around that file needs what may not be installed yet."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "src" / NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Build(build_py):
    """Copies the example into ``ianvs_specdec/examples`` of a wheel, since the repository holds it once, and compiles
    the native step. The installation succeeds without it."""

    def run(self) -> None:
        super().run()
        # An editable installation stays on this machine.
        reason = native_build().build(self._native(), here=bool(self.editable_mode))
        if reason is not None:
            self.warn(f"the native step was not built, decoding will be slower: {reason}")
        # An editable installation reads the repository's.
        if not self.editable_mode:
            for source, target in self._example().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        own = list(super().get_outputs(include_bytecode))
        native = [str(file) for file in Path(self._native(), "lib").glob("*")]
        return own if self.editable_mode else [*own, *self._example().values(), *native]

    def get_source_files(self) -> list[str]:
        """The source distribution holds what the wheel is built from."""
        return [*super().get_source_files(), *self._example()]

    def _native(self) -> Path:
        """Where the package lies: in the repository for an editable installation, else in the folder for the wheel."""
        return (ROOT / "src" if self.editable_mode else Path(self.build_lib)) / NATIVE

    def _example(self) -> dict[str, str]:
        """File of the repository, relative to its root -> file in the folder from which the wheel is made."""
        place = Path(self.build_lib, "ianvs_specdec", EXAMPLE)
        return {str(EXAMPLE / file): str(place / file) for file in contents(ROOT / EXAMPLE)}


class Wheel(bdist_wheel):
    """A wheel with libraries is for this platform, and for every Python, since they are called through ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        platform = re.sub("[-. ]", "_", sysconfig.get_platform())
        return "py3", "none", platform if self._compiled() else "any"

    def write_wheelfile(self, *arguments: Any, **options: Any) -> None:
        self.root_is_pure = not self._compiled()
        super().write_wheelfile(*arguments, **options)

    def _compiled(self) -> bool:
        return any(Path(self.bdist_dir, NATIVE, "lib").glob("*.so"))


def index_readme(text: str) -> str:
    """The README as an index can show it: a relative link becomes its text and the file's name, an image its text."""

    def plain(link: re.Match[str]) -> str:
        image, words, file = link.groups()
        return words if image else f"{words} (`{file}`)"

    title, _, rest = text.partition("\n")
    return f"{title}\n\n{WHERE}\n{LINK.sub(plain, rest)}"


if __name__ == "__main__":
    setup(
        cmdclass={"bdist_wheel": Wheel, "build_py": Build},
        long_description=index_readme((ROOT / "README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )
