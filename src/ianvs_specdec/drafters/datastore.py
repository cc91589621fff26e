"""A datastore: token sequences and the suffix array over them, for drafters that retrieve what others have said.

A file in safetensors format: tensor ``tokens`` (uint8, the ids as big-endian numbers of 2 or 4 bytes, so that the order
of bytes is the order of ids; a separator, one more than the largest id, behind every sequence), tensor ``suffixes``
(int32 or int64, the positions of all ids in the order of what begins there) and, as metadata ``datastore``, a JSON
object of ``version``, ``vocabulary``, ``tokenizer`` (a fingerprint, may be empty) and ``checksum`` (CRC-32 of both).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import replacing
from ianvs_specdec.models.json_files import read_object

if TYPE_CHECKING:
    from ianvs_specdec.engine import Target

FORMAT_VERSION = 1
FEW, MANY = 256, 512
"""How many occurrences still call for those of a shorter suffix, and how many are looked at."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Datastore:
    """Token sequences in which every suffix can be looked up. ``vocabulary`` is the number of ids."""

    def __init__(
        self, tokens: NDArray[numpy.uint8], suffixes: NDArray[numpy.signedinteger], vocabulary: int, tokenizer: str = ""
    ) -> None:
        self.vocabulary, self.tokenizer = vocabulary, tokenizer
        self._width = _width(vocabulary)
        self._data, self._suffixes = tokens, suffixes
        self._ids = tokens.view(f">u{self._width}")
        # Single elements come out of a memoryview several times faster than out of an array.
        self._bytes, self._order = tokens.data, suffixes.data

    def __len__(self) -> int:
        return len(self._suffixes)

    @property
    def separator(self) -> int:
        """What ``continuations`` holds behind the end of a sequence."""
        return self.vocabulary

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], vocabulary: int, tokenizer: str = "") -> Datastore:
        """Index sequences of ids below ``vocabulary``, in some 21 bytes of memory a token (twice that for vocabularies
        of 65,536 and more)."""
        data = bytearray()
        kind = f">u{_width(vocabulary)}"
        for sequence in filter(len, sequences):
            data += numpy.array([*sequence, vocabulary], kind).tobytes()
        if not data:
            raise UserError("a datastore needs at least one token", key="datastore")
        tokens = numpy.frombuffer(data, numpy.uint8)
        return cls(tokens, _suffix_array(tokens, vocabulary), vocabulary, tokenizer)

    def save(self, path: Path) -> None:
        """Write the file; the same sequences give the same bytes."""
        from safetensors.numpy import save_file

        header = {
            "version": FORMAT_VERSION,
            "vocabulary": self.vocabulary,
            "tokenizer": self.tokenizer,
            "checksum": self._checksum(),
        }
        # One entry only: safetensors writes several in random order.
        metadata = {"datastore": json.dumps(header)}
        with replacing(path) as temporary:
            save_file({"tokens": self._data, "suffixes": self._suffixes}, temporary, metadata)

    @classmethod
    def load(cls, path: Path) -> Datastore:
        """Map the file into memory. Raises ``UserError`` for a file that is not a whole datastore."""
        from safetensors import safe_open

        try:
            # Through torch, which maps the file; safetensors' NumPy side would copy it.
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("datastore", "{}"))
                if header.get("version") != FORMAT_VERSION:
                    raise UserError(f"{path} is not a datastore of this version: {_BUILD}", key="datastore")
                tokens, suffixes = (file.get_tensor(name).numpy() for name in ("tokens", "suffixes"))
            store = cls(tokens, suffixes, header["vocabulary"], header["tokenizer"])
            if store._checksum() != header["checksum"]:
                raise ValueError("its contents do not match its checksum")
        except UserError:
            raise
        except Exception as error:
            # safetensors has exceptions of its own for damaged files, and so has the system.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"cannot read the datastore {path}: {reason}; {_BUILD}", key="datastore") from error
        return store

    def check_fits(self, path: Path, target: Target) -> None:
        """Raise ``UserError`` if the ids in the datastore, read from ``path``, mean other tokens to ``target``."""
        vocabulary = len(target.embedding)
        folder = getattr(getattr(target, "model", None), "name_or_path", "")
        tokenizer = fingerprint(Path(folder)) if folder else ""
        # Of one tokenizer, models are padded to different sizes, and no text has a token of the padding.
        same = tokenizer and tokenizer == self.tokenizer and self._ids[self._ids < self.vocabulary].max() < vocabulary
        unknown = not (tokenizer and self.tokenizer) and vocabulary == self.vocabulary
        if not (same or unknown):
            told = f"the datastore {path} has a vocabulary of {self.vocabulary} tokens, the model one of {vocabulary}"
            raise UserError(f"{told}, or it was made with another tokenizer: {_BUILD}", key="datastore")

    def longest_suffix(self, tokens: Sequence[int], least: int) -> int:
        """The length of the longest suffix of ``tokens``, at least ``least``, that occurs; 0 if there is none."""
        data = self._encoded(tokens)
        # Where a sequence of tokens occurs, every suffix of it does: the longest can be found by halving.
        low, high = least - 1, len(tokens)
        while low < high:
            probe = (low + high + 1) // 2
            if self._first(self._end(data, probe)) is None:
                high = probe - 1
            else:
                low = probe
        return low if low >= least else 0

    def continuations(
        self, tokens: Sequence[int], longest: int, least: int, length: int
    ) -> tuple[NDArray[numpy.int64], NDArray[numpy.float64]]:
        """What followed suffixes of ``tokens``, of which ``longest`` occurs and counts most.

        Ids ``[rows, length]`` in lexicographic order, the separator behind the end of a sequence; and weights
        ``[rows]``: 2 to the power of how many tokens before are those of ``tokens``. The suffix looked up is the
        longest one, or half of it, or half of that, down to ``least``, as long as it occurs at most ``FEW`` times; of
        more than ``MANY`` occurrences as many are taken, at equal distances.
        """
        data = self._encoded(tokens)
        matched, (first, last) = longest, self._range(self._end(data, longest))
        while last - first < FEW and matched > least:
            probe = max(matched // 2, least)
            found = self._range(self._end(data, probe))
            if found[1] - found[0] > FEW:
                break
            matched, (first, last) = probe, found
        count = last - first
        chosen = first + numpy.arange(MANY) * count // MANY if count > MANY else slice(first, last)
        places = self._suffixes[chosen][:, None].astype(numpy.int64)
        rows = self._ids[numpy.minimum(places + numpy.arange(matched, matched + length), len(self._ids) - 1)]
        before = numpy.array(tokens[-longest : len(tokens) - matched][::-1], self._ids.dtype)
        # A place before the first token is taken from the end, which is a separator and never equal.
        equal = self._ids[numpy.maximum(places - 1 - numpy.arange(len(before)), -1)] == before
        return rows.astype(numpy.int64), 2.0 ** (matched + numpy.logical_and.accumulate(equal, axis=1).sum(axis=1))

    def _encoded(self, tokens: Sequence[int]) -> bytes:
        return numpy.minimum(tokens, self.separator).astype(self._ids.dtype).tobytes()

    def _end(self, data: bytes, tokens: int) -> bytes:
        return data[len(data) - tokens * self._width :]

    def _range(self, pattern: bytes) -> tuple[int, int]:
        """The ranks of the suffixes that begin with ``pattern``, which occurs: the first, and one more than the
        last."""
        first = self._first(pattern)
        assert first is not None
        size, at, order = len(pattern), self._at, self._order
        # Most patterns are rare: the end is near.
        near = min(first + FEW, len(order))
        low, high = (first, near) if near == len(order) or at(order[near], size) != pattern else (near, len(order))
        return first, bisect_right(order, pattern, low, high, key=lambda position: at(position, size))

    def _first(self, pattern: bytes) -> int | None:
        """The rank of the first suffix that begins with ``pattern``."""
        size, at = len(pattern), self._at
        rank = bisect_left(self._order, pattern, key=lambda position: at(position, size))
        found = rank < len(self._order) and at(self._order[rank], size) == pattern
        return rank if found else None

    def _at(self, position: int, size: int) -> bytes:
        start = position * self._width
        return bytes(self._bytes[start : start + size])

    def _checksum(self) -> str:
        return f"{zlib.crc32(self._order.cast('B'), zlib.crc32(self._bytes)):08x}"


_BUILD = "build one for this model with `specdec datastore build`"


def fingerprint(folder: Path) -> str:
    """What tells the tokenizer in a model's ``folder`` from others (SHA-256 of its vocabulary); "" if there is none."""
    file = next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)
    if file is None:
        return ""
    if file.name != "tokenizer.json":
        content = file.read_bytes()
    else:
        # The rest of the file is written differently by different versions of the same tokenizer.
        parsed = read_object(file)
        added = [[token["id"], token["content"]] for token in parsed.get("added_tokens", ())]
        content = json.dumps([parsed.get("model", {}).get("vocab"), added], sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _width(vocabulary: int) -> int:
    return 2 if vocabulary < 1 << 16 else 4


def _suffix_array(tokens: NDArray[numpy.uint8], vocabulary: int) -> NDArray[numpy.signedinteger]:
    """The positions of all tokens but separators, in the order of what begins there."""
    # libdivsufsort: linear space, insensitive to long repetitions, and packaged for every platform we run on.
    import pydivsufsort

    width = _width(vocabulary)
    positions = pydivsufsort.divsufsort(tokens)
    positions = positions[positions % width == 0] // width
    # Suffixes that begin with the separator come last.
    separators = numpy.count_nonzero(tokens.view(f">u{width}") == vocabulary)
    kind = numpy.int32 if len(tokens) < 1 << 31 else numpy.int64
    return positions[: len(positions) - separators].astype(kind)
