"""``ianvs_specdec.LLM``: batched inference from Python, without a server or a job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.backends.base import NO_HINTS
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling

Prompt = str | Sequence[int]

MAX_CONCURRENT = 64
"""As many as the engine puts into one step."""
GREEDY = Sampling()


class LLM:
    """Loads a model with a drafting method.

    ``options``: the YAML keys of the method's back end, such as ``head``, ``draft``, ``dtype``, ``threads``,
    ``quantization``, ``engine``. Answers are ``Completion``s with text, token ids, finish reason and trace.

    Raises UserError for a model that cannot be loaded and for unknown options.
    """

    def __init__(self, model: str, method: str = "autoregressive", **options: Any) -> None:
        drafters.method_of(method)  # raises for an unknown one
        self._engine = engine_backend(drafters.resolve(method))(str(model), **options)
        self._engine.load()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: Sampling = GREEDY, hints: Hints = NO_HINTS
    ) -> list[Completion]:
        """Continue texts or lists of token ids without a chat template, concurrently and in order.

        Prompt i is sampled with the seed plus i. Raises AnswerError for the first that cannot be answered; the others
        are cancelled.
        """
        several = [_raw(prompt) for prompt in (prompts if _are_several(prompts) else [prompts])]
        return _generate_all(self._engine.generate, several, sampling, hints)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling: Sampling = GREEDY,
        hints: Hints = NO_HINTS,
    ) -> list[Completion]:
        """``generate`` for one or several chats, with the chat template. A message has ``role`` and ``content``."""
        chats: list[Any] = list(messages) if messages and isinstance(messages[0], list) else [messages]
        return _generate_all(self._engine.generate, chats, sampling, hints)

    def stream(
        self, prompt: Prompt | list[Message], sampling: Sampling = GREEDY, hints: Hints = NO_HINTS
    ) -> Generator[str, None, Completion]:
        """Yield the text of one answer, to a prompt or a chat, in pieces. The generator returns the ``Completion``.

        Closing the generator cancels the request.
        """
        pieces: queue.SimpleQueue[str | Completion | Exception] = queue.SimpleQueue()
        cancelled = threading.Event()
        asked: Any = prompt if _is_chat(prompt) else _raw(prompt)
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
        """The engine: ``native``, ``fused`` (our model code in torch) or ``transformers``."""
        return self._engine.target()

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _generate_all(
    ask: Callable[..., Completion], asked: Sequence[Any], sampling: Sampling, hints: Hints
) -> list[Completion]:
    cancelled = threading.Event()
    hints = replace(hints, cancelled=cancelled.is_set)
    with ThreadPoolExecutor(max_workers=min(MAX_CONCURRENT, max(1, len(asked)))) as pool:
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
    """Whether this is a list of prompts, rather than a text or token ids."""
    return not isinstance(prompts, str) and not all(isinstance(each, int) for each in prompts)


def _raw(prompt: Any) -> str | tuple[int, ...]:
    return prompt if isinstance(prompt, str) else tuple(prompt)


def _is_chat(prompt: Any) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], dict)
