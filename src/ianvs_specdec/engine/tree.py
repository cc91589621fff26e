"""The token tree: what a drafter proposes and a target verifies in one forward."""

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
    """Draft tokens hanging off the root, parents before children.

    ``tokens[0]`` is the root: a token that is already decided, but not yet in the target's cache. ``parents[i] < i``
    is the node that node ``i`` continues; the root's parent is -1. A chain is a tree without branches. Depth, position
    and attention mask all derive from the parents.

    ``probabilities[i]`` is the distribution, shape ``[vocabulary]``, that the children of node ``i`` were drawn from,
    in node order; lossless sampling needs it. A node without an entry had its children chosen deterministically (a
    point mass).
    Siblings were drawn each without its earlier siblings.

    ``scouts`` are nodes that are computed for the drafter's own sake and never accepted; nothing but scouts may hang
    off a scout. ``notes`` is what a drafter wants to see in the step's trace (JSON).
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
        """Raise ``ValueError`` unless this is a tree of token ids below ``vocabulary`` that hangs off ``root``."""
        if self.tokens[:1] != [root]:
            raise ValueError(f"the root of the tree must be the last token, {root}, not {self.tokens[:1]}")
        if not 0 <= min(self.tokens) <= max(self.tokens) < vocabulary:
            wrong = next(token for token in self.tokens if not 0 <= token < vocabulary)
            raise ValueError(f"token {wrong} is none of the model's, which are 0 to {vocabulary - 1}")
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
        """The distance from the root of the deepest node that can be accepted."""
        if len(self.tokens) == 1:
            return 0
        if not self.scouts:
            return max(self.depths)
        return max(depth for node, depth in enumerate(self.depths) if node not in self.scouts)

    @cached_property
    def children(self) -> list[list[int]]:
        """The children of every node that can be accepted, in node order (the order in which they are tried)."""
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
        """The tokens that the draft tries first after ``node``, at most ``most``: its first child, that one's, ..."""
        tokens: list[int] = []
        if node + 1 == len(self.tokens):
            return ()  # children come behind their parents
        while len(tokens) < most and (children := self.children[node]):
            node = children[0]
            tokens.append(self.tokens[node])
        return tuple(tokens)

    def mask(self, device: torch.device | None = None) -> Tensor:
        """Attention mask: bool ``[nodes, nodes]``, row = query; a node sees its ancestors and itself."""
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
