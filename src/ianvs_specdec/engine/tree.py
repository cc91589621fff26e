"""The token tree, which a drafter proposes and a target verifies in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
import torch
from torch import Tensor


@dataclass
class TokenTree:
    """Draft tokens below the root, parents before children.

    ``tokens[0]`` is the root: the last token of the context, not yet in the target's cache. ``parents[i] < i`` is the
    parent of node ``i``, -1 for the root. A chain is a tree without branches.

    ``probabilities[i]`` is the distribution ``[vocabulary]`` from which the children of node ``i`` were drawn, in node
    order and without replacement; lossless sampling needs it. Children of nodes without it were chosen
    deterministically (point masses).

    ``scouts`` are nodes that are computed for the drafter only and never accepted; their children must be scouts.
    ``notes`` is written to the trace of the step (JSON).
    """

    tokens: list[int]
    parents: list[int]
    probabilities: Mapping[int, Tensor] | None = None
    scouts: frozenset[int] = frozenset()
    notes: Mapping[str, Any] | None = None

    @classmethod
    def chain(
        cls, root: int, draft: Sequence[int] = (), probabilities: Mapping[int, Tensor] | None = None
    ) -> TokenTree:
        return cls([root, *draft], list(range(-1, len(draft))), probabilities)

    def __len__(self) -> int:
        return len(self.tokens)

    def check(self, root: int, vocabulary: int) -> None:
        """Raise ``ValueError`` unless this is a tree of token ids below ``vocabulary`` with the root ``root``."""
        if self.tokens[:1] != [root]:
            raise ValueError(f"the root of the tree must be the last token, {root}, not {self.tokens[:1]}")
        if not 0 <= min(self.tokens) <= max(self.tokens) < vocabulary:
            wrong = next(token for token in self.tokens if not 0 <= token < vocabulary)
            raise ValueError(f"token id {wrong} is not in the model's vocabulary, 0 to {vocabulary - 1}")
        placed = self.parents[:1] == [-1] and all(0 <= parent < i for i, parent in enumerate(self.parents[1:], start=1))
        if len(self.parents) != len(self.tokens) or not placed:
            raise ValueError(f"the parents {self.parents} of {len(self.tokens)} nodes do not make a tree")

    @property
    def is_chain(self) -> bool:
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> list[int]:
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    @property
    def depth(self) -> int:
        """Depth of the deepest node that can be accepted."""
        if len(self.tokens) == 1:
            return 0
        if not self.scouts:
            return max(self.depths)
        return max(depth for node, depth in enumerate(self.depths) if node not in self.scouts)

    @cached_property
    def children(self) -> list[list[int]]:
        """The acceptable children of every node, in node order, which is the order in which they are tried."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents[1:], start=1):
            if node not in self.scouts:
                children[parent].append(node)
        return children

    def path_to(self, node: int) -> list[int]:
        path = [node]
        while path[-1] > 0:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def continuation(self, node: int, most: int) -> tuple[int, ...]:
        """The first child of ``node``, its first child, and so on: at most ``most`` tokens."""
        tokens: list[int] = []
        if node + 1 == len(self.tokens):
            return ()  # children follow their parents
        while len(tokens) < most and (children := self.children[node]):
            node = children[0]
            tokens.append(self.tokens[node])
        return tuple(tokens)

    def mask(self, device: torch.device | None = None) -> Tensor:
        """Attention mask, bool ``[nodes, nodes]``, row = query: a node sees its ancestors and itself."""
        size = (len(self) + 7) // 8
        seen = [1]
        for node, parent in enumerate(self.parents[1:], start=1):
            seen.append(seen[parent] | 1 << node)
        rows = b"".join([bits.to_bytes(size, "little") for bits in seen])
        packed = numpy.frombuffer(rows, numpy.uint8).reshape(len(self), size)
        mask = numpy.unpackbits(packed, axis=1, count=len(self), bitorder="little")
        return torch.from_numpy(mask).view(torch.bool).to(device)

    def truncated(self, depth: int) -> TokenTree:
        kept = [node for node, d in enumerate(self.depths) if d <= depth]
        renumbered = {node: i for i, node in enumerate(kept)}
        parents = [renumbered.get(self.parents[node], -1) for node in kept]
        probabilities = self.probabilities and {
            renumbered[node]: q for node, q in self.probabilities.items() if node in renumbered
        }
        scouts = frozenset(renumbered[node] for node in self.scouts if node in renumbered)
        tokens = [self.tokens[node] for node in kept]
        return TokenTree(tokens, parents, probabilities, scouts, self.notes)
