"""Tiny models: a target, an equal draft model, and a mostly wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.autoregressive import Autoregressive
from ianvs_specdec.engine import decode
from ianvs_specdec.lengths.fixed import Fixed
from tests.support.models import build_model
from tests.support.verifiers import Verifier, loaded

PROMPT = list(range(64, 94))
"""The target continues it without an end token."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("split") / "target")


@pytest.fixture(scope="session")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("split") / "wrong", seed=1)


@pytest.fixture(scope="session")
def llm(folder: Path) -> Iterator[EngineLLM]:
    model = loaded(folder)
    yield model
    model.close()


@pytest.fixture
def verifier(llm: EngineLLM) -> Iterator[Verifier]:
    running = Verifier(llm)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def alone(folder: Path) -> Iterator[Callable[[list[int], Sampling], list[int]]]:
    """What the target writes by itself."""
    model = loaded(folder)
    shared = model.shared(Fixed(0), 1)

    def write(prompt: list[int], sampling: Sampling) -> list[int]:
        ends = shared.eos_ids
        own = decode(shared.target, Autoregressive(), Fixed(0), prompt, sampling, eos_ids=ends, rule="coupled")
        return own.token_ids

    yield write
    model.close()
