"""Our own client on our own server: what the engine knows of an answer arrives, from many streams at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ianvs_specdec.backends import APIBasedLLM, PromptLookupLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Sampling
from tests.support.servers import make_certificate

from .conftest import serving


@pytest.mark.parametrize("streams", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_streams_at_once_bring_what_the_engine_says(tiny: Path, tmp_path: Path, streams: int) -> None:
    queries = range(streams * 5 // 4)

    def ask(model: APIBasedLLM | PromptLookupLLM, number: int) -> Completion:
        messages = [{"role": "user", "content": f"again and again and again, number {number}"}]
        return model.generate(messages, Sampling(max_tokens=6, temperature=1.0, seed=number))

    with PromptLookupLLM(str(tiny), dtype="float32", threads=1) as engine:
        home = [ask(engine, number) for number in queries]
    settings = ["--backend", "PromptLookup", "--model", str(tiny), "--set", "dtype=float32", "--set", "threads=1"]
    with (
        serving(tmp_path, *settings) as server,
        APIBasedLLM("tiny", api_base_url=server.url, api_extra_body={"specdec": True}) as model,
        ThreadPoolExecutor(streams) as threads,
    ):
        far = list(threads.map(lambda number: ask(model, number), queries))
        metrics = server.metrics()
    for here, there in zip(home, far, strict=True):
        assert (there.text, there.token_ids, there.finish_reason) == (here.text, here.token_ids, here.finish_reason)
        assert (there.prompt_tokens, there.completion_tokens) == (here.prompt_tokens, here.completion_tokens)
        assert there.trace.steps == here.trace.steps
        assert there.trace.tokens == here.trace.tokens
        assert there.trace.failures == []
        assert min(there.trace.bytes_up or 0, there.trace.bytes_down or 0) > 0
    assert len({answer.text for answer in far}) > streams // 2, "answers tell the queries apart"
    assert metrics["requests_total.completed"] == len(queries)


def test_over_tls_only_with_the_authority_that_signed(tiny: Path, tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    certificate, key = make_certificate(tmp_path / "own")
    other, _ = make_certificate(tmp_path / "other")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    question = [{"role": "user", "content": "again"}]
    with serving(tmp_path, "--model", str(tiny), *tls) as server:
        assert server.url.startswith("https://")
        given = {"api_base_url": server.url, "api_retries": 0}
        with APIBasedLLM("tiny", api_ca=str(certificate), **given) as model:
            assert model.generate(question, Sampling(max_tokens=4)).completion_tokens == 4
        with APIBasedLLM("tiny", api_ca=str(other), **given) as model, pytest.raises(UserError, match="api_ca names"):
            model.generate(question, Sampling(max_tokens=4))
    for file, reason in ((key, "no certificate"), (tmp_path / "none", "No such file")):
        with (
            APIBasedLLM("tiny", api_base_url="https://127.0.0.1:1/v1", api_ca=str(file)) as model,
            pytest.raises(UserError, match=f"api_ca.*{reason}"),
        ):
            model.generate(question, Sampling(max_tokens=4))
