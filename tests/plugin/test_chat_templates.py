"""What a job tells its models' chat templates: variables, a time that stays, and what becomes of what they refuse."""

from __future__ import annotations

import datetime as clock
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models import templates
from ianvs_specdec.plugin.settings import ModelSettings
from tests.support.edge import Start, edge, row
from tests.support.models import CHAT_TEMPLATE, build_model
from tests.support.stub_server import StubServer

THINKING = CHAT_TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
DATED = "{% macro today() %}{{ strftime_now('%d %B %H:%M:%S') }}{% endmacro %}{{ today() }}" + CHAT_TEMPLATE
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
WITH_SYSTEM = {"query": {"turns": ["x"], "system": "Be brief.", "scorer": "none"}, "gold": {}, "index": 1}


@pytest.mark.parametrize("backend", ["autoregressive", "huggingface"])
def test_variables_reach_the_template(job: Path, tmp_path: Path, new_run: Start, backend: str) -> None:
    model = build_model(tmp_path / "m", chat_template=THINKING)
    aloud = edge(model, backend=backend).predict(row("x"))
    new_run()
    quiet = edge(model, backend=backend, chat_template_kwargs={"enable_thinking": False}).predict(row("x"))
    assert not quiet["replayed"]
    assert aloud["usage"]["prompt_tokens"] - quiet["usage"]["prompt_tokens"] == len("<think>")
    again = edge(model, backend=backend, chat_template_kwargs={"enable_thinking": True}).predict(row("x"))
    assert not again["cached"], "it stands in the key as it was given"


def test_servers_are_told_them(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    given = {"model": "m", "backend": "api", "api_base_url": stub.url, "chat_template_kwargs": {"thinking": True}}
    settings = ModelSettings.parse(given)
    with settings.llm("api") as llm:
        llm.generate([{"role": "user", "content": "x"}], settings.sampling)
    assert stub.requests[0]["body"]["chat_template_kwargs"] == {"thinking": True}


@pytest.mark.parametrize(
    "wrong",
    [
        {"chat_template_kwargs": "enable_thinking"},
        {"chat_template_kwargs": {1: True}},
        {"chat_template_kwargs": {"x": float("nan")}},
        {"chat_template_kwargs": {"messages": []}},
        {"template_time": "yesterday"},
    ],
)
def test_what_no_template_can_be_told_is_refused(tiny_model: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        ModelSettings.parse({"model": str(tiny_model), **wrong})
    assert caught.value.key == next(iter(wrong))


def test_the_time_is_that_of_the_first_run(
    job: Path, tmp_path: Path, new_run: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(tmp_path / "m", chat_template=DATED)
    forced: list[Path] = []
    monkeypatch.setattr(templates.LineFile, "sync", lambda file: forced.append(file.path))
    first = edge(model).predict(row("x"))
    assert job / templates.NOTE in forced
    noted = (job / templates.NOTE).read_text().strip()

    class Tomorrow(clock.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) + clock.timedelta(days=1, seconds=7)

    monkeypatch.setattr(templates, "datetime", Tomorrow)
    new_run()
    later = edge(model, backend="PromptLookup", use_cache=False)
    response = later.predict(row("x"))
    assert response["turns"][0]["baseline"]["identical"] is True
    assert later.environment_details()["template_time"] == noted
    assert response["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert edge(model).predict(row("x"))["replayed"]
    chosen = edge(model, template_time=clock.date(2024, 5, 3))
    assert not chosen.predict(row("x"))["cached"]
    assert chosen.environment_details()["template_time"] == "2024-05-03"


def test_models_without_a_clock_have_no_time(job: Path, tiny_model: Path, new_run: Start) -> None:
    model = edge(tiny_model)
    model.predict(row("x"))
    assert not (job / templates.NOTE).exists()
    assert "template_time" not in model.environment_details()
    new_run()
    assert edge(tiny_model, template_time="2026-01-01").predict(row("x"))["replayed"]


def test_a_chat_that_is_refused_fails_alone(job: Path, tmp_path: Path) -> None:
    model = edge(build_model(tmp_path / "m", chat_template=STRICT), max_failures=1)
    failed = model.predict(WITH_SYSTEM)
    assert "System role not supported" in failed["error"]
    assert [kind for _, kind in failed["failures"]] == ["chat template"]
    assert model.predict(row("x"))["completion"] is not None
    with pytest.raises(UserError, match=r"max_failures permits 1.*System role not supported"):
        model.predict(WITH_SYSTEM)


def test_a_template_of_a_gguf_file_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["tokenizer.chat_template", "a"])
    writer.add_string("tokenizer.chat_template", DATED)
    writer.add_uint32("last", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert templates.read_template(tmp_path / "m.gguf") == DATED


def test_the_clock_shows_what_it_is_told() -> None:
    given = templates.Sampling(template_time="2026-02-03T04:05:06")
    tokenizer = type("T", (), {"chat_template": DATED, "special_tokens_map": {}})
    text = templates.render(tokenizer, [{"role": "user", "content": "x"}], given)
    assert text == "03 February 04:05:06<user>x<assistant>"
