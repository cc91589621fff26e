"""``specdec decode`` from the outside: files in, files out, messages and exit codes."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.commands.cli import main

IDS = [5, 9, 14, 3, 22, 9, 14, 31]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random model on disk, without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
        eos_token_id=[46, 47],
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model_with_tokenizer(model, tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "with-tokenizer"
    shutil.copytree(model, folder)
    words = {word: i for i, word in enumerate(["<unk>", "user", "says", "one", "two", "three"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}user says {{ m.content }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def decode(tmp_path, model, capsys):
    """Run the command; gives exit code, output rows (None if no file was written) and standard error."""

    def run(*extra, prompts=({"prompt": IDS},), raw=None, folder=model):
        source, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
        out.unlink(missing_ok=True)
        lines = raw if raw is not None else "".join(json.dumps(row) + "\n" for row in prompts)
        source.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        arguments = ["--model", str(folder), "--prompts", str(source), "--out", str(out), "--threads", "1", *extra]
        if "--method" not in extra:
            arguments += ["--method", "prompt_lookup"]
        code = main(["decode", *arguments])
        rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else None
        assert {path.name for path in tmp_path.iterdir()} <= {"prompts.jsonl", "out.jsonl"}, "a temporary file was left"
        return code, rows, capsys.readouterr().err

    return run


def test_output_steps_and_times(decode):
    prompts = [{"prompt": IDS}, {"prompt": [7, 7, 7]}]
    code, plain, _ = decode("--method", "none", "--max-new-tokens", "30", prompts=prompts)
    assert code == 0
    code, rows, err = decode("--max-new-tokens", "30", prompts=prompts)
    assert code == 0
    assert [row["output"] for row in rows] == [row["output"] for row in plain]
    for row, baseline in zip(rows, plain, strict=True):
        generated = len(row["output"]) - len(row["prompt"])
        assert row["output"][: len(row["prompt"])] == row["prompt"]
        assert sum(step["emitted"] for step in row["steps"]) + 1 == generated
        assert all(step["verified"] == step["drafted"] + 1 for step in row["steps"])
        assert all(step == {"drafted": 0, "accepted": 0, "emitted": 1, "verified": 1} for step in baseline["steps"])
        assert 0 < row["ttft"] <= row["latency"]
    tokens = sum(len(row["output"]) - len(row["prompt"]) for row in rows)
    steps = sum(len(row["steps"]) for row in rows)
    assert f"2 prompts, {tokens} tokens, tau {(tokens - 2) / steps:.3f}" in err


def test_trace_holds_tree_and_depth(decode):
    code, rows, _ = decode("--trace", "--set", "length=fixed:4", "--set", "max_ngram=1", "--max-new-tokens", "20")
    assert code == 0
    position = len(IDS)
    assert any(step["drafted"] for step in rows[0]["steps"])
    for step in rows[0]["steps"]:
        assert len(step["tree"]) == len(step["depth"]) == step["verified"] <= 5
        assert step["depth"] == list(range(step["verified"]))
        assert step["tree"][0] == rows[0]["output"][position]
        position += step["emitted"]


def test_one_token_has_no_step(decode):
    _, rows, err = decode("--max-new-tokens", "1")
    assert rows[0]["steps"] == []
    assert rows[0]["text"] is None
    assert len(rows[0]["output"]) == len(IDS) + 1
    assert "tau -" in err


def test_the_models_end_tokens_end_the_output(decode):
    _, rows, _ = decode("--temperature", "5", "--max-new-tokens", "50", prompts=[{"prompt": IDS}] * 20)
    ended = [row for row in rows if row["finish_reason"] == "stop"]
    assert ended
    for row in rows:
        generated = row["output"][len(IDS) :]
        assert not {46, 47} & set(generated[:-1])
        assert (generated[-1] in (46, 47)) == (row["finish_reason"] == "stop")


@pytest.mark.parametrize("chat", [False, True])
def test_outputs_that_end_at_once_are_warned_of(decode, model_with_tokenizer, tmp_path_factory, chat):
    folder = tmp_path_factory.mktemp("silent") / "model"
    shutil.copytree(model_with_tokenizer, folder)
    for name in ("config.json", "generation_config.json"):
        told = json.loads((folder / name).read_text()) | {"eos_token_id": list(range(48))}
        (folder / name).write_text(json.dumps(told))
    flags = ["--chat"] if chat else []
    code, rows, err = decode(*flags, prompts=[{"prompt": "one two"}], folder=folder)
    assert (code, rows[0]["finish_reason"]) == (0, "stop")
    assert "warning: every output ended at once" in err
    assert ("which --chat puts the prompts through" in err) == (not chat)
    assert "warning" not in decode(prompts=[{"prompt": "one two"}], folder=model_with_tokenizer)[2]


def test_sampling_is_repeatable_and_differs_between_lines_and_seeds(decode):
    settings = ("--temperature", "2", "--top-p", "0.95", "--top-k", "30", "--repetition-penalty", "1.2")
    two = [{"prompt": IDS}, {"prompt": IDS}]
    _, first, _ = decode(*settings, prompts=two)
    _, again, _ = decode(*settings, prompts=two)
    _, other, _ = decode(*settings, "--seed", "1", prompts=two)
    outputs = [[row["output"] for row in rows] for rows in (first, again, other)]
    assert outputs[0] == outputs[1]
    assert outputs[0][0] != outputs[0][1]
    assert outputs[0][1] == outputs[2][0]


GIVEN = """
from ianvs_specdec.engine import Context, Drafter, TokenTree


class Given(Drafter):
    def __init__(self, small, large, text) -> None:
        print((small, large, text))

    def propose(self, context: Context, budget: int) -> TokenTree:
        return TokenTree.chain(context.tokens[-1], [])
"""


def test_own_drafters_are_given_numbers_as_numbers(tmp_path_factory, model, capsys):
    folder = tmp_path_factory.mktemp("own")
    (folder / "given.py").write_text(GIVEN)
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": IDS}))
    items = [part for item in ("small=1e-3", "large=-2.5E6", "text='1e-3'") for part in ("--set", item)]
    files = ["--prompts", str(folder / "prompts.jsonl"), "--out", str(folder / "out.jsonl")]
    assert main(["decode", "--model", str(model), "--drafter", f"{folder}/given.py:Given", *files, *items]) == 0
    assert "(0.001, -2500000.0, '1e-3')" in capsys.readouterr().out


def test_help_names_every_method_with_its_options_and_defaults(capsys):
    with pytest.raises(SystemExit) as left:
        main(["decode", "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    for name, method in drafters.METHODS.items():
        if name != "own":
            section = re.split(r"\n  (?! )", told.partition(f"\n  {name}: {method.about}")[2])[0]
            known = [option for option in method.options.names() if option != "acceptance"]
            assert re.findall(r"^    (\w+)", section, flags=re.M) == known
    assert "\n    max_ngram: a whole number from 1 (3); the longest n-gram that is looked up, in tokens" in told


def test_text_goes_through_the_tokenizer_and_the_chat_template(decode, model_with_tokenizer):
    from transformers import AutoTokenizer

    texts = [{"prompt": "one two three"}, {"prompt": [4, 5]}]
    _, rows, _ = decode(prompts=texts, folder=model_with_tokenizer)
    assert [row["prompt"] for row in rows] == [[3, 4, 5], [4, 5]]
    _, rows, _ = decode("--chat", prompts=texts[:1], folder=model_with_tokenizer)
    assert rows[0]["prompt"] == [1, 2, 3, 4, 5]
    tokenizer = AutoTokenizer.from_pretrained(model_with_tokenizer)
    assert rows[0]["text"] == tokenizer.decode(rows[0]["output"][5:], skip_special_tokens=True)
    code, rows, err = decode("--chat", prompts=texts, folder=model_with_tokenizer)
    assert (code, rows) == (2, None)
    assert "token ids" in err


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"prompt": [1]}\n{"prompt": [1, 2\n', "prompts.jsonl:2: not JSON"),
        ('{"prompt": []}\n', "prompts.jsonl:1: expected"),
        ('{"prompt": [1, -2]}\n', "prompts.jsonl:1: expected"),
        ('{"prompt": [1, 48]}\n', "prompts.jsonl:1: token id 48"),
        ('{"prompt": "text"}\n', "no tokenizer"),
        (json.dumps({"prompt": [3] * 64}), "prompts.jsonl:1: 64 tokens leave no room in a context window of 64"),
        ("", "is empty"),
    ],
)
def test_a_bad_prompt_is_named_by_file_and_line(decode, raw, message):
    code, rows, err = decode(raw=raw)
    assert (code, rows) == (2, None)
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "prompt_lokup"), "Did you mean 'prompt_lookup'"),
        (("--set", "max_ngrm=2"), "Did you mean 'max_ngram'"),
        (("--set", "max_ngram=zero"), "max_ngram must be"),
        (("--set", "length=fixed:x"), "fixed:N"),
        (("--head", "somewhere"), "no draft head"),
        (("--max-new-tokens", "0"), "--max-new-tokens must be"),
        (("--threads", "0"), "--threads"),
        (("--device", "nowhere"), "device 'nowhere' is not available"),
    ],
)
def test_a_bad_option_is_said_before_anything_is_decoded(decode, arguments, message):
    code, rows, err = decode(*arguments)
    assert (code, rows) == (2, None)
    assert message in err


def test_the_chat_template_is_told_what_the_command_says(decode, model_with_tokenizer, tmp_path_factory):
    folder = shutil.copytree(model_with_tokenizer, tmp_path_factory.mktemp("told") / "m")
    (folder / "chat_template.jinja").write_text(
        "user {{ count }}{% if strftime_now('%Y') == '2024' %} three{% endif %}"
    )
    prompts = [{"prompt": "one"}]
    flags = ["--chat", "--chat-template-kwargs", '{"count": "two"}', "--template-time", "2024-01-01"]
    _, rows, _ = decode(*flags, prompts=prompts, folder=folder)
    assert rows[0]["prompt"] == [1, 4, 5]
    code, _, err = decode("--chat", "--chat-template-kwargs", "[1]", prompts=prompts, folder=folder)
    assert code == 2
    assert err.startswith("specdec decode: --chat-template-kwargs must be")


def test_a_missing_model_or_folder_is_said(decode, tmp_path, model):
    assert "is not a folder" in decode(folder=tmp_path / "nowhere")[2]
    assert "m.gguf is not a folder of a Hugging Face model, or a GGUF file" in decode(folder=tmp_path / "m.gguf")[2]
    assert "cannot load" in decode(folder=tmp_path)[2]
    code = main(
        ["decode", "--model", str(model), "--method", "none", "--prompts", str(tmp_path / "no.jsonl"), "--out", "x"]
    )
    assert code == 2


def test_byte_order_marks_change_nothing(decode, tmp_path_factory, model_with_tokenizer):
    mark_ = b"\xef\xbb\xbf"
    marked = tmp_path_factory.mktemp("models") / "marked"
    shutil.copytree(model_with_tokenizer, marked)
    for path in marked.glob("*.json"):
        path.write_bytes(mark_ + path.read_bytes())
    line = b'{"prompt": "one two"}\n'
    plain, mark = decode(raw=line, folder=model_with_tokenizer)[1], decode(raw=mark_ + line, folder=marked)[1]
    assert [row["output"] for row in mark] == [row["output"] for row in plain]
