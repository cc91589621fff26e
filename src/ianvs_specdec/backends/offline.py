"""Many prompts at once from Python, without a server or a job: ``ianvs_specdec.LLM``."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.backends.base import NO_HINTS
from ianvs_specdec.backends.specdec import of_method
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling

Prompt = str | Sequence[int]

AT_ONCE = 64
"""Requests under way; the engine takes no more into one step."""
GREEDY = Sampling()


class LLM:
    """A model and a drafting method. ``options`` are the keys that the method's back end has in YAML, such as ``head``,
    ``draft``, ``dtype``, ``threads``, ``quantization``, ``engine``. The model is loaded here.

    Answers are ``Completion``s, in the order of what was asked: text, token ids, finish reason and the trace.

    Raises ``UserError`` for what cannot be loaded, and for an option that does not exist.
    """

    def __init__(self, model: str, method: str = "autoregressive", **options: Any) -> None:
        drafters.method_of(method)  # raises for one that does not exist
        self._engine = of_method(drafters.resolve(method))(str(model), **options)
        self._engine.load()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: Sampling = GREEDY, hints: Hints = NO_HINTS
    ) -> list[Completion]:
        """Continue texts, or lists of token ids, as they are. All are under way at once; prompt i is sampled with the
        seed plus i. Raises ``AnswerError`` for the first that cannot be answered; the others are ended."""
        several = [_plain(prompt) for prompt in (prompts if _are_several(prompts) else [prompts])]
        return _together(self._engine.generate, several, sampling, hints)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling: Sampling = GREEDY,
        hints: Hints = NO_HINTS,
    ) -> list[Completion]:
        """As ``generate``, for one chat or several, through the model's chat template. A message is ``{"role": ...,
        "content": ...}``."""
        chats: list[Any] = list(messages) if messages and isinstance(messages[0], list) else [messages]
        return _together(self._engine.generate, chats, sampling, hints)

    def stream(
        self, prompt: Prompt | list[Message], sampling: Sampling = GREEDY, hints: Hints = NO_HINTS
    ) -> Generator[str, None, Completion]:
        """The pieces of one answer, to a prompt or to a chat, as they become final. The generator's return value is the
        ``Completion``. Closing it ends the request."""
        pieces: queue.SimpleQueue[str | Completion | Exception] = queue.SimpleQueue()
        cancelled = threading.Event()
        asked: Any = prompt if _is_chat(prompt) else _plain(prompt)
        hints = replace(hints, cancelled=cancelled.is_set)

        def _answer() -> None:
            try:
                pieces.put(self._engine.generate(asked, sampling, lambda piece, tokens: pieces.put(piece), hints))
            except Exception as error:
                pieces.put(error)

        thread = threading.Thread(target=_answer, daemon=True)
        thread.start()
        try:
            while isinstance(piece := pieces.get(), str):
                yield piece
        finally:
            cancelled.set()
            thread.join()
        if isinstance(piece, Exception):
            raise piece
        return piece

    @property
    def target(self) -> str | None:
        """What computes: ``native``, ``fused`` (our forward in torch) or ``transformers``."""
        return self._engine.target()

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _together(
    ask: Callable[..., Completion], asked: Sequence[Any], sampling: Sampling, hints: Hints
) -> list[Completion]:
    cancelled = threading.Event()
    hints = replace(hints, cancelled=cancelled.is_set)
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, max(1, len(asked)))) as pool:
        answers = [
            pool.submit(ask, each, replace(sampling, seed=sampling.seed + number), hints=hints)
            for number, each in enumerate(asked)
        ]
        try:
            return [answer.result() for answer in answers]
        except BaseException:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise


def _are_several(prompts: Any) -> bool:
    """Whether these are prompts, and not a text or the token ids of one."""
    return not isinstance(prompts, str) and not all(isinstance(each, int) for each in prompts)


def _plain(prompt: Any) -> str | tuple[int, ...]:
    return prompt if isinstance(prompt, str) else tuple(prompt)


def _is_chat(prompt: Any) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], dict)
