"""``generate`` of transformers, for comparison, with the same times and counts as our engine."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from ianvs_specdec.backends.local import LocalLLM
from ianvs_specdec.backends.prompts import TextOutput
from ianvs_specdec.backends.quantization import built_in
from ianvs_specdec.common.types import Hints, Sampling, Trace
from ianvs_specdec.models.rotary import window_of

if TYPE_CHECKING:
    from ianvs_specdec.engine.confidence import Confidence


class HuggingfaceLLM(LocalLLM):
    """``model.generate`` without drafts."""

    backend: ClassVar[str] = "huggingface"
    method = "generate"

    def _prepare(self) -> None:
        from transformers import GenerationConfig

        if (rounded := built_in(self.quantization)) is not None:
            from ianvs_specdec.targets.registry import quantize

            quantize(self._model, rounded)
        # generate would merge the model's own sampling defaults into the request's.
        self._model.generation_config = GenerationConfig()

    def _decode(
        self, prompt_ids: list[int], sampling: Sampling, output: TextOutput, prediction: list[int], hints: Hints
    ) -> tuple[list[int], str, Trace]:
        import torch

        from ianvs_specdec.engine.confidence import Confidence

        settings: dict[str, Any] = {
            "max_new_tokens": self._room(prompt_ids, sampling),
            "do_sample": not sampling.greedy,
        }
        if not sampling.greedy:
            settings |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
            torch.manual_seed(sampling.seed)
        ends = [] if sampling.ignore_eos else sorted(self._eos_ids)
        if least := min(sampling.min_tokens, settings["max_new_tokens"]) if ends else 0:
            settings["min_new_tokens"] = least
        confidence = Confidence() if sampling.logprobs else None
        watcher = _Watcher(len(prompt_ids), output, confidence)
        inputs = torch.tensor([prompt_ids], device=self._model.device)
        with self._model.register_forward_hook(watcher.computed) if confidence is not None else nullcontext():
            self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                streamer=watcher,
                stopping_criteria=[watcher.stopped],
                repetition_penalty=sampling.repetition_penalty,
                eos_token_id=ends or None,
                pad_token_id=ends[0] if ends else 0,
                **settings,
            )
        if confidence is not None:
            watcher.trace.confidence = confidence.triples(len(watcher.ids))
            watcher.trace.first = confidence.first()
        ended = watcher.complete or watcher.ids[-1] in ends
        return watcher.ids, "stop" if ended else "length", watcher.trace

    def target(self) -> str:
        return "transformers generate"

    def _weights_memory(self) -> int:
        from ianvs_specdec.engine.memory import tensor_bytes
        from ianvs_specdec.targets.huggingface import weights_of

        return tensor_bytes(weights_of(self._model))

    def _room(self, prompt_ids: list[int], sampling: Sampling) -> int:
        window = window_of(self._model.config.get_text_config())
        return min(sampling.max_tokens, window - len(prompt_ids)) if window else sampling.max_tokens


class _Watcher:
    """Streamer and stopping criterion of ``generate``: records the time of each token, stops at stop strings."""

    def __init__(self, prompt_tokens: int, output: TextOutput, confidence: Confidence | None) -> None:
        self.ids: list[int] = []
        self.trace = Trace()
        self.complete = False
        self._prompt_tokens, self._output = prompt_tokens, output
        self._started = time.perf_counter()
        self._seen_prompt = False
        self._confidence = confidence
        self._logits: Any = None

    def computed(self, model: Any, inputs: Any, output: Any) -> None:
        """Forward hook: keep the logits before ``generate`` modifies them."""
        self._logits = output.logits[0, -1:]

    def put(self, value: Any) -> None:
        ids = value.flatten().tolist()
        if not self._seen_prompt:
            self._seen_prompt = True
            return
        self.ids += ids
        if self._confidence is not None:
            self._confidence.add(self._logits, ids)
        self.trace.chunks.append((time.perf_counter() - self._started, len(ids)))
        if self._output.emit is not None:
            self._output.emit(ids)

    def end(self) -> None:
        """Part of the streamer interface."""

    def stopped(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        if self._output.ends is not None:
            self.complete = self._output.ends(input_ids[0, self._prompt_tokens :].tolist()) is not None
        return torch.tensor([self.complete], device=input_ids.device)
