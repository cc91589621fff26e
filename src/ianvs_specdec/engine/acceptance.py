"""Acceptance rules: which draft tokens are kept, and the token after them.

All rules but ``Typical`` are lossless for any draft: greedy acceptance emits the target's argmax at every position,
rejection sampling emits tokens with the target's distribution, coupled sampling the tokens that the target samples
alone with the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.sampling import Noise, Processor
from ianvs_specdec.engine.tree import TokenTree


@dataclass
class Verdict:
    """The accepted ``path`` (root first) and the ``token`` after its last node.

    ``gaps``, if requested, has one entry per emitted token: in greedy mode the difference of the two best logits, in
    coupled mode that of log-probability plus noise.
    """

    path: list[int]
    token: int
    gaps: list[float] = field(default_factory=list)


class Acceptance(Protocol):
    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        """Judge a tree by the target's ``logits [nodes, vocabulary]``, and append the emitted tokens to the history."""


class Greedy:
    def __init__(self, processor: Processor | None = None, gaps: bool = True) -> None:
        self._processor, self._gaps = processor, gaps

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        if self._processor is not None:
            return _follow_scores(tree, logits, self._processor, self._processor.scores, self._gaps)
        best = _best(logits)
        path = follow(tree, best).path
        if not self._gaps:
            return Verdict(path, best[path[-1]])
        visited = logits if len(path) == len(logits) else logits[path]
        top = visited.topk(2, dim=-1).values.float()
        return Verdict(path, best[path[-1]], (top[:, 0] - top[:, 1]).tolist())


def follow(tree: TokenTree, chosen: Sequence[int]) -> Verdict:
    """Judge a tree by the tokens that the target selected after each node."""
    # Siblings may carry the same token; the deepest match wins, the first of several.
    right, deepest = {0}, 0
    for node, parent in enumerate(tree.parents[1:], start=1):
        if parent in right and tree.tokens[node] == chosen[parent] and node not in tree.scouts:
            right.add(node)
            deepest = node if tree.depths[node] > tree.depths[deepest] else deepest
    return Verdict(tree.path_to(deepest), chosen[deepest])


def choose(logits: Tensor, positions: Sequence[int], sampling: Sampling, noise: Noise) -> list[int]:
    """The token after each row of ``logits [rows, vocabulary]``, at one of ``positions``. Together with ``follow`` this
    is greedy and coupled acceptance for targets on another machine. No repetition penalty."""
    if sampling.greedy:
        return _best(logits)
    processor = Processor(sampling, (), logits.device)
    rows = zip(logits, positions, strict=True)
    return [int((processor.probabilities(row).log() + noise.at(position)).argmax()) for row, position in rows]


class Rejection:
    """Rejection sampling with residuals (Leviathan et al. 2023; Chen et al. 2023), siblings tried in order.

    A child drawn from q is accepted with probability min(1, p/q); after a rejection p becomes norm(max(p - q, 0)) and
    the next sibling is tried against it (SpecInfer, Miao et al. 2024). Children without draft probabilities are point
    masses: trying them in turn is drawing from p and looking for a child with that token.
    """

    def __init__(self, processor: Processor, generator: torch.Generator) -> None:
        self._processor = processor
        self._generator = generator

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        nodes = [0]
        while True:
            token, following = self._step(tree, nodes, self._processor.probabilities(logits[nodes[0]]))
            self._processor.extend(token)
            if not following:
                return Verdict(tree.path_to(nodes[0]), token)
            nodes = following

    def _step(self, tree: TokenTree, nodes: list[int], p: Tensor) -> tuple[int, list[int]]:
        """The token after ``nodes``, which all stand for the same text, and the nodes that carry it."""
        drawn_from = tree.probabilities or {}
        node = nodes[0]
        if node not in drawn_from:
            token = self._draw(p)
            return token, _carriers(tree, [node] if drawn_from else nodes, token)
        q = drawn_from[node]
        for child in tree.children[node]:
            token = tree.tokens[child]
            if self._uniform() * float(q[token]) < float(p[token]):
                return token, [child]
            residual = (p - q).clamp_(min=0)
            mass = residual.sum()
            if mass <= 0:  # p and q are equal up to rounding
                return token, [child]
            p = residual / mass
            q = q.index_fill(0, q.new_tensor([token], dtype=torch.long), 0)
            q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)
        return self._draw(p), []

    def _draw(self, p: Tensor) -> int:
        return int(torch.multinomial(p, 1, generator=self._generator))

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, device=self._generator.device))


class Coupled:
    """Sampling with noise keyed by position; a draft token is accepted if the target selects it with that noise.

    The output is that of autoregressive sampling with the same seed, token for token. (Common random numbers through
    the Gumbel-max trick; Daliri, Musco and Suresh 2024.)
    """

    def __init__(self, processor: Processor, noise: Noise, position: int, gaps: bool = True) -> None:
        self._processor, self._noise, self._position, self._gaps = processor, noise, position, gaps

    def __call__(self, tree: TokenTree, logits: Tensor) -> Verdict:
        return _follow_scores(tree, logits, self._processor, self._scores, self._gaps)

    def _scores(self, logits: Tensor) -> Tensor:
        noise = self._noise.at(self._position)
        self._position += 1
        return self._processor.probabilities(logits).log() + noise


class Typical:
    """Medusa's typical acceptance (Cai et al. 2024, arXiv 2401.10774), which is lossy.

    A draft token is accepted if its probability is above min(``CEILING``, ``SHARE`` * exp(-entropy)). The longest
    accepted path wins, the likeliest of several. The next token is sampled from those that pass the same test.
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
        """``p [vocabulary]`` with 0 for tokens that do not pass, not normalised."""
        threshold = (self.SHARE * torch.exp(-torch.special.entr(p).sum())).clamp_max(self.CEILING)
        return p.where(p > threshold, 0)


RULES = ("rejection", "coupled", "typical")
"""Acceptance rules of sampled output. Greedy decoding has one rule only. All but typical are lossless."""


def create(
    sampling: Sampling,
    prompt_ids: Sequence[int],
    generator: torch.Generator,
    rule: str = "rejection",
    noise: Noise | None = None,
    gaps: bool = True,
) -> Acceptance:
    """The acceptance rule of one request, which holds its token history. ``coupled`` needs ``noise``. ``gaps``: record
    them in verdicts."""
    processor = Processor(sampling, prompt_ids, generator.device)
    if sampling.greedy:
        return Greedy(processor if sampling.repetition_penalty != 1.0 else None, gaps)
    if rule == "coupled":
        assert noise is not None
        return Coupled(processor, noise, len(prompt_ids), gaps)
    if rule == "typical":
        return Typical(processor, generator)
    return Rejection(processor, generator)


def without(tokens: list[int], tree: TokenTree, logits: Tensor, levels: int) -> Tensor:
    """The ``logits`` of ``tree`` with these tokens excluded from the next ``levels`` tokens of the output."""
    nodes = [[node] for node, depth in enumerate(tree.depths) if depth < levels]
    logits = logits.clone()
    logits[nodes, tokens] = -torch.inf
    return logits


def _best(logits: Tensor) -> list[int]:
    """The first of the best tokens of each row."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        best: list[int] = logits.numpy().argmax(axis=-1).tolist()  # several times as fast as torch
        return best
    return logits.argmax(dim=-1).tolist()


def _follow_scores(
    tree: TokenTree, logits: Tensor, processor: Processor, scores_of: Callable[[Tensor], Tensor], with_gaps: bool
) -> Verdict:
    """Take the best-scored token after every node, from the root down, as long as a child carries it."""
    nodes: list[int] = [0]
    gaps: list[float] = []
    while True:
        scores = scores_of(logits[nodes[0]])
        token = int(scores.argmax())
        if with_gaps:
            first, second = scores.topk(2).values.tolist()
            gaps.append(first - second)
        processor.extend(token)
        following = _carriers(tree, nodes, token)
        if not following:
            return Verdict(tree.path_to(nodes[0]), token, gaps)
        nodes = following


def _carriers(tree: TokenTree, nodes: list[int], token: int) -> list[int]:
    """The children of all ``nodes`` that carry ``token``. Siblings may be equal, and any of them may continue."""
    return [child for node in nodes for child in tree.children[node] if tree.tokens[child] == token]
