"""The target as a teacher: it says conversations in its own words, and gives its features at every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query, Sampling, messages_of
from ianvs_specdec.engine.contracts import prompt_chunks
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.request import Request
from ianvs_specdec.models.json_files import without_bom
from ianvs_specdec.models.loading import CAUSAL, load, loading_error
from ianvs_specdec.models.templates import DEFAULT_SAMPLING, render
from ianvs_specdec.targets.registry import create_target
from ianvs_specdec.training.heads.conversations import Conversation
from ianvs_specdec.training.heads.pool import Sample, runs_of

LAYERS_FOR_EAGLE3 = 7
"""EAGLE-3 reads the inputs of layers 2, n // 2 and n - 3, which are three different ones from here on."""


@dataclass
class _Dialogue:
    """A conversation in the making: ``ids`` so far, of which the target said those with ``spoken`` true."""

    group: str
    ids: list[int] = field(default_factory=list)
    spoken: list[bool] = field(default_factory=list)


class Teacher:
    """A target in bf16 with its tokenizer. ``target`` computes its words and features, many answers in one step.

    ``length`` is the most tokens of a sequence, ``answer`` the most of one answer.
    """

    ends: list[int]
    """Tokens that end an answer."""
    sampling = DEFAULT_SAMPLING
    """What the chat template is told."""

    def __init__(self, folder: Path, *, device: str, length: int = 1024, answer: int = 256) -> None:
        self.model, self.tokenizer = _load(folder, device)
        self.config = self.model.config
        self.target = create_target(self.model)
        self._length, self._answer = min(length, self.target.window or length), answer
        configured = self.model.generation_config.eos_token_id
        ends = configured if isinstance(configured, list) else [configured]
        # The tokenizer's comes first: it is what ends an answer in a chat, where a model has several.
        self.ends = list(dict.fromkeys(e for e in [self.tokenizer.eos_token_id, *ends] if e is not None))

    @property
    def eagle3_layers(self) -> tuple[int, int, int]:
        """Indices into ``hidden_states`` of what an EAGLE-3 head reads. Raises ``UserError`` for a shallow target."""
        n = self.config.num_hidden_layers
        if n < LAYERS_FOR_EAGLE3:
            raise UserError(
                f"EAGLE-3 needs a model of at least {LAYERS_FOR_EAGLE3} layers, this one has {n}: use eagle"
            )
        return 2, n // 2, n - 3

    def samples(self, conversations: Sequence[Conversation], layers: Sequence[int] = ()) -> list[Sample]:
        """The conversations in the target's own greedy words, with features; ``layers`` are the ``hidden_states`` to
        keep beside the last.

        An expected answer that the target would give token for token is taken as it is; others are generated.
        """
        expected = [self._expected(conversation) for conversation in conversations]
        samples = self._features([draft or _Dialogue("") for draft in expected], layers)
        own = [
            index
            for index, (draft, sample) in enumerate(zip(expected, samples, strict=True))
            if draft is None or (not conversations[index].text and not self._says(sample))
        ]
        said = self._converse([conversations[index] for index in own])
        for index, sample in zip(own, self._features(said, layers), strict=True):
            samples[index] = sample
        return samples

    def asked(self, given: Sequence[Conversation], report: Callable[[str], None]) -> list[Conversation]:
        """The conversations as the target is asked: where it has a chat template, a prompt is what a user says, unless
        it holds marks of the template already. Reports how many go through the template.
        """
        marks = [mark.content for mark in self.tokenizer.added_tokens_decoder.values() if mark.special]

        def chat(one: Conversation) -> Conversation:
            text = one.prompt if self.tokenizer.chat_template and isinstance(one.prompt, str) else ""
            return replace(one, turns=(text,), prompt="") if text and not any(m in text for m in marks) else one

        chats = [chat(conversation) for conversation in given]
        templated = sum(bool(conversation.turns) for conversation in chats)
        none = "" if self.tokenizer.chat_template else " (the model has none)"
        raw = f"{len(chats) - templated} are taken as they stand"
        report(f"{templated} lines of the data go through the chat template{none}, {raw}")
        return chats

    def _expected(self, conversation: Conversation) -> _Dialogue | None:
        """The conversation with the answers that came with it; None where they are not known."""
        if conversation.text:
            ids = self.tokenizer(conversation.text)["input_ids"][: self._length]
            return _Dialogue(conversation.group, ids, [True] * len(ids))
        if not conversation.answers:
            return None
        draft = _Dialogue(conversation.group)
        for turn, answer in enumerate(conversation.answers):
            self._ask(draft, conversation, conversation.answers[:turn])
            self._answer_with(draft, [*self.tokenizer(answer, add_special_tokens=False)["input_ids"], *self.ends[:1]])
        return draft

    def _says(self, sample: Sample) -> bool:
        """Whether every token marked as the target's own is the one it would choose."""
        with torch.inference_mode():
            best = self.target.unembed(sample.features.to(self.target.device)).argmax(-1).cpu()
        return bool(((best[:-1] == sample.tokens[1:]) | (sample.run[1:] == 0)).all())

    def _converse(self, conversations: Sequence[Conversation]) -> list[_Dialogue]:
        """Ask the target turn by turn; a conversation ends early where an answer does not."""
        drafts = [_Dialogue(conversation.group) for conversation in conversations]
        answers: list[list[str]] = [[] for _ in conversations]
        open_ = list(range(len(conversations)))
        turn = 0
        while open_:
            for index in open_:
                self._ask(drafts[index], conversations[index], answers[index])
            for index, ids in zip(open_, self._generate([drafts[i].ids for i in open_]), strict=True):
                self._answer_with(drafts[index], ids)
                answers[index].append(self.tokenizer.decode(ids, skip_special_tokens=True))
            turn += 1
            open_ = [i for i in open_ if turn < len(conversations[i].turns) and drafts[i].ids[-1] in self.ends]
        return drafts

    def _ask(self, draft: _Dialogue, conversation: Conversation, answers: Sequence[str]) -> None:
        """Append the next turn as the chat template puts it; where it rewrites what was said before, start anew."""
        if not conversation.turns:
            prompt = conversation.prompt
            ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        elif not self.tokenizer.chat_template:
            raise UserError(
                'the model has no chat template for "turns": train with lines of "prompt" or "text" (--data)'
            )
        else:
            messages = messages_of(Query(conversation.turns), answers)
            ids = self.tokenizer(render(self.tokenizer, messages, self.sampling), add_special_tokens=False)["input_ids"]
        if max(ids, default=0) >= self.config.vocab_size:
            raise UserError(
                f"a prompt has token id {max(ids)}, the model's vocabulary ends at {self.config.vocab_size - 1}"
            )
        known = len(draft.ids) if ids[: len(draft.ids)] == draft.ids else 0
        draft.spoken = draft.spoken[:known] + [False] * (len(ids) - known)
        draft.ids = ids

    def _answer_with(self, draft: _Dialogue, ids: list[int]) -> None:
        draft.ids = draft.ids + ids
        draft.spoken = draft.spoken + [True] * len(ids)

    def _generate(self, prompts: list[list[int]]) -> list[list[int]]:
        """Greedy continuations, with the end mark where there is one; empty where the window has no room for one."""
        plain, sampling = drafters.create("autoregressive"), Sampling(max_tokens=self._answer)
        engine = Engine(self.target, lengths.create("fixed:0"))
        requests: list[Request | None] = []
        for prompt in prompts:
            fits = 0 < len(prompt) < self._length
            request = Request(self.target, plain.fork(), prompt, sampling, eos_ids=self.ends) if fits else None
            requests.append(request)
            if request is not None:
                engine.add(request)
        engine.run()
        return [[] if request is None else request.result().token_ids for request in requests]

    @torch.inference_mode()
    def _features(self, drafts: Sequence[_Dialogue], layers: Sequence[int]) -> list[Sample]:
        return [self._sample(draft, layers) for draft in drafts]

    def _sample(self, draft: _Dialogue, layers: Sequence[int]) -> Sample:
        ids, spoken = draft.ids[: self._length], draft.spoken[: self._length]
        sequence = self.target.open((-1, *layers))
        try:
            rows = self.target.prompt_rows or len(ids) or 1
            outputs = [self.target.step([(sequence, piece)])[0].hidden for piece in prompt_chunks(ids, rows)]
        finally:
            sequence.close()
        size = self.config.hidden_size
        empty = [torch.zeros(0, size)] * (1 + len(layers))
        last, *inner = (torch.cat(parts).to("cpu", torch.bfloat16) for parts in zip(empty, *outputs, strict=True))
        joined = torch.cat(inner, -1) if inner else last.new_zeros(len(last), 0)
        return Sample(torch.tensor(ids, dtype=torch.long), last, joined, runs_of(spoken), draft.group)


def _load(folder: Path, device: str) -> tuple[Any, Any]:
    if not (folder / "config.json").is_file():
        raise UserError(f"--model {folder} holds no config.json: give the folder of a Hugging Face model", key="model")
    import transformers

    what = f"the model {folder}"
    model = load(CAUSAL, folder, what=what, key="model", dtype=torch.bfloat16)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(without_bom(folder), trust_remote_code=False)
    except Exception as error:
        # Damaged files raise whatever their reader has.
        raise loading_error(what, error, "model") from error
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")
    if missing := [name for name in needed if not hasattr(model.config, name)]:
        raise UserError(
            f"--model {folder}: heads are trained for models built like Llama or Qwen; "
            f"type {model.config.model_type} has no {', '.join(missing)}",
            key="model",
        )
    return model.to(device).requires_grad_(False), tokenizer
