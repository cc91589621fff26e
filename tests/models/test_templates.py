"""Chat templates: the text of transformers, and limits for untrusted programs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message
from ianvs_specdec.models import templates
from tests.support.models import CHAT_TEMPLATE, build_model

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and system %}{% set content = '<<' + system + '>>' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{{ bos_token + content.strip() | trim }}{% endfor %}"
)
WITH_MACRO = (
    "{% macro turn(message) %}<{{ message.role }}>{{ message.content }}{% endmacro %}"
    "{% for message in messages %}{{ turn(message) }}{% endfor %}{{ eos_token }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
GENERATION = (
    "{% set n = namespace(last='') %}{% for message in messages %}{{ {'a': message.content + '<'} | tojson }}\n"
    "{%- generation -%}\n{% set n.last = message.role %}\n {{ message['content'] }}\n{% endgeneration %}\n x"
    "{% endfor %}{{ n.last ~ dict(a=1) }}"
)
CHAT: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Caf\u00e9 \U0001f389\n'x' "},
    {"role": "assistant", "content": "y"},
    {"role": "user", "content": "z"},
]
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "loops": LOOPS + "{% endfor %}",
    "a large number": "{{ 9 ** (9 ** 9) }}",
    "a large text": "{{ 'a' * 10 ** 11 }}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "doubling": "{% set x = 'ab' %}" + "{% set x = x + x %}" * 40 + "{{ x }}",
    "growth in a loop": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "depth": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "only for long chats": "{% if messages | length > 1 %}" + LOOPS + "{% endfor %}{% endif %}hello",
}


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.mark.parametrize(
    "template",
    [CHATML, ALTERNATING, CHAT_TEMPLATE, WITH_MACRO, GENERATION],
)
@pytest.mark.parametrize("asking", [True, False])
def test_the_text_equals_that_of_transformers(tokenizer: Any, template: str, asking: bool) -> None:
    tokenizer.chat_template = template
    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=asking, tokenize=False)
    assert templates.render(tokenizer, CHAT, add_generation_prompt=asking) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_template_is_ended(tokenizer: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 1.0)
    tokenizer.chat_template = HOSTILE[kind]
    started = time.monotonic()
    with pytest.raises(UserError, match="chat template cannot be used for this chat"):
        templates.render(tokenizer, CHAT)
    assert time.monotonic() - started < 120


def test_an_endless_template_is_ended_and_the_next_chat_works(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.3)
    tokenizer.chat_template = HOSTILE["only for long chats"]
    assert templates.render(tokenizer, CHAT[:1]) == "hello"
    with pytest.raises(UserError, match=r"did not end within 0\.3 s") as caught:
        templates.render(tokenizer, CHAT)
    assert caught.value.key == "model"
    assert templates.render(tokenizer, CHAT[:1]) == "hello"


@pytest.mark.parametrize(
    "template",
    [
        ALTERNATING,
        "{% macro f() %}{% endmacro %}{{ raise_exception('Roles must alternate') }}",
    ],
)
def test_errors_of_templates_are_reported(tokenizer: Any, template: str) -> None:
    tokenizer.chat_template = template
    with pytest.raises(UserError, match="Roles must alternate"):
        templates.render(tokenizer, [CHAT[1], CHAT[1]])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content.strip() }}",
        "{% for message in messages %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_broken_template_is_one_message(tmp_path: Path, template: str) -> None:
    folder = build_model(tmp_path / "m", chat_template=template)
    with (
        pytest.raises(UserError, match="chat template cannot be used") as caught,
        backend("autoregressive")(str(folder)) as llm,
    ):
        llm.load()
    assert "\n" not in str(caught.value)


def test_an_empty_prompt_is_one_message(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", chat_template="{% if false %}x{% endif %}")
    with pytest.raises(UserError, match="make no token"), backend("autoregressive")(str(folder)) as llm:
        llm.load()
