"""``specdec datastore build``: kinds of files, indexed parts, errors."""

from __future__ import annotations

import gzip
import json

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.drafters.datastore import Datastore

WORDS = ["<unk>", "<user>", "<assistant>", "<end>", *(f"w{i}" for i in range(40))]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def ids(text):
    return [WORDS.index(word) for word in text.split()]


def build_model(folder, template=TEMPLATE, tokenizer=True):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    LlamaConfig(vocab_size=48).save_pretrained(folder)
    if tokenizer:
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
        fast.chat_template = template
        fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def build(tmp_path, model, capsys):
    """Run the command on rows of a file; gives exit code, the sequences in the datastore and standard error."""

    def run(*rows, name="data.jsonl", extra=(), folder=model):
        out, data = tmp_path / "store", tmp_path / name
        out.unlink(missing_ok=True)
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        data.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        arguments = ["datastore", "build", "--model", str(folder), "--out", str(out)]
        code = main([*arguments, *(["--data", str(data)] if rows else []), *extra])
        return code, sequences(Datastore.load(out)) if out.exists() else None, capsys.readouterr().err

    return run


def sequences(store):
    found, sequence = [], []
    for token in store._ids.tolist():
        if token == store.separator:
            found.append(sequence)
            sequence = []
        else:
            sequence.append(token)
    return found


CHAT = ids("<user> w1 w2 w3 <end> <assistant> w4 w5 <end> <user> w6 <end> <assistant> w7 <end>")
TURNS = {"turns": ["w1 w2 w3", "w6"], "answers": ["w4 w5", "w7"]}
MESSAGES = [
    {"role": role, "content": content}
    for role, content in [("user", "w1 w2 w3"), ("assistant", "w4 w5"), ("user", "w6"), ("assistant", "w7")]
]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "w1 w2"}, ids("w1 w2")),
        ({"tokens": [5, 6, 7]}, [5, 6, 7]),
        ({"prompt": [5, 6], "output": [5, 6, 7, 8]}, [5, 6, 7, 8]),
        (TURNS, CHAT),
        ({"messages": MESSAGES}, CHAT),
        ({"question": {"turns": TURNS["turns"]}, "answer": {"references": TURNS["answers"]}}, CHAT),
        ({"question": "w1", "answer": "w2"}, ids("<user> w1 <end> <assistant> w2 <end>")),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_forms_of_a_line(build, row, expected):
    code, found, err = build(row)
    assert (code, found) == (0, [expected])
    assert f"{len(expected)} tokens" in err


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (TURNS, [ids("w2 w3 <end> <assistant> w4 w5 <end>"), ids("<user> w6 <end> <assistant> w7 <end>")]),
        ({"prompt": [1, 2, 3, 4, 5, 6], "output": [1, 2, 3, 4, 5, 6, 7, 8]}, [[3, 4, 5, 6, 7, 8]]),
    ],
    ids=["turns", "decoded"],
)
def test_only_answers_with_the_last_tokens_before_them(build, row, expected):
    assert build(row, extra=["--field", "answer"])[1] == expected


def test_plain_texts_and_compressed_files(build):
    assert build("w1 w2\nw3\n", name="a.txt.gz")[1] == [ids("w1 w2 w3")]
    assert build({"text": "w1"}, {"text": "w2"}, name="a.jsonl.gz")[1] == [ids("w1"), ids("w2")]


def test_token_ids_need_no_tokenizer(build, tmp_path):
    bare = build_model(tmp_path / "bare", tokenizer=False)
    assert build({"tokens": [5, 6]}, folder=bare)[1] == [[5, 6]]
    code, found, err = build({"text": "w1"}, folder=bare)
    assert (code, found) == (2, None)
    assert "the model has no tokenizer" in err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"txt": "w1"}, "data.jsonl:1: expected one of"),
        ({"tokens": [1, 48]}, "data.jsonl:1: token id 48, but the model's vocabulary ends at 47"),
        ({"messages": [{"role": "user"}]}, 'data.jsonl:1: "messages" must be a list'),
        ("{\n", "data.jsonl:1: not JSON"),
        ({"text": ""}, "at least one token"),
    ],
)
def test_invalid_lines_are_named(build, row, message):
    code, found, err = build(row)
    assert (code, found) == (2, None)
    assert message in err


def test_invalid_arguments_are_errors_before_reading(build, tmp_path, model):
    for extra, message in [
        ((), "nothing to build from"),
        (("--data", str(tmp_path / "nowhere")), "there is no file"),
        (("--world", "1", "--out", str(tmp_path / "no" / "store")), "does not exist"),
    ]:
        code, _, err = build(extra=extra)
        assert (code, message in err) == (2, True)
    assert "is not a folder" in build({"text": "w1"}, folder=tmp_path / "nowhere")[2]
    assert "cannot load the tokenizer" in build({"text": "w1"}, folder=tmp_path)[2]
    assert "holds no answer" in build({"text": "w1"}, extra=["--field", "answer"])[2]
    assert "holds no answers" in build("w1", name="a.txt", extra=["--field", "answer"])[2]
