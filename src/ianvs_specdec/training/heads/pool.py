"""The pool: conversations as the target itself would have them, with the target's features at every position.

The target's forward costs far more than a head, so it is run once for each conversation, and the head sees the result
several times. Made in shards that are written to disk as they are finished: an interrupted run goes on with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ianvs_specdec.common.storage.atomic import replacing
from ianvs_specdec.training.heads.conversations import Conversation

SHARD = 32
"""Conversations: few, since on a CPU an answer takes seconds."""
STORED = ("tokens", "features", "layers", "run")
"""What a shard holds of each sample."""


@dataclass
class Sample:
    """One sequence: ``tokens [length]``, ``features [length, hidden]`` (the target's last hidden state after the final
    norm), ``layers [length, 3 * hidden]`` (inputs of three of its layers; no columns where not asked for) and ``run
    [length]``, how many tokens from here on, without a gap, the target has said itself.
    """

    tokens: Tensor
    features: Tensor
    layers: Tensor
    run: Tensor
    group: str = "all"

    @property
    def starts(self) -> Tensor:
        """Positions s from which a draft can start: token s+1 has just been decided, token s+2 is to be guessed."""
        return (self.run[1:] >= 2).nonzero().flatten()


def runs_of(spoken: Sequence[bool]) -> Tensor:
    """For each position, the number of consecutive true values that begin there."""
    runs, length = [], 0
    for value in reversed(spoken):
        length = length + 1 if value else 0
        runs.append(length)
    return torch.tensor(runs[::-1], dtype=torch.int32)


@dataclass
class Batch:
    """Samples padded to one length. ``starts [rows, starts]`` as in ``Sample``; draft k of a start is token ``start +
    k + 2``, and ``valid [steps, rows, starts]`` says where the target has said it without interruption since the start.
    Starts of long chains come first, so that draft k concerns the first ``widths[k]`` alone.
    """

    tokens: Tensor
    features: Tensor
    layers: Tensor
    starts: Tensor
    valid: Tensor
    widths: list[int]

    def at(self, values: Tensor, offset: int, width: int | None = None) -> Tensor:
        """``values[row, start + offset]`` for the first ``width`` starts: shape ``[rows, width, ...]``."""
        index = (self.starts[:, :width] + offset).clamp(max=values.shape[1] - 1)
        rows = torch.arange(len(values), device=values.device)[:, None]
        return values[rows, index]


def collate(
    samples: Sequence[Sample],
    steps: int,
    device: str,
    most: int | None = None,
    generator: torch.Generator | None = None,
) -> Batch:
    """One batch of the samples, for drafts of ``steps`` tokens, with at most ``most`` starts of each, at random."""
    length = max(len(sample.tokens) for sample in samples)
    starts = pad_sequence([sample.starts for sample in samples], batch_first=True, padding_value=length)
    run = pad(pad_sequence([sample.run for sample in samples], batch_first=True), (0, 2))
    reach, order = run.gather(1, starts + 1).sort(dim=1, descending=True, stable=True)
    starts = starts.gather(1, order)
    if most is not None and starts.shape[1] > most:
        kept = torch.randperm(starts.shape[1], generator=generator)[:most].sort().values
        starts, reach = starts[:, kept], reach[:, kept]
    valid = torch.stack([reach >= step + 2 for step in range(steps)])
    return Batch(
        pad_sequence([sample.tokens for sample in samples], batch_first=True).to(device),
        pad_sequence([sample.features for sample in samples], batch_first=True).to(device, torch.float32),
        pad_sequence([sample.layers for sample in samples], batch_first=True).to(device, torch.float32),
        starts.clamp(max=length - 1).to(device),
        valid.to(device),
        valid.sum(2).amax(1).tolist(),
    )


def save_shard(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples, complete or not at all."""
    parts = {
        "lengths": torch.tensor([len(sample.tokens) for sample in samples]),
        **{name: torch.cat([getattr(sample, name) for sample in samples]) for name in STORED},
    }
    with replacing(path) as temporary:
        save_file(parts, temporary)


def load_shard(path: Path) -> list[Sample]:
    parts = load_file(path)
    sizes = parts.pop("lengths").tolist()
    split = {name: values.split(sizes) for name, values in parts.items()}
    return [Sample(*row) for row in zip(*(split[name] for name in STORED), strict=True)]


Make = Callable[[Sequence[Conversation]], list[Sample]]


def fill(folder: Path, conversations: Sequence[Conversation], make: Make, done: Callable[[bool], None]) -> list[Sample]:
    """The samples in which a draft can start; ``make`` is asked for those that are not in ``folder`` yet. ``done`` is
    called for each shard with whether it was there."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[Sample] = []
    for first in range(0, len(conversations), SHARD):
        # Shards of earlier versions were larger, and named by their number.
        path, shard = folder / f"from-{first}.safetensors", conversations[first : first + SHARD]
        if not (had := path.exists()):
            save_shard(path, make(shard))
        done(had)
        samples += [replace(one, group=asked.group) for one, asked in zip(load_shard(path), shard, strict=True)]
    return [sample for sample in samples if len(sample.starts)]


class Order:
    """Which samples each training step sees: epochs in random order, the same for the same seed.

    A step's samples come in parts of similar size, so that little of a padded batch is padding.
    """

    def __init__(self, sizes: Sequence[int], *, rows: int, parts: int, seed: int) -> None:
        self._sizes = sizes
        self._rows = min(rows, len(sizes))
        self._parts, self._seed = parts, seed
        self._epoch, self._permutation = -1, torch.empty(0)

    def step(self, step: int) -> Iterator[list[int]]:
        per_epoch = len(self._sizes) // self._rows
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._epoch, self._permutation = epoch, torch.randperm(len(self._sizes), generator=generator)
        chosen = self._permutation[place * self._rows : (place + 1) * self._rows].tolist()
        chosen.sort(key=lambda index: self._sizes[index])
        size = -(-len(chosen) // self._parts)
        for start in range(0, len(chosen), size):
            yield chosen[start : start + size]
