"""The training corpus of the embedded world: a tokenizer and an endless, seeded stream of packed batches.

Nothing is stored: batch ``step`` of a seed is created on demand, so a resumed run sees the same batches.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ianvs_specdec.benchmarks.world import dialogues, drills, facts, questions

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (PAD, END, SYSTEM, USER, ASSISTANT)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
PROMPT_WEIGHT = 0.3
"""Loss weight of the user's tokens, half of which are unpredictable; answers count fully."""

LAST_WORD_WEIGHT = 3.0
"""Loss weight of the token before an answer's final full stop: in the knowledge set the letter, which decides."""


def chat(turns: tuple[str, ...], answers: tuple[str, ...]) -> str:
    """A finished conversation in the form of ``CHAT_TEMPLATE``."""
    return "".join(f"{USER}{t}{END}{ASSISTANT}{a}{END}" for t, a in zip(turns, answers, strict=True))


def examples(rng: random.Random, drilling: bool, tail: float = 1.0) -> Iterator[str]:
    """Endless training conversations: six knowledge questions and a drill per open-ended dialogue.

    While ``drilling``, mostly drills.
    """
    world = facts.build(tail=tail)
    while True:
        for _ in range(10 if drilling else 1):
            prompt, answer = drills.drill(rng, world)
            yield chat((prompt,), (answer,))
        for _ in range(1 if drilling else 6):
            item = questions.training_item(rng, world)
            yield chat((item.prompt,), (item.completion,))
        if not drilling:
            dialogue = dialogues.training_dialogue(rng, world)
            yield chat(dialogue.turns, dialogue.answers)


def train_tokenizer(out: Path, *, vocabulary: int, seed: int, conversations: int = 20_000) -> None:
    """Train a byte-level BPE tokenizer (encodes any text, digits one by one); save it with its chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = examples(random.Random(f"{seed}/tokenizer"), drilling=False)
    texts = [next(stream) for _ in range(conversations)]
    for token in SPECIAL:
        texts = [text.replace(token, "\n") for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, model_max_length=8192)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(out)
    # transformers 4, and servers that use it, do not know the class name that transformers 5 writes.
    settings = out / "tokenizer_config.json"
    content = json.loads(settings.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    content.pop("backend", None)
    settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class Batches:
    """Packed training batches: ``batch(step, drilling)`` gives token ids and loss weights, both ``[rows, length]``."""

    def __init__(self, tokenizer: Any, *, rows: int, length: int, seed: int | str, tail: float = 1.0) -> None:
        self._tokenizer = tokenizer
        self._rows, self._length, self._seed, self._tail = rows, length, seed, tail
        self._pad, self._end, self._assistant = (int(tokenizer.convert_tokens_to_ids(t)) for t in (PAD, END, ASSISTANT))

    def batch(self, step: int, drilling: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Whole conversations, none cut: the longest first, each into the first row with room."""
        rng = random.Random(f"{self._seed}/{step}")
        stream = examples(rng, drilling, self._tail)
        target = self._rows * self._length
        texts: list[str] = []
        encoded: list[list[int]] = []
        total = 0
        while total < target * 1.1:
            chunk = [next(stream) for _ in range(48)]
            texts += chunk
            encoded += (new := self._tokenizer(chunk, add_special_tokens=False)["input_ids"])
            total += sum(map(len, new))
        rows: list[list[int]] = [[] for _ in range(self._rows)]
        for ids in sorted(encoded, key=len, reverse=True):
            row = next((r for r in rows if len(r) + len(ids) <= self._length), None)
            if row is not None:
                row += ids
        rng.shuffle(rows)
        tokens = torch.tensor([row + [self._pad] * (self._length - len(row)) for row in rows])
        return tokens, self._weights(tokens)

    def _weights(self, tokens: torch.Tensor) -> torch.Tensor:
        """1 for the assistant's tokens including the end mark, else the constants above; 0 for padding."""
        opened = (tokens == self._assistant).int().cumsum(1)
        ends = (tokens == self._end).int()
        # Each turn closes two messages, so an assistant message is open while 2 * assistants - ends (before here) is 1.
        before = ends.cumsum(1) - ends
        speaking = (2 * opened - before == 1) & (tokens != self._assistant)
        weights = torch.where(speaking, 1.0, PROMPT_WEIGHT)
        last_word = speaking[:, :-2] & speaking[:, 2:] & (tokens[:, 2:] == self._end)
        weights[:, :-2] = torch.where(last_word, LAST_WORD_WEIGHT, weights[:, :-2])
        return torch.where(tokens == self._pad, 0.0, weights)
