from __future__ import annotations

import random

import torch

from ianvs_specdec.engine import TokenTree
from tests.support.tiny import random_tree


def test_a_chain_is_a_tree_without_branches():
    chain = TokenTree.chain(5, [6, 7])
    assert (chain.tokens, chain.parents, chain.depths) == ([5, 6, 7], [-1, 0, 1], [0, 1, 2])
    assert chain.is_chain
    assert chain.children == [[1], [2], []]
    assert torch.equal(chain.mask(), torch.ones(3, 3).tril().bool())
    assert not TokenTree([5, 6, 7], [-1, 0, 0]).is_chain
    assert len(TokenTree.chain(5)) == 1


def test_mask_and_depths_follow_the_parents():
    rng = random.Random(3)
    for nodes in (1, 2, 5, 17, 40):
        tree = random_tree(rng, nodes)
        mask = tree.mask()
        for node in range(nodes):
            path = tree.path_to(node)
            assert (path[0], path[-1]) == (0, node)
            assert [tree.parents[i] for i in path[1:]] == path[:-1]
            assert mask[node].nonzero().flatten().tolist() == path
            assert tree.depths[node] == len(path) - 1


def test_truncated_keeps_the_shallow_nodes_and_their_probabilities():
    q = {node: torch.full((4,), float(node)) for node in range(4)}
    tree = TokenTree([9, 1, 2, 3, 4], [-1, 0, 1, 0, 3], q)
    cut = tree.truncated(1)
    assert (cut.tokens, cut.parents) == ([9, 1, 3], [-1, 0, 0])
    assert cut.probabilities is not None
    assert {node: float(row[0]) for node, row in cut.probabilities.items()} == {0: 0.0, 1: 1.0, 2: 3.0}
    assert tree.truncated(0).tokens == [9]


def test_what_a_draft_tries_first_after_a_node() -> None:
    tree = TokenTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 3, 1])
    assert tree.continuation(0, 8) == (1, 3, 4)
    assert tree.continuation(0, 2) == (1, 3)
    assert tree.continuation(1, 8) == (3, 4)
    assert tree.continuation(2, 8) == ()
