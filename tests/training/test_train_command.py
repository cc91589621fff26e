"""``specdec train`` on a tiny scale: what heads learn from, the official files they end up in, and wrong usage."""

import json
import random
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ianvs_specdec.commands import cli
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.autoregressive import Autoregressive
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.drafters.medusa import heads as medusa
from ianvs_specdec.training import corpus, course, lm
from ianvs_specdec.training.heads import conversations, loop, payoff, pool
from ianvs_specdec.training.heads.conversations import Conversation
from ianvs_specdec.training.heads.teacher import Teacher
from tests.support.slow_cases import slow_unless

HIDDEN, VOCABULARY = 32, 300
SHAPE = lm.ModelRecipe(hidden=HIDDEN, layers=7, heads=4, kv_heads=2, intermediate=48, minutes=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    corpus.train_tokenizer(folder, vocabulary=VOCABULARY, seed=1, conversations=300)
    torch.manual_seed(3)
    model = lm.build(SHAPE, AutoTokenizer.from_pretrained(folder), 7)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(target: Path) -> Teacher:
    return Teacher(target, device="cpu", length=96, answer=12)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "lines.jsonl"
    rows: list[dict] = []
    for i in range(6):
        rows += [{"turns": [f"How many is {i}?", "And then?"]}, {"prompt": f"Count {i}"}, {"prompt": [7, 8, 9 + i]}]
        rows += [{"text": f"The number after {i} is {i + 1}."}]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def asking(folder: Path, count: int = 12) -> Path:
    path = folder / "asking.jsonl"
    path.write_text("".join(json.dumps({"turns": [f"How many is {i}?"]}) + "\n" for i in range(count)))
    return path


def without_template(target: Path, folder: Path) -> Path:
    shutil.copytree(target, folder / "bare")
    (folder / "bare" / "chat_template.jinja").unlink()
    return folder / "bare"


def train(kind: str, target: Path, data: Path, out: Path, *more: str) -> int:
    options = ["--model", str(target), "--data", str(data), "--out", str(out), "--max-new-tokens", "10"]
    return cli.main(["train", kind, *options, "--drafts", "3", "--threads", "1", "--tokens", "2000", *more])


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    medusa = folder / "medusa_lm_head.pt"
    return torch.load(medusa, weights_only=True) if medusa.exists() else load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_official_files(kind: str, target: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    assert train(kind, target, data, out) == 0
    tensors, drafted = tensors_of(out), 0
    if kind == "medusa":
        blocks, outputs = medusa.read(out, HIDDEN, VOCABULARY)
        assert (len(blocks), len(outputs)) == (3, 3)
    else:
        # Which reads nothing but whole heads with the tensors of the authors' format.
        assert EagleCheckpoint.read(out).eagle3 == (kind == "eagle3")
    if kind == "eagle3":
        drafted = len(tensors["lm_head.weight"])
        ids = tensors.pop("d2t") + torch.arange(drafted)
        assert tensors.pop("t2d").nonzero().flatten().tolist() == ids.tolist()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    if kind == "medusa":
        official = {"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "target"}
        assert config == official | {"model_type": "medusa", "hidden_size": HIDDEN, "vocab_size": VOCABULARY}
    else:
        llama = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": HIDDEN}
        assert config == config | llama | {"rope_theta": 10000.0}
        assert config.get("bias") is (False if kind == "eagle" else None)
        assert config.get("draft_vocab_size") == (drafted or None)
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o644}
    assert [path.name for path in tmp_path.iterdir() if path.name != "head"] == [".head.training"]


def test_what_the_target_says_is_what_is_learned(teacher: Teacher) -> None:
    """Answers it would not give are replaced by its own; those that it would give stay, both with the same features."""
    asked = Conversation(("How many?", "And now?"))
    own = teacher.samples([asked])[0]
    spoken = (own.run > 0).nonzero().flatten().tolist()
    prompt = own.tokens[: spoken[0]].tolist()
    text = corpus.USER + "How many?" + corpus.END + corpus.ASSISTANT
    assert prompt == teacher.tokenizer(text, add_special_tokens=False)["input_ids"]
    said = teacher.model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=12
    )[0, len(prompt) :].tolist()
    assert own.tokens[spoken[0] : spoken[0] + len(said)].tolist() == said
    wrong = teacher.samples([Conversation(asked.turns, ("No idea.", "None."))], (2,))[0]
    assert torch.equal(wrong.tokens, own.tokens)
    states = teacher.model(own.tokens[None], output_hidden_states=True).hidden_states
    for kept, state in ((own.features, states[-1]), (wrong.layers, states[2])):
        assert (kept - state[0]).norm() < 0.05 * state.norm()  # both in bf16


def test_a_stopped_training_goes_on_as_if_nothing_had_happened(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("eagle", target, data, tmp_path / "whole") == 0
    monkeypatch.setattr(course, "CHECKPOINT_SECONDS", 0.0)
    measure, measured = loop.accepted_length, []

    def stops(*arguments):
        measured.append(1)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(loop, "accepted_length", stops)
    assert train("eagle", target, data, tmp_path / "parts") == 130
    assert not (tmp_path / "parts").exists()
    capsys.readouterr()
    assert train("eagle", target, data, tmp_path / "parts") == 0
    printed = capsys.readouterr().out
    assert "resuming at step 2" in printed
    whole, parts = (tensors_of(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "dflash"])
def test_short_answers_train_every_kind(kind: str, target: Path, data: Path, tmp_path: Path, capsys) -> None:
    """Of two tokens, so that no answer reaches the second of three drafts."""
    assert train(kind, target, data, tmp_path / "head", "--max-new-tokens", "2", "--data", str(asking(tmp_path))) == 0
    assert all(bool(tensor.isfinite().all()) for tensor in tensors_of(tmp_path / "head").values())
    assert "no answer is long enough for more than 1 of 3 drafts" in capsys.readouterr().out
    assert train(kind, target, data, tmp_path / "none", "--max-new-tokens", "1", "--data", str(asking(tmp_path))) == 2
    assert "no answer has the two tokens that a draft needs" in capsys.readouterr().err


def test_what_was_asked_is_not_asked_again(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, asked = Teacher.samples, list[Conversation]()

    def stops(teacher, conversations, layers=()):
        if len(asked) == 2 * pool.SHARD:
            raise KeyboardInterrupt
        asked.extend(conversations)
        return ask(teacher, conversations, layers)

    monkeypatch.setattr(Teacher, "samples", stops)
    more = ("--data", str(asking(tmp_path, 80)))
    assert train("eagle", target, data, tmp_path / "head", *more) == 130
    assert "asking the model for 78 conversations" in capsys.readouterr().out
    asked.append(asked[0])
    assert train("eagle", target, data, tmp_path / "head", *more) == 0
    assert len(asked) - 1 == len(set(asked)) == 80
    assert "to learn from: 3 of 3 parts of 32 conversations, 2 from an earlier run" in capsys.readouterr().err


def test_prompts_go_through_the_chat_template(target: Path, teacher: Teacher, tmp_path: Path) -> None:
    told = list[str]()
    given = [Conversation(prompt=p) for p in ("How many?", corpus.USER + "How many?" + corpus.END, (7, 8))]
    chat, marked, ids = teacher.asked(given, told.append)
    assert (chat.turns, marked, ids) == (("How many?",), given[1], given[2])
    assert told == ["1 lines of the data go through the chat template, 2 are taken as they stand"]
    bare = Teacher(without_template(target, tmp_path), device="cpu")
    assert bare.asked(given, told.append) == given
    assert told[1].startswith("0 lines of the data go through the chat template (the model has none), 3")


@pytest.mark.parametrize(
    ("seconds", "pays", "told"),
    [(0.5, True, "(2.00x, 2 held-out prompts)"), (2.0, False, "or the model is too small for drafts to pay")],
)
def test_the_last_line_says_whether_the_head_pays(
    seconds: float, pays: bool, told: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Where an answer takes a second without the head."""
    now, tokens = 0.0, list[int]()

    def timed(model, drafter, *given, decode=payoff.decode, **options):
        nonlocal now
        now += 1.0 if isinstance(drafter, Autoregressive) else seconds
        done = decode(model, drafter, *given, **options)
        tokens.append(len(done.token_ids))
        return done

    monkeypatch.setattr(payoff, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(payoff, "decode", timed)
    assert train("eagle3", target, asking(tmp_path, 120), tmp_path / "head", "--max-new-tokens", "3") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    plain = sum(tokens[3::3]) / 2
    assert f"{sum(tokens[4::3]) / 2 / seconds:.1f} token/s with the head, {plain:.1f} without" in last
    assert last.endswith(told)
    assert ("does not pay" in last) == (not pays)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('{"turns": ["a"], "prompt": "b"}', "needs one of"),
        ('{"prompt": [1, -2]}', "'prompt' must be"),
        ('{"turns": ["a", "b"], "answers": ["c"]}', "one text for each of the 2 turns"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str, target: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{line}\n', encoding="utf-8")
    assert train("eagle", target, path, tmp_path / "head") == 2
    error = capsys.readouterr().err
    assert f"{path}:3" in error
    assert message in error


def test_errors_are_one_message(target: Path, data: Path, tmp_path: Path, capsys) -> None:
    assert train("eagle", tmp_path, data, tmp_path / "head") == 2
    assert "holds no config.json" in capsys.readouterr().err
    assert train("eagle", target, tmp_path / "missing", tmp_path / "head") == 2
    assert "there is no file" in capsys.readouterr().err
    assert train("eagle", target, data, tmp_path / "head", "--drafts", "0") == 2
    assert "--drafts must be more than 0" in capsys.readouterr().err
    assert not (tmp_path / "head").exists()


def test_another_trainings_checkpoints_are_refused(target: Path, data: Path, tmp_path: Path, capsys) -> None:
    work = ("--work", str(tmp_path / "work"))
    assert train("medusa", target, data, tmp_path / "head", *work) == 0
    assert train("eagle", target, data, tmp_path / "head", *work, "--seed", "2") == 2
    assert "another training (head, seed differ)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_unless(["qwen2", "qwen3"], {"qwen3"}.__contains__))
def test_heads_take_the_shape_of_other_families(family: str, target: Path, data: Path, tmp_path: Path) -> None:
    """Tied embeddings, heads wider than the hidden size, a chat template of its own, another rotary base."""
    shape = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 7, "num_attention_heads": 4}
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    own = {"num_key_value_heads": 2, "vocab_size": VOCABULARY, "tie_word_embeddings": True, "rope_parameters": rope}
    wide = {"head_dim": 16} if family == "qwen3" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape, **own, **wide))
    model.save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(target).save_pretrained(tmp_path / "other")
    for kind, layer in (("eagle", "layers.0"), ("eagle3", "midlayer")):
        assert train(kind, tmp_path / "other", data, tmp_path / kind) == 0
        tensors = tensors_of(tmp_path / kind)
        width = 4 * wide.get("head_dim", 8)
        assert tensors[f"{layer}.self_attn.q_proj.weight"].shape == (width, 32 if kind == "eagle" else 64)
        assert tensors[f"{layer}.self_attn.o_proj.weight"].shape == (32, width)
        assert json.loads((tmp_path / kind / "config.json").read_text(encoding="utf-8"))["rope_theta"] == 5000.0


def test_eagle3_needs_a_deep_target(data: Path, target: Path, tmp_path: Path, capsys) -> None:
    shallow = tmp_path / "shallow"
    lm.build(SHAPE, AutoTokenizer.from_pretrained(target), 6).save_pretrained(shallow)
    AutoTokenizer.from_pretrained(target).save_pretrained(shallow)
    assert train("eagle3", shallow, data, tmp_path / "head") == 2
    assert "at least 7 layers" in capsys.readouterr().err


def test_the_world_is_asked_in_training_wordings_and_measured_in_others() -> None:
    stream = conversations.world_conversations(random.Random(1))
    asked = {conversation.turns[0] for conversation in islice(stream, 400)}
    fresh = [c for c in conversations.world_development(1) if c.group == "knowledge"]
    assert not asked & {conversation.turns[0] for conversation in fresh}
    assert {conversation.group for conversation in conversations.world_development(1)} == {"knowledge", "open-ended"}


def test_training_keeps_what_the_template_is_told(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(target, tmp_path / "target")
    (model / "chat_template.jinja").write_text("{% macro m() %}{% endmacro %}{{ mood }}{{ strftime_now('%Y') }}")
    seen = []

    def ended(self: Teacher, *_: object) -> None:
        seen.append(self.sampling)
        raise UserError("enough")

    monkeypatch.setattr(Teacher, "samples", ended)
    data = tmp_path / "data.jsonl"
    data.write_text('{"turns": ["a"], "answers": ["b"]}\n')
    told = ["--chat-template-kwargs", '{"mood": "calm"}', "--work", str(tmp_path / "work")]
    arguments = ["train", "eagle", "--model", str(model), "--data", str(data), "--out", str(tmp_path / "head")]
    assert cli.main([*arguments, *told]) == 2
    assert seen[-1].chat_template_kwargs == {"mood": "calm"}
    (tmp_path / "work" / "template_time.txt").write_text("2024-05-06\n")
    cli.main([*arguments, *told])
    assert seen[-1].template_time == "2024-05-06"
