"""``SlicedSpecDec``: the answers of the whole model, however it is cut, and over whatever breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.types import Completion, Sampling
from tests.support.models import build_model
from tests.support.verifiers import Breaking, Verifier, loaded, verifying

LAYERS = 4
GREEDY, DRAWN = Sampling(max_tokens=40), Sampling(max_tokens=40, temperature=0.8, seed=5)
CHATS = [[{"role": "user", "content": f"ab ab ab {n} ab {'cd ' * 20 * n}"}] for n in range(4)]
LOOKUP = {"method": "prompt_lookup", "length": "fixed:4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("sliced") / "target", layers=LAYERS)


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[Verifier]:
    llm = loaded(folder)
    with verifying(llm) as running:
        yield running
    llm.close()


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[LLM]:
    with backend("autoregressive")(str(folder), threads=1, device="cpu", acceptance="coupled") as llm:
        yield llm


@contextmanager
def sliced(folder: Path, verifier: Verifier | Breaking, **options: Any) -> Iterator[LLM]:
    given = {"cut": 2, "threads": 1, "device": "cpu", "acceptance": "coupled", "verifier": verifier.address, **options}
    with backend("SlicedSpecDec")(str(folder), **given) as llm:
        yield llm


def ids(answers: list[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("edge", [None, LOOKUP], ids=["without drafts", "with drafts"])
@pytest.mark.parametrize("cut", range(1, LAYERS))
def test_every_cut_gives_the_answers_of_the_whole_model(
    cut: int, edge: dict[str, Any] | None, folder: Path, verifier: Verifier, whole: LLM
) -> None:
    with sliced(folder, verifier, cut=cut, edge=edge) as llm:
        for sampling in (GREEDY, DRAWN):
            for chat in CHATS[:2]:
                answer = llm.generate(chat, sampling)
                assert answer.token_ids == whole.generate(chat, sampling).token_ids
                assert answer.trace.split.rounds == len(answer.trace.steps)
