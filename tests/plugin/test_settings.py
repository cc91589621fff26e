"""Hyperparameters of a model, checked without loading anything."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.plugin.settings import ModelSettings
from tests.support.models import build_model


@pytest.mark.parametrize(
    ("hyperparameters", "key", "message"),
    [
        ({"modle": "x"}, "modle", "Did you mean 'model'"),
        ({"model": None}, "model", "model is missing"),
        ({"backend": "huggingfase"}, "backend", "Did you mean 'huggingface'"),
        ({"model": "./no/such/folder"}, "model", "no model folder"),
        ({"model": "q/tiny.gguf"}, "model", "there is no file q/tiny.gguf"),
        ({"temperature": "warm"}, "temperature", "a number"),
        ({"temperature": 1e-300}, "temperature", "0 (greedy) or a number from 1e-06"),
        ({"temperature": math.nan}, "temperature", "0 (greedy) or a number"),
        ({"seed": 10**400}, "seed", "to 18446744073709551615"),
        ({"price_prompt": math.nan}, "price_prompt", "from 0 to 2147483647"),
        ({"top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"max_tokens": 1.5}, "max_tokens", "a whole number"),
        ({"use_cache": "yes"}, "use_cache", "true or false"),
        ({"samples_temperature": 0}, "samples_temperature", "at 0 all samples would be alike"),
        ({"stop": [1]}, "stop", "a list of texts"),
        ({"dtype": "float23"}, "dtype", "Did you mean 'float32'"),
        ({"backend": "PromptLookup", "length": "fixd:3"}, "length", "Did you mean 'fixed'"),
    ],
)
def test_wrong_hyperparameters_name_their_key(
    tiny_model: Path, hyperparameters: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(UserError) as error:
        EdgeModel.check_hyperparameters({"model": str(tiny_model), "backend": "autoregressive", **hyperparameters})
    assert error.value.key == key
    assert message in str(error.value)


def test_all_faults_are_found_at_once(tiny_model: Path) -> None:
    wrong = {"modle": "x", "threads": 0, "samples": 0, "top_p": 2, "seed": "one"}
    with pytest.raises(UserError) as error:
        EdgeModel.check_hyperparameters({"model": str(tiny_model), **wrong})
    assert {fault.key for fault in (error.value, *error.value.others)} == set(wrong)


@pytest.mark.parametrize("backend", ["api", "autoregressive", "same-as-edge"])
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"api_key_env": "sk-1234secret"}, "name of an environment variable"),
        ({"api_key_env": {"api": "sk-1234secret"}}, "name of an environment variable"),
        ({"api_base_url": "http://me:1234secret@host/v1"}, "no user name, password or key"),
        ({"api_base_url": "me:1234secret@host/v1"}, "begins with http"),
        ({"api_base_url": "https://host/v1?v=1&api-key=1234secret"}, "no user name, password or key"),
        ({"api_endpoints": [{"base_url": "URL", "key_env": "sk-1234secret"}]}, "key_env in api_endpoints must be"),
        ({"api_endpoints": [{"base_url": "http://1234secret@host/v1"}]}, "no user name, password or key"),
        ({"api_base_url": "https://host/v1#sk-1234secret"}, "no user name, password or key"),
        ({"api_base_url": "https://host/sk-1234secret/v1"}, "no user name, password or key"),
        ({"api_base_url": "https://host/0123456789abcdefsecret0123/v1"}, "no user name, password or key"),
        ({"api_base_url": "https://host/v1?%61pi%2dkey=1234secret"}, "no user name, password or key"),
        ({"api_base_url": "https://host/v1?1234secret"}, "no user name, password or key"),
        ({"api_key_env": "hf_1234567890secret"}, "name of an environment variable"),
        ({"api_extra_body": {"api_key": "1234secret"}}, "api_extra_body.api_key looks like a key"),
        ({"api_extra_body": {"headers": {"Authorization": "1234secret"}}}, "extra_body.headers.Authorization holds"),
        ({"api_extra_body": {"a": [{"b": {"accessToken": "1234secret"}}]}}, "api_extra_body.a.b.accessToken holds"),
        ({"api_extra_body": {"password": 1234567}}, "api_extra_body.password holds"),
        ({"api_extra_body": {"x": "Bearer 1234secret"}}, "api_extra_body.x holds"),
        ({"api_extra_body": {"sk-1234secret": 1}}, "api_extra_body.*** holds"),
        ({"api_extra_body": {"x": "eyJhbGciOiJI.eyJzdWIiOisecret"}}, "api_extra_body.x holds"),
        ({"api_extra_body": {"x": "prefix-the-known-one-suffix"}}, "api_extra_body.x holds"),
        ({"engine_args": {"hf_token": "1234secret"}}, "engine_args.hf_token holds"),
    ],
)
def test_secrets_are_refused(
    tiny_model: Path, options: dict[str, Any], what: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-known-one")
    with pytest.raises(UserError) as error:
        CloudModel.check_hyperparameters({"model": str(tiny_model), "backend": backend, **options})
    assert error.value.key == next(iter(options))
    assert what in str(error.value)
    assert "environment variable" in str(error.value)
    assert not re.search("secret|1234|the-known-one", str(error.value))


def test_names_of_variables_and_urls_without_secrets_are_accepted() -> None:
    body = {
        "max_tokens": 5,
        "stop_token_ids": [1],
        "stop_token": "</s>",
        "token_budget": 3,
        "prompt_cache_key": "abc",
        "specdec": True,
        "skip_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"json_schema": {"properties": {"password": {"type": "string"}}}},
        "model": "gpt-4o-mini-2024-07-18",
    }
    for options in (
        {"api_key_env": "_Key9"},
        {"api_base_url": "https://host:8000/v1?api-version=1"},
        {"api_base_url": "https://host/openai/deployments/gpt-4o-mini-2024-07-18?api-version=2024-02-01"},
        {"api_extra_body": body},
        {"head": {"EagleSpecDec": "./hf_models/task-large/head-0123456789abcdef"}},
    ):
        CloudModel.check_hyperparameters({"model": "m", "backend": "api", **options})


def test_an_option_may_differ_by_back_end(tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir()
    model = build_model(tmp_path / "model")
    settings = ModelSettings.parse(
        {
            "model": str(model),
            "length": {"EagleSpecDec": "fixed:7", "PromptLookup": "fixed:3"},
            "head": {"EagleSpecDec": str(head)},
        }
    )
    assert settings.llm("EagleSpecDec").drafting == {"length": "fixed:7", "head": str(head)}
    assert settings.llm("PromptLookup").drafting == {"length": "fixed:3"}
    assert settings.llm("LadeSpecDec").drafting == {}
    beam = ModelSettings.parse({"model": str(model), "head": str(head), "top_k": 40, "eagle_topk": 4})
    assert beam.llm("EagleSpecDec").drafting == {"head": str(head), "eagle_topk": 4}
    assert beam.sampling.top_k == 40
    with pytest.raises(UserError, match=r"top_k is .* sampling .* eagle_topk") as caught:
        ModelSettings.parse({"model": str(model), "head": str(head), "top_k": {"EagleSpecDec": 4}})
    assert caught.value.key == "top_k"
    with pytest.raises(UserError, match="head is missing"):
        settings.llm("MedusaSpecDec")
    with pytest.raises(UserError, match=r"'EagleSpecDek'. Did you mean 'EagleSpecDec'") as caught:
        ModelSettings.parse({"model": str(model), "length": {"EagleSpecDek": 3}})
    assert caught.value.key == "length"


@pytest.mark.parametrize("value", [{"specdec": True}, {"specdec": None, "api": {"specdec": True}}])
def test_a_mapping_may_have_keys_that_are_names_of_back_ends(value: dict[str, Any]) -> None:
    given = {"model": "m", "backend": "api", "api_base_url": "http://127.0.0.1:1/v1", "api_extra_body": value}
    assert ModelSettings.parse(given).llm("api").extra_body == {"specdec": True}


def test_older_names_of_autoregressive_decoding_are_accepted_wherever_a_back_end_is_named(tiny_model: Path) -> None:
    given = {"model": str(tiny_model), "threads": {"specdec": 2, "PromptLookup": 1}}
    settings = ModelSettings.parse({**given, "backend": "specdec"})
    assert settings.backend == "autoregressive"
    for name in ("specdec", "autoregressive"):
        assert settings.llm(name).options.threads == 2
        assert settings.llm(name).backend == "autoregressive"
    follower = CloudModel(model=str(tiny_model), backend="specdec")
    assert follower.backend() == "autoregressive"
    with pytest.raises(UserError, match="Did you mean 'autoregressive'"):
        ModelSettings.parse({**given, "backend": "autoregresive"})
