"""What draft heads need of a model in the native step: growing trees, rows in place of tokens, layers without norms."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.model import Layer, Model, Parts, State
from ianvs_specdec.targets.native.product import Product

HIDDEN, QUERIES, KEYS, WIDTH, INNER, VOCABULARY = 48, 4, 2, 12, 80, 30
EPSILON = 1e-5
POSITIONS = 40


class Head:
    """One layer over rows, without a norm before its attention, and the same computed in float64 in one piece."""

    def __init__(self, *, final_norm: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

        qkv_width = (QUERIES + 2 * KEYS) * WIDTH
        self.qkv, self.output = random(qkv_width, HIDDEN), random(HIDDEN, QUERIES * WIDTH)
        self.gate_up, self.down = random(2 * INNER, HIDDEN), random(HIDDEN, INNER)
        self.unembed, self.norm = random(VOCABULARY, HIDDEN), 1 + random(HIDDEN)
        self.final_norm = 1 + random(HIDDEN) if final_norm else None
        angles = torch.outer(torch.arange(POSITIONS), 100.0 ** -torch.linspace(0, 1, WIDTH // 2))
        self.rotations = angles.cos(), angles.sin()
        made = library.load()
        qkv, output, gate_up, down = (
            Product(made, weight) for weight in (self.qkv, self.output, self.gate_up, self.down)
        )
        self.model = Model(
            made,
            [Layer(qkv, output, gate_up, down, self.norm)],
            queries=QUERIES,
            keys=KEYS,
            width=WIDTH,
            epsilon=EPSILON,
            final_norm=self.final_norm,
            unembed=Product(made, self.unembed),
        )

    def step(self, state: State, rows: torch.Tensor, parents: list[int] | None = None, **options: Any) -> Any:
        given = Parts()
        addition = options.pop("qkv_addition", None)
        given.add(state, len(rows), parents, ends=True, **options)
        features = (1, 2)
        return self.model.step(given, self.rotations, rows=rows, qkv_addition=addition, features=features)

    def expected(self, x: torch.Tensor, addition: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states before the final norm and logits of a sequence of rows."""
        x = x.double()
        qkv = x @ self.qkv.double().T + (0 if addition is None else addition.double())
        heads = qkv.view(len(x), -1, WIDTH).transpose(0, 1)
        cosine, sine = (part[: len(x)].double() for part in self.rotations)
        a, b = heads[: QUERIES + KEYS].chunk(2, dim=-1)
        turned = torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)
        keys, values = (
            part.repeat_interleave(QUERIES // KEYS, 0) for part in (turned[QUERIES:], heads[QUERIES + KEYS :])
        )
        attended = functional.scaled_dot_product_attention(turned[:QUERIES], keys, values, is_causal=True)
        x = x + attended.transpose(0, 1).reshape(len(x), -1) @ self.output.double().T
        gate, up = (self._normed(x, self.norm) @ self.gate_up.double().T).chunk(2, dim=-1)
        x = x + functional.silu(gate) * up @ self.down.double().T
        end = x if self.final_norm is None else self._normed(x, self.final_norm)
        return x, end @ self.unembed.double().T

    @staticmethod
    def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight.double(), EPSILON)


def rows(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("final_norm", [False, True])
def test_rows_take_the_place_of_tokens_and_a_norm_may_be_missing(final_norm: bool) -> None:
    head, x = Head(final_norm=final_norm), rows(9)
    addition = rows(9, seed=2).repeat(1, 2)
    logits, (end, before) = head.step(head.model.open(), x, stay=True, qkv_addition=addition)
    hidden, wanted = head.expected(x, addition)
    torch.testing.assert_close(before.double(), hidden, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits.double(), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(end, before) != final_norm


def test_a_tree_grows_level_by_level_with_several_roots() -> None:
    head, x = Head(), rows(12)
    state, at_once = head.model.open(), head.model.open()
    for each in (state, at_once):
        head.step(each, x[:3], stay=True)
    parents = [-1, -1, 0, 1, 1, 2, 2, 3, 4]
    levels = [
        head.step(state, x[start:end], parents[start - 3 : end - 3], grow=start > 3)
        for start, end in ((3, 5), (5, 8), (8, 12))
    ]
    whole, _ = head.step(at_once, x[3:], parents)
    assert torch.equal(torch.cat([logits for logits, _ in levels]), whole)
    path = [1, 4, 8]
    _, wanted = head.expected(x[[0, 1, 2, *(3 + node for node in path)]])
    torch.testing.assert_close(whole[path].double(), wanted[3:], rtol=1e-4, atol=1e-4)
    state.commit(path)
    assert len(state) == 6
    (alone, _), (after, _) = (head.step(head.model.open(), x[[0, 1, 2, 4, 7, 11, 0]]), head.step(state, x[:1]))
    assert torch.equal(after[0], alone[-1])


def test_where_no_logits_are_wanted_none_are_computed() -> None:
    head, x = Head(), rows(4)
    given = Parts()
    given.add(head.model.open(), 4, logits=0)
    logits, hidden = head.model.step(given, head.rotations, rows=x)
    assert logits.shape == (0, VOCABULARY)
    assert hidden == []


def test_a_model_may_go_before_its_sequences() -> None:
    # The order in which Python's garbage collector frees what refers to each other is any.
    head = Head()
    states = [head.model.open() for _ in range(3)]
    for state in states:
        head.step(state, rows(3), stay=True)
    head.model._free()
    for state in states:
        state.close()


def test_what_does_not_fit_is_said() -> None:
    head = Head()
    with pytest.raises(ValueError, match="no rotation"):
        head.step(head.model.open(), rows(POSITIONS + 1))
    state = head.model.open()
    head.step(state, rows(3), stay=True)
    with pytest.raises(ValueError, match="no rotation"):
        state.restore(4)
    with pytest.raises(ValueError, match="sizes"):
        Model(library.load(), head.model.layers, queries=QUERIES, keys=KEYS, width=WIDTH + 2, epsilon=EPSILON)
    with pytest.raises(ValueError, match="48 inputs"):
        head.model.layers[0].qkv(rows(2)[:, 1:])


@pytest.mark.parametrize("missing", ["qkv", "output", "gate_up", "down"])
def test_a_model_without_one_of_its_products_is_refused(missing: str) -> None:
    layer, nothing = Head().model.layers[0], SimpleNamespace(pointer=None, inputs=HIDDEN)
    products: dict[str, Any] = {name: getattr(layer, name) for name in ("qkv", "output", "gate_up", "down")}
    products[missing] = nothing
    products |= {name: [products[name]] for name in ("gate_up", "down")}
    layer = replace(layer, **products)
    with pytest.raises(ValueError, match="sizes"):
        Model(library.load(), [layer], queries=QUERIES, keys=KEYS, width=WIDTH, epsilon=EPSILON)


def test_a_product_adds_and_does_not_depend_on_the_rows_beside_it() -> None:
    product, x = Product(library.load(), weight := torch.randn(33, HIDDEN), bias := torch.randn(33)), rows(7)
    wanted = (x.double() @ weight.double().T + bias).float()
    torch.testing.assert_close(product(x), wanted, rtol=1e-5, atol=1e-5)
    residual = torch.randn(7, 33)
    torch.testing.assert_close(product.added(x, residual), wanted + residual, rtol=1e-5, atol=1e-5)
    assert torch.equal(product(x)[3:4], product(x[3:4]))


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def large() -> tuple[Product, torch.Tensor]:
    """A product that is shared out to threads."""
    generator = torch.Generator().manual_seed(3)
    product = Product(library.load(), torch.randn(1024, 512, generator=generator))
    return product, torch.randn(16, 512, generator=generator)


@pytest.mark.usefixtures("_two_threads")
def test_threads_of_python_may_call_at_the_same_time() -> None:
    product, x = large()
    wanted, wrong = product(x), []

    def repeat() -> None:
        wrong.extend(None for _ in range(40) if not torch.equal(product(x), wanted))

    callers = [threading.Thread(target=repeat) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def _in_child(product: Product, x: torch.Tensor, wanted: torch.Tensor) -> None:
    raise SystemExit(0 if torch.equal(product(x), wanted) else 1)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    product, x = large()
    wanted = product(x)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(product, x, wanted))
    child.start()
    child.join(60)
    assert child.exitcode == 0
