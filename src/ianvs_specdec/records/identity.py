"""Fingerprints: content hashes of model files, and the properties of the machine that timings depend on."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically

BLOCK = 1 << 20
SHA_DIGITS = 64
READ = (
    *("config.json", "generation_config.json", "*quant*config.json", "adapter_*", "tokenizer*", "vocab*", "merges.txt"),
    *("added_tokens.json", "special_tokens_map.json", "*.model", "*.tiktoken", "tekken.json", "chat_template*"),
    "additional_chat_templates/*",
)
"""Files of a model folder besides its weights."""
WEIGHTS = ("model.safetensors", "model*.safetensors*", "*.safetensors", "pytorch_model*", "*.pt")
"""Patterns of weights: the first one that matches."""


def digest(value: Any) -> str:
    """SHA-256 (64 hexadecimal digits) of a JSON value, independent of the order of keys."""
    try:
        encoded = msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:
        # Rows may contain half of a surrogate pair, which is not valid UTF-8.
        encoded = json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(encoded).hexdigest()


class FileDigests:
    """SHA-256 of files, cached in the JSON file ``memory`` (None: in this instance) by path, size and modification
    time. Errors of the cache file are ignored."""

    def __init__(self, memory: Path | None) -> None:
        self.memory = memory
        self.changed = False
        self.files: dict[str, dict[str, str]] = {}
        """Digests of the files in a folder by name, by the digest of the folder."""
        try:
            known = {} if memory is None else json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            known = {}
        self.known: dict[str, list[Any]] = known if isinstance(known, dict) else {}

    def file(self, path: Path) -> str:
        found = self._file(path)
        self._remember()
        return found

    def _file(self, path: Path) -> str:
        status = path.stat()
        name, stamp = str(path.resolve()), [status.st_size, status.st_mtime_ns]
        remembered = self.known.get(name)
        if not _is_remembered(remembered) or remembered[:2] != stamp:
            sha = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    sha.update(block)
            self.known[name] = remembered = [*stamp, sha.hexdigest()]
            self.changed = True
        return str(remembered[2])

    def path(self, path: Path) -> str:
        """Digest of a file, or of a folder of a model or draft head."""
        return self.folder(path, "medusa_lm_head.*") if path.is_dir() else self.file(path)

    def folder(self, folder: Path, *more: str) -> str:
        """Digest of names and contents of a model's files, and of files that match ``more``; without a config.json, of
        all files that are not hidden."""
        weights = next((name for name in WEIGHTS if any(folder.glob(name))), "*.safetensors")
        names = (*READ, weights, *more) if (folder / "config.json").is_file() else ("**/*",)
        files = {path.relative_to(folder): path for name in names for path in folder.glob(name) if path.is_file()}
        shown = [name for name in files if not any(part.startswith(".") for part in name.parts)]
        found = {name.as_posix(): self._file(files[name]) for name in shown}
        if not found:
            raise UserError(f"the model folder {folder} has no files", key="model")
        value = digest(sorted(map(list, found.items())))
        self.files[value] = found
        self._remember()
        return value

    def _remember(self) -> None:
        if self.changed and self.memory is not None:
            try:
                self.memory.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.memory, json.dumps(self.known, indent=0))
                self.changed = False
            except OSError:
                pass


def _is_remembered(value: Any) -> TypeGuard[list[Any]]:
    """Whether this is a cache entry: size, time, digest."""
    return isinstance(value, list) and len(value) == 3 and isinstance(value[2], str) and len(value[2]) == SHA_DIGITS


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("model name", "Model\t", "Hardware")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_processors() -> int:
    """Number of logical processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=1)
def machine() -> Mapping[str, Any]:
    """Properties that timings on this machine depend on."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "processors": usable_processors(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": {name: version(name) for name in ("ianvs-specdec", "torch", "transformers")},
    }
