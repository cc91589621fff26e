"""The files of a benchmark: given by the user, or downloaded from the Hugging Face hub."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ianvs_specdec.benchmarks.files import File
from ianvs_specdec.common.errors import UserError, optional_import

QUESTIONS = "questions"
"""The part with the questions, which every benchmark has."""
HUB_TIMEOUT = 10.0
"""Seconds."""


@dataclass(frozen=True)
class Part:
    """One part of a benchmark. ``names``: patterns of its files in a folder, an archive or a snapshot of the hub; the
    first that matches is used. ``hub``: its files in the hub's repository."""

    names: tuple[str, ...]
    hub: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """``home``: where the original is; ``repository``: the dataset on the hub, "" if its authors published none."""

    home: str
    parts: Mapping[str, Part]
    repository: str = ""


@dataclass(frozen=True)
class Inputs:
    """The files of a benchmark: ``given`` by the user for the questions, ``named`` for other parts. Without ``given``,
    all parts are downloaded from the hub on demand."""

    source: Source
    given: Sequence[Path] = ()
    named: Mapping[str, Sequence[Path]] = field(default_factory=dict)

    def files(self, part: str = QUESTIONS) -> list[File]:
        """The files of a part. Raises UserError if they are missing or the hub is unreachable."""
        own = self.given if part == QUESTIONS else self.named.get(part, ())
        if own:
            return [file for path in own for file in self._below(path, part, required=True)]
        if self.given:
            return [file for path in self.given if _holds_files(path) for file in self._below(path, part)]
        if not self.source.repository:
            message = f"the authors did not put this benchmark on the Hugging Face hub; it is at {self.source.home}"
            raise UserError(f"{message}. Give your copy with --from")
        hub = self.source.parts[part].hub
        return [file for name in hub for file in self._below(self._fetched(name), part)]

    def _below(self, path: Path, part: str, *, required: bool = False) -> list[File]:
        if not path.exists():
            raise UserError(f"there is no file {path}")
        if not _holds_files(path):
            return [path]
        files = dict(_members(path))
        for pattern in self.source.parts[part].names:
            if found := [file for name, file in files.items() if PurePosixPath(name).match(pattern)]:
                return [member for file in found for member in self._unpacked(file, part)]
        if required:
            names = ", ".join(self.source.parts[part].names)
            raise UserError(f"{path} holds no {part} with the expected names ({names}): name the files themselves")
        return []

    def _unpacked(self, file: File, part: str) -> list[File]:
        if isinstance(file, Path) and file.suffix == ".zip":
            return self._below(file, part, required=True)
        return [file]

    def _fetched(self, name: str) -> Path:
        with optional_import():
            import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError

        repository = self.source.repository
        try:
            if not isinstance(hub.try_to_load_from_cache(repository, name, repo_type="dataset"), str):
                check_hub(repository)
            return Path(hub.hf_hub_download(repository, name, repo_type="dataset"))
        except (HfHubHTTPError, OSError, ValueError) as error:
            place = f"{name} of the dataset {repository}"
            reason = str(error).strip().partition("\n")[0]
            raise UserError(
                f"cannot get {place} from the Hugging Face hub ({type(error).__name__}: {reason:.250}). Without "
                f"network, give a copy of it, or of {self.source.home}, with --from"
            ) from error


def _holds_files(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".zip"


def _members(path: Path) -> Iterator[tuple[str, File]]:
    """Names (starting with the folder's) and files in a folder or an archive, sorted, without hidden ones."""
    if path.is_dir():
        top, below = path.resolve().name, [file for file in path.rglob("*") if file.is_file()]
        files: dict[str, File] = {f"{top}/{file.relative_to(path).as_posix()}": file for file in below}
    else:
        try:
            archive = zipfile.Path(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise UserError(f"{path}: cannot be read as a zip archive: {error}") from error
        files = {name: archive / name for name in archive.root.namelist() if not name.endswith("/")}
        top = ""
    hidden = {name for name in files if any(part.startswith(".") for part in name.removeprefix(top).split("/"))}
    yield from ((name, files[name]) for name in sorted(files.keys() - hidden))


def check_hub(repository: str) -> None:
    """Raise ConnectionError unless the hub has the data set and answers within ``HUB_TIMEOUT``: a download would retry
    for half a minute. With ``HF_HUB_OFFLINE`` the cache is used."""
    import huggingface_hub as hub
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        hub.HfApi().dataset_info(repository, timeout=HUB_TIMEOUT)
    except OfflineModeIsEnabled:
        return
    except Exception as error:
        # The exceptions are those of the HTTP package that the hub's client uses.
        raise ConnectionError(one_line(error)) from error


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__
