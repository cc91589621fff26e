"""Wheels: metadata, content, and a job that runs from them alone."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from ianvs_specdec.commands.example import EXAMPLE, contents
from tests.support.paths import ROOT

PROJECTS = {"ianvs_specdec": ROOT, "ianvs_specdec_host": ROOT / "host"}
PYTHONS = ("3.11", "3.12", "3.13")
RELATIVE = re.compile(r"\]\((?!https?:)")
ROWS = 4
BUILT_FROM = ("docs", "examples", "host", "src")


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("folder", PROJECTS.values(), ids=PROJECTS)
def test_metadata_of_both_packages(folder: Path) -> None:
    metadata = project(folder)
    assert metadata["authors"]
    assert all(address.startswith("https://") for address in metadata["urls"].values())
    pythons = [line.rpartition(" ")[2] for line in metadata["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert tuple(pythons) == PYTHONS
    assert metadata["requires-python"] == f">={PYTHONS[0]}"
    for name in metadata["license-files"]:
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()


def test_pins_for_load_match_the_extra() -> None:
    files = [ROOT / name for name in ("requirements.txt", "requirements-load.txt")]
    pins = dict(
        line.split("==") for file in files for line in file.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    for wanted in map(Requirement, project(ROOT)["optional-dependencies"]["load"]):
        assert wanted.specifier.contains(pins.get(wanted.name) or pins[wanted.name.replace("-", "_")]), wanted


def test_pages_and_tools_name_the_same_pythons() -> None:
    versions = f"Python {PYTHONS[0]}, {PYTHONS[1]} or {PYTHONS[2]}"
    for page in ("README.md", "CONTRIBUTING.md"):
        assert versions in (ROOT / page).read_text(encoding="utf-8")
    assert f"Python {PYTHONS[0]} to {PYTHONS[2]}" in (ROOT / "requirements.txt").read_text(encoding="utf-8")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert tools["ruff"]["target-version"] == "py" + PYTHONS[0].replace(".", "")
    assert tools["mypy"]["python_version"] == PYTHONS[0]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.txt"), *(ROOT / "examples").rglob("*.md")]
    older = re.compile(r"[Pp]ython 3\.(\d|10)\b")
    assert [page.name for page in pages if older.search(page.read_text(encoding="utf-8"))] == []


def build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_on_an_index_has_no_relative_links() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = build_script().index_readme(readme)
    assert RELATIVE.search(readme)
    assert not RELATIVE.search(shown)
    assert "decoding (`docs/decoding.md`)" in shown
    assert "[KubeEdge Ianvs](https://github.com/kubeedge/ianvs)" in shown
    assert shown.startswith(readme.partition("\n")[0])
    assert not RELATIVE.search((ROOT / "host" / "README.md").read_text(encoding="utf-8"))


def run(command: list[str | Path], folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kept |= environment
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def unoptimized() -> dict[str, str]:
    """An environment in which variants are compiled without optimization, which takes five sixths of the time."""
    compiler = build_script().native_build().compiler()
    if compiler is None:
        return {}
    # The last level of optimization counts.
    return {"CXX": shlex.join(["sh", "-c", f'exec {shlex.join(compiler)} "$@" -O0', "compiler"])}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of ``make dist``."""
    folder = tmp_path_factory.mktemp("dist")
    # A build writes files to its folder, and several may run concurrently.
    source = folder / "source"
    for part in BUILT_FROM:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    for file in filter(Path.is_file, ROOT.iterdir()):
        shutil.copyfile(file, source / file.name)
    # With this environment.
    build = ["make", "dist", "-o", "setup", f"BIN={Path(sys.executable).parent}", f"DIST={folder}"]
    run(build, source, **unoptimized())
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a new environment with only the wheels; dependencies come from this environment."""
    home = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", home], home)
    programs = home / ("Scripts" if sys.platform == "win32" else "bin")
    wheels = sorted(dist.glob("*.whl"))
    assert len(wheels) == 2
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", programs / "python"]
    run([*pip, "install", "--no-deps", "--no-index", *wheels], home)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([programs / "python", "-c", where], home).strip())
    needed = [path for path in sys.path if path.endswith("site-packages")]
    # Folders in a .pth file have lower priority, and .pth files in them are ignored, such as that of an editable
    # installation.
    (packages / "needed.pth").write_text("\n".join(needed) + "\n")
    return programs


@pytest.mark.slow
def test_content_and_metadata_of_the_wheels(dist: Path) -> None:
    for name in PROJECTS:
        (wheel,) = dist.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
            (metadata,) = (file for file in files if file.endswith(".dist-info/METADATA"))
            info = email.message_from_string(archive.read(metadata).decode("utf-8"))
        for licence in ("LICENSE", "NOTICE"):
            assert metadata.replace("METADATA", f"licenses/{licence}") in files
        assert info["Author"]
        assert info["Project-URL"]
        assert info["Description-Content-Type"] == "text/markdown"
        assert not RELATIVE.search(str(info.get_payload()))
        own = ("ianvs_specdec/", "core/", "sedna/", metadata.partition("/")[0])
        assert [file for file in files if not file.startswith(own)] == []
        example = {file for file in files if "/examples/" in file}
        expected = {(EXAMPLE / file).as_posix() for file in contents(ROOT / EXAMPLE)}
        assert example == ({f"ianvs_specdec/{file}" for file in expected} if name == "ianvs_specdec" else set())
    (source,) = dist.glob("ianvs_specdec-*.tar.gz")
    with tarfile.open(source) as archive:
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert expected | {"setup.py", "docs/architecture.md", "CHANGELOG.md", "LICENSE"} <= members
    assert len(list(dist.glob("*.tar.gz"))) == len(PROJECTS)


@pytest.mark.slow
def test_a_wheel_has_the_native_step(dist: Path) -> None:
    folder = "ianvs_specdec/targets/native"
    (wheel,) = dist.glob("ianvs_specdec-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {file for file in archive.namelist() if file.startswith(folder)}
        (metadata,) = (file for file in archive.namelist() if file.endswith(".dist-info/WHEEL"))
        pure = "Root-Is-Purelib: true" in archive.read(metadata).decode("utf-8")
    assert f"{folder}/csrc/specdec.h" in files
    compiled = f"{folder}/lib/specdec_generic.so" in files
    assert compiled == (f"{folder}/lib/why_not.txt" not in files)
    assert compiled == (build_script().native_build().compiler() is not None)
    assert pure == (not compiled)
    assert wheel.stem.endswith("-py3-none-any") == (not compiled)
    assert "-py3-none-" in wheel.name
    (source,) = dist.glob("ianvs_specdec-*.tar.gz")
    with tarfile.open(source) as archive:
        members = {member.name.partition("/")[2] for member in archive}
    assert {f"src/{folder}/csrc/specdec.h", f"src/{folder}/build.py"} <= members
    assert not any(name.startswith(f"src/{folder}/lib/") for name in members)


@pytest.mark.slow
def test_a_job_runs_from_the_wheels_alone(installed: Path, tmp_path: Path) -> None:
    where = "import core, ianvs_specdec, sedna; print(core.__file__, ianvs_specdec.__file__, sedna.__file__)"
    assert run([installed / "python", "-c", where], tmp_path).count(str(installed.parent)) == 3
    assert "-f" in run([installed / "ianvs", "--help"], tmp_path)

    *_, change, command = run([installed / "specdec", "example", "my work"], tmp_path).splitlines()
    assert change == "cd 'my work'"
    work = tmp_path / "my work"
    example = work / EXAMPLE
    assert contents(example) == contents(ROOT / EXAMPLE)
    _, option, job = command.split()
    assert "is valid" in run([installed / "ianvs", "check", option, job], work)

    small = yaml.safe_load((work / job).read_text(encoding="utf-8"))
    algorithms = small["benchmarkingjob"]["test_object"]["algorithms"]
    algorithms[:] = [entry for entry in algorithms if entry["name"] == "edge-only"]
    (work / "small.yaml").write_text(yaml.safe_dump(small, sort_keys=False))
    data = example / "dataset" / "knowledge" / "test.jsonl"
    data.write_text("".join(data.read_text(encoding="utf-8").splitlines(keepends=True)[:ROWS]), encoding="utf-8")
    assert "EdgeOnly" in run([installed / "ianvs", "-f", "small.yaml"], work)
    (answers,) = {len(path.read_text().splitlines()) for path in (work / "workspace").rglob("answers.jsonl")}
    assert answers == ROWS
    run([installed / "specdec", "report", "workspace/cloud-edge-speculative-decoding"], work)
