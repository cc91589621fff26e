"""How a draft grows out of an EAGLE head: EAGLE-2's dynamic tree and the chain. (The static tree: ``eagle_static``.)

Each function is given the sequence, the hidden state ``[1, hidden]`` behind the root's pair, and at most how many nodes
to draft. The order of nodes is that of the official implementation: level by level, within a level by the order of the
parents, then by rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ianvs_specdec.decoding import TokenTree
from ianvs_specdec.drafters.eagle_guesses import Guesses
from ianvs_specdec.drafters.eagle_head import EagleHead
from ianvs_specdec.drafters.eagle_sequence import HeadSequence


@dataclass
class Growth:
    """One draft in the making. ``least`` is the log-probability below which nothing is guessed."""

    head: EagleHead
    sequence: HeadSequence
    guesses: Guesses
    root: int
    nodes: int
    least: float

    @property
    def weighs(self) -> bool:
        """Whether probabilities have to be known before the end."""
        return self.least > -math.inf or not self.guesses.plain


def chain(growth: Growth, hidden: Tensor, depth: int) -> TokenTree:
    """The best guess, or with drawing guesses one draw, at each of ``depth`` positions."""
    head, guesses = growth.head, growth.guesses
    levels = min(depth, growth.nodes)
    drafted: list[Tensor] = []
    drawn_from: dict[int, Tensor] = {}
    likelihood = 0.0
    for level in range(levels):
        carry, logits = head.look(hidden)
        if not growth.weighs:
            index = logits.argmax(dim=-1)
        else:
            scores, known = guesses.scores(logits, level + 1)
            index = scores.argmax(dim=-1)
            likelihood += float(known[0, index])
            # What was drawn has to be proposed, or the proposals are no draws from q any more; what follows it has not.
            if likelihood < growth.least and not (guesses.draws and likelihood > -math.inf):
                break
            if guesses.draws:
                drawn_from[level] = known[0].exp()
        token = guesses.tokens(index)
        drafted.append(token)
        if level + 1 == levels or likelihood < growth.least:
            break
        hidden = growth.sequence.extend(token, carry, hidden, level + 1)
    return TokenTree.chain(growth.root, torch.cat(drafted).tolist() if drafted else (), drawn_from or None)


@dataclass
class _Pool:
    """All candidates of a dynamic tree: ``width`` children of the root, then for every level ``width`` children of each
    node in its beam. ``beams[i]`` says which candidates of the level before they are the children of."""

    width: int
    scores: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    beams: list[Tensor] = field(default_factory=list)

    def best(self, root: int, nodes: int, least: float) -> TokenTree:
        """The tree of the ``nodes`` best candidates, in pool order."""
        scores = torch.cat(self.scores)
        order = scores.topk(min(nodes, len(scores))).indices.sort().values
        if least > -math.inf:
            order = order[scores[order] >= least]
        beams = [beam.tolist() for beam in self.beams]
        parents = self._parents(order.tolist(), beams)
        if parents is None:
            order = scores.sort(descending=True, stable=True).indices[: len(order)].sort().values
            parents = self._parents(order.tolist(), beams)
            assert parents is not None
        return TokenTree([root, *torch.cat(self.tokens)[order].tolist()], [-1, *parents])

    def _parents(self, chosen: list[int], beams: list[list[int]]) -> list[int] | None:
        """The parents' nodes in the tree; None where a parent was left out, which takes a tie with its child."""
        width, square = self.width, self.width * self.width
        node_of = {candidate: node for node, candidate in enumerate(chosen, start=1)}
        parents = []
        for candidate in chosen:
            if candidate < width:
                parents.append(0)
                continue
            level, place = divmod(candidate - width, square)
            first = width + (level - 1) * square if level else 0
            parent = node_of.get(first + beams[level][place // width])
            if parent is None:
                return None
            parents.append(parent)
        return parents


def dynamic(growth: Growth, hidden: Tensor, depth: int, top_k: int) -> TokenTree:
    """EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858): of all candidates down to ``depth`` those with the highest
    cumulative probability.

    Each level takes ``top_k`` children of each node in a beam of the ``top_k`` best. No more than ``growth.nodes``
    levels or siblings can be among so many best, so no more are drafted.
    """
    head, guesses, device = growth.head, growth.guesses, hidden.device
    width = min(top_k, growth.nodes, head.config.draft_vocabulary)
    levels = min(depth, growth.nodes)
    pool = _Pool(width)
    mask, own = _masks(width, levels, device)
    carry, logits = head.look(hidden)
    best = guesses.scores(logits, 1)[0].topk(width, dim=-1)
    scores, tokens = best.values[0], guesses.tokens(best.indices[0])
    pool.scores.append(scores)
    pool.tokens.append(tokens)
    beam = torch.arange(width, device=device)
    for level in range(1, levels):
        if growth.least > -math.inf and float(scores[0]) < growth.least:
            break
        pool.beams.append(beam)
        mask[:, (level - 1) * width : level * width] = own
        hidden = growth.sequence.extend(tokens, carry, hidden, level, mask[:, : level * width])
        carry, logits = head.look(hidden)
        best = guesses.scores(logits, level + 1)[0].topk(width, dim=-1)
        cumulative = (best.values + scores[:, None]).flatten()
        candidates = guesses.tokens(best.indices.flatten())
        pool.scores.append(cumulative)
        pool.tokens.append(candidates)
        if level + 1 < levels:
            scores, beam = cumulative.topk(width)
            parents = beam // width
            tokens, carry = candidates[beam], carry[parents]
            mask, hidden = mask[parents], hidden[parents]
    least = max(growth.least, torch.finfo(torch.float32).min) if growth.weighs else growth.least
    return pool.best(growth.root, growth.nodes, least)


def _masks(width: int, levels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A mask in which no drafted node sees any, with room for all levels, and the part in which each sees itself."""
    own = torch.full((width, width), -torch.inf, device=device).fill_diagonal_(0)
    return torch.full((width, max(levels - 1, 1) * width), -torch.inf, device=device), own
