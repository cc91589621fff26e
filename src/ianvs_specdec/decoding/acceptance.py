"""Which of the drafted tokens stay, and which token follows them.

All rules but ``Typical`` are lossless, whatever was drafted: greedy acceptance emits the target's own argmax at every
position, rejection sampling emits tokens distributed exactly as the target's own samples, coupled sampling the very
tokens that the target draws by itself with that seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ianvs_specdec.decoding.sampling import Noise, Processor
from ianvs_specdec.decoding.tree import TokenTree
from ianvs_specdec.types import Sampling


@dataclass
class Verdict:
    """The accepted ``path`` (root first) and the ``token`` that follows its last node.

    ``gaps`` has one entry per emitted token (``len(path)`` of them) in greedy mode: how far the best logit was above
    the second best; empty when sampling.
    """

    path: list[int]
    token: int
    gaps: list[float] = field(default_factory=list)


class Acceptance(Protocol):
    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        """Judge a tree by the target's ``logits`` ``[nodes, vocabulary]``, and take the verdict as said."""


class Greedy:
    """Follow the target's argmax down the tree."""

    def __init__(self, processor: Processor | None = None) -> None:
        self._processor = processor

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        return (
            self._walk(tree, logits) if self._processor is None else self._walk_penalised(tree, logits, self._processor)
        )

    def _walk(self, tree: TokenTree, logits: Tensor) -> Verdict:
        best = logits.argmax(dim=-1).tolist()
        # Siblings may carry the same token; the deepest match wins, the first of several.
        right, deepest = {0}, 0
        for node, parent in enumerate(tree.parents[1:], start=1):
            if parent in right and tree.tokens[node] == best[parent] and node not in tree.scouts:
                right.add(node)
                deepest = node if tree.depths[node] > tree.depths[deepest] else deepest
        path = tree.path_to(deepest)
        visited = logits if len(path) == len(logits) else logits[path]
        top = visited.topk(2, dim=-1).values.float()
        return Verdict(path, best[path[-1]], (top[:, 0] - top[:, 1]).tolist())

    def _walk_penalised(self, tree: TokenTree, logits: Tensor, processor: Processor) -> Verdict:
        path, gaps = [0], []
        while True:
            scores = processor.scores(logits[path[-1]])
            token = int(scores.argmax())
            top = scores.topk(2).values
            gaps.append(float(top[0] - top[1]))
            processor.extend(token)
            child = next((child for child in tree.children[path[-1]] if tree.tokens[child] == token), None)
            if child is None:
                return Verdict(path, token, gaps)
            path.append(child)


class Rejection:
    """Rejection sampling with residuals (Leviathan et al. 2023; Chen et al. 2023), siblings tried in order.

    A child drawn from q is accepted with probability min(1, p/q); after a rejection p becomes norm(max(p - q, 0)) and
    the next sibling is tried against it (SpecInfer, Miao et al. 2024). A child without draft probabilities is a point
    mass: it is accepted with probability p, and a rejection removes it from p.
    """

    def __init__(self, processor: Processor, generator: torch.Generator) -> None:
        self._processor = processor
        self._generator = generator

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        path = [0]
        while True:
            p = self._processor.probabilities(logits[path[-1]])
            child, p = self._try_children(tree, path[-1], p)
            if child is None:
                token = int(torch.multinomial(p, 1, generator=self._generator))
                self._processor.extend(token)
                return Verdict(path, token)
            self._processor.extend(tree.tokens[child])
            path.append(child)

    def _try_children(self, tree: TokenTree, node: int, p: Tensor) -> tuple[int | None, Tensor]:
        """The accepted child of ``node``, or None and the distribution that the token in its place is drawn from."""
        q = tree.probabilities.get(node) if tree.probabilities else None
        for child in tree.children[node]:
            token = tree.tokens[child]
            p_token, q_token = float(p[token]), 1.0 if q is None else float(q[token])
            if self._uniform() * q_token < p_token:
                return child, p
            residual = (
                p.index_fill(0, p.new_tensor([token], dtype=torch.long), 0) if q is None else (p - q).clamp_(min=0)
            )
            mass = residual.sum()
            if mass <= 0:  # p and q agree up to rounding: there is nothing else to draw
                return child, p
            p = residual / mass
            if q is not None and not tree.with_replacement:
                q = q.index_fill(0, q.new_tensor([token], dtype=torch.long), 0)
                q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)
        return None, p

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, device=self._generator.device))


class Coupled:
    """Take what the target draws with noise keyed by position; a drafted token stays if it is that very token.

    The output is that of autoregressive sampling with the same seed, token for token, whatever was drafted. (Common
    random numbers through the Gumbel-max trick; Daliri, Musco and Suresh 2024.)
    """

    def __init__(self, processor: Processor, noise: Noise, position: int) -> None:
        self._processor, self._noise, self._position = processor, noise, position

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        path = [0]
        while True:
            token = self._noise.draw(self._processor.probabilities(logits[path[-1]]), self._position)
            self._processor.extend(token)
            self._position += 1
            child = next((child for child in tree.children[path[-1]] if tree.tokens[child] == token), None)
            if child is None:
                return Verdict(path, token)
            path.append(child)


class Typical:
    """Medusa's typical acceptance (Cai et al. 2024, arXiv 2401.10774). Lossy: the output is the target's no more.

    A drafted token stays if the target gives it more than min(``CEILING``, ``SHARE`` * exp(-entropy)): what is not
    unlikely for how undecided the target is. The longest accepted path wins, the likeliest of several. The token that
    follows is drawn from those that pass the same test.
    """

    CEILING = 0.09
    SHARE = 0.3

    def __init__(self, processor: Processor, generator: torch.Generator) -> None:
        self._processor = processor
        self._generator = generator

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        best: tuple[int, float, int] | None = None
        frontier = [(0, 0.0, self._processor)]
        for node, likelihood, processor in frontier:
            p = processor.probabilities(logits[node])
            typical = self._typical(p)
            if best is None or (tree.depths[node], likelihood) > best[:2]:
                best = (tree.depths[node], likelihood, node)
                following, self._processor = typical, processor
            for child in tree.children[node]:
                if typical[tree.tokens[child]] > 0:
                    branch = processor.fork()
                    branch.extend(tree.tokens[child])
                    frontier.append((child, likelihood + math.log(p[tree.tokens[child]]), branch))
        assert best is not None
        token = int(torch.multinomial(following, 1, generator=self._generator))
        self._processor.extend(token)
        return Verdict(tree.path_to(best[2]), token)

    def _typical(self, p: Tensor) -> Tensor:
        """``p`` ``[vocabulary]`` without the tokens that do not pass, not normalised."""
        threshold = (self.SHARE * torch.exp(-torch.special.entr(p).sum())).clamp_max(self.CEILING)
        return p.where(p > threshold, 0)


RULES = ("rejection", "coupled", "typical")
"""How sampled output is accepted. Greedy decoding has one rule only. All but typical are lossless."""


def create(
    sampling: Sampling,
    prompt_ids: Sequence[int],
    generator: torch.Generator,
    rule: str = "rejection",
    noise: Noise | None = None,
) -> Acceptance:
    """The acceptance rule for one request; it keeps the request's token history. ``noise`` is needed for coupled."""
    processor = Processor(sampling, prompt_ids, generator.device)
    if sampling.greedy:
        return Greedy(processor if sampling.repetition_penalty != 1.0 else None)
    if rule == "coupled":
        assert noise is not None
        return Coupled(processor, noise, len(prompt_ids))
    if rule == "typical":
        return Typical(processor, generator)
    return Rejection(processor, generator)
