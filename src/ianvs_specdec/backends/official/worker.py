"""Worker for the published packages, in the protocol of ``backends.process``. Called as ``worker.py PACKAGE``.

eagle-llm 1.2.1 (EAGLE-1, Li et al., arXiv 2401.15077) and lade 0.0.2 (lookahead decoding, Fu et al., arXiv 2402.02057),
unmodified. ``--probe`` prints ``{PACKAGE: version or null, "transformers": ..., "torch": ...}``.

Engine arguments: ``model`` and ``head`` (folders converted by ``layout``), ``dtype``, ``threads``. Request arguments:
``max_tokens``, ``stop_token_ids`` and ``settings``: ``{"tree": "static"}`` or ``{"tree": "chain", "depth": n}`` for
eagle-llm, ``{"level", "window", "guess"}`` for lade, and ``{"generate": true}`` for ``generate`` of transformers.

Each step is a line ``{"id", "time", "tokens", "finish", "drafts", "started"}``, with times of ``time.monotonic``, which
all processes of a machine share. ``tokens`` are cut at the end of the output. The last line has ``started``, when the
package was called, and ``drafts``: ``{"steps": [[drafted, accepted, verified], ...], "prefills": 0 or 1}``.
``prefills`` is 1 if the first token came from a pass over the prompt that is not a step; in lade it is a step.
"""

from __future__ import annotations

import glob
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TextIO

MAX_ERROR = 600
"""Characters of an error."""
MAX_NAMES = 3
"""Names of weights in an error."""
WARM_UP_IDS = [0, 0]

Take = Callable[[list[int], "list[int] | None"], bool]
"""Called after each forward with its new tokens and [drafted, accepted, verified], None if it was not a step. Returns
False to end the generation."""
Decode = Callable[[list[int], dict[str, Any], Take], None]
"""Called with the prompt, the request arguments, and what receives the tokens."""


def probe(package: str) -> dict[str, str | None]:
    """Versions of the package, transformers and torch, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in (package, "transformers", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} ..."


def eagle_llm(engine: dict[str, Any]) -> tuple[Decode, int]:
    """Load eagle-llm. Returns its decode function and the bytes of the model.

    ``EaModel.ea_generate`` yields after every step; ``eagenerate`` has the same loop, but cannot be stopped.
    """
    import torch
    from eagle.model.choices import mc_sim_7b_63
    from eagle.model.ea_model import EaModel
    from eagle.model.utils_c import generate_tree_buffers

    dtype = type_of(engine)
    model = EaModel.from_pretrained(base_model_path=engine["model"], ea_model_path=engine["head"], torch_dtype=dtype)
    model.eval()
    check_weights(engine["model"], model.base_model)
    check_finite(model.base_model)
    check_finite(model.ea_layer)
    trees: dict[int, Any] = {}

    def speculate(prompt: list[int], sampling: dict[str, Any], take: Take) -> None:
        settings = sampling["settings"]
        depth = settings["depth"] if settings["tree"] == "chain" else 0
        if depth not in trees:
            choices = [[0] * level for level in range(1, depth + 1)] if depth else mc_sim_7b_63
            trees[depth] = choices, generate_tree_buffers(choices, "cpu")
        # The target verifies ``tree_choices``; the head drafts the tree of ``init_tree``, which must be replaced here.
        choices, model.ea_layer.tree_buffer = trees[depth]
        model.ea_layer.tree = choices
        known, steps = len(prompt), sampling["max_tokens"]
        for output in model.ea_generate(torch.tensor([prompt]), 0.0, max_steps=steps, tree_choices=choices):
            new = output[0, known:].tolist()
            known += len(new)
            # A step returns its first token and keeps its last one for the next step.
            if not take(new, [len(choices), len(new) - 1, len(choices) + 1]):
                return

    # Allocate its caches.
    speculate(WARM_UP_IDS, {"settings": {"tree": "static"}, "max_tokens": 1}, lambda *_: False)
    held = storage([*model.parameters(), *model.buffers(), *model.past_key_values_data])
    return with_generate(speculate, cache(lambda: plain_model(engine, dtype))), held


def lade(engine: dict[str, Any]) -> tuple[Decode, int]:
    """Load lade. Returns its decode function and the bytes of the model.

    With ``USE_LADE`` other than 0, the package replaces greedy search in transformers. It reports nothing before the
    end. So a stopping criterion receives the tokens of each step, and the forward is wrapped to count drafts.
    """
    import lade as package

    package.augment_all()
    model = plain_model(engine, type_of(engine))
    forward, latest = model.jforward_multilevel, [0, 0]

    def recording(*arguments: Any, **inputs: Any) -> Any:
        output = forward(*arguments, **inputs)
        latest[:] = len(inputs["guess_tokens"] or ()), output.step_len - output.kvcache_len + 1
        return output

    model.jforward_multilevel = recording

    def speculate(prompt: list[int], sampling: dict[str, Any], take: Take) -> None:
        settings = sampling["settings"]
        os.environ["USE_LADE"] = "1"
        numbers = {"LEVEL": settings["level"], "WINDOW_SIZE": settings["window"], "GUESS_SET_SIZE": settings["guess"]}
        package.config_lade(**numbers, DEBUG=0)
        generate(model, prompt, sampling, take, settings["level"], lambda new, first: [latest[0], new - 1, latest[1]])

    def plain() -> Any:
        os.environ["USE_LADE"] = "0"
        return model

    return with_generate(speculate, plain), storage([*model.parameters(), *model.buffers()])


PACKAGES = {"eagle-llm": (eagle_llm, 1), "lade": (lade, 0)}
"""Package -> its loader, and the passes over the prompt that are not steps."""


def with_generate(speculate: Decode, plain: Callable[[], Any]) -> Decode:
    """Decode with ``generate`` of the model ``plain`` if the settings say so, else with the package."""

    def decode(prompt: list[int], sampling: dict[str, Any], take: Take) -> None:
        if sampling["settings"].get("generate"):
            generate(plain(), prompt, sampling, take, 1, lambda new, first: None if first else [0, 0, 1])
        else:
            speculate(prompt, sampling, take)

    return decode


def generate(
    model: Any,
    prompt: list[int],
    sampling: dict[str, Any],
    take: Take,
    most: int,
    draft: Callable[[int, bool], list[int] | None],
) -> None:
    """Greedy ``generate`` of transformers. ``most``: maximum tokens of a forward; ``draft``: its step."""
    import torch
    from transformers import StoppingCriteriaList

    known = len(prompt)

    def ended(ids: Any, scores: Any, **_: Any) -> bool:
        nonlocal known
        new, first = ids[0, known:].tolist(), known == len(prompt)
        known += len(new)
        return not take(new, draft(len(new), first))

    ids, ends = torch.tensor([prompt]), sampling["stop_token_ids"]
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        # Beyond this limit the criterion is not called.
        max_new_tokens=sampling["max_tokens"] + most,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=(ends or [0])[0],
        stopping_criteria=StoppingCriteriaList([ended]),
    )


def plain_model(engine: dict[str, Any], dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    auto = AutoModelForCausalLM
    model = auto.from_pretrained(engine["model"], torch_dtype=dtype, trust_remote_code=False).eval()
    check_weights(engine["model"], model)
    check_finite(model)
    return model


def check_weights(folder: str, model: Any) -> None:
    """Raise ValueError for missing weights, which transformers initializes randomly."""
    from safetensors import safe_open

    stored: set[str] = set()
    for path in glob.glob(os.path.join(glob.escape(folder), "*.safetensors")):
        with safe_open(path, "pt") as file:
            stored.update(file.keys())
    # A file of the inner model has names without the prefix.
    names = [name for name, _ in model.named_parameters()]
    refuse("missing", [name for name in names if not {name, name.removeprefix("model.")} & stored])


def check_finite(model: Any) -> None:
    refuse("not finite", [name for name, weight in model.named_parameters() if not weight.isfinite().all()])


def refuse(how: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        raise ValueError(f"weights are {how}: {', '.join(names[:MAX_NAMES])}{more}")


def type_of(engine: dict[str, Any]) -> Any:
    import torch

    return "auto" if engine["dtype"] == "auto" else getattr(torch, engine["dtype"])


def storage(tensors: Iterable[Any]) -> int:
    """Bytes of the tensors; shared storage counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class Worker:
    """Answers requests one by one, in order of arrival."""

    def __init__(self, decode: Decode, answers: TextIO, prefills: int) -> None:
        self.decode, self.answers, self.prefills = decode, answers, prefills
        self.inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.aborted: set[int] = set()
        self.closed = threading.Event()

    def listen(self, lines: Iterable[str]) -> None:
        """Move requests to the inbox, None at the end of input. Runs in its own thread."""
        for line in lines:
            message = json.loads(line)
            if "abort" in message:
                self.aborted.add(message["abort"])
            else:
                self.inbox.put(message)
        self.closed.set()
        self.inbox.put(None)

    def run(self) -> None:
        while (message := self.inbox.get()) is not None and not self.closed.is_set():
            try:
                self.answer(**message)
            except Exception as error:
                traceback.print_exc()
                self.write(id=message["id"], error=one_line(error))

    def write(self, **message: Any) -> None:
        print(json.dumps(message), file=self.answers, flush=True)

    def answer(self, id: int, prompt: list[int], sampling: dict[str, Any]) -> None:
        steps: list[list[int]] = []
        ends, left = set(sampling["stop_token_ids"]), sampling["max_tokens"]
        drafts = {"steps": steps, "prefills": 1 if sampling["settings"].get("generate") else self.prefills}
        started, finish = time.monotonic(), None

        def take(tokens: list[int], draft: list[int] | None) -> bool:
            nonlocal left, finish
            now, kept = time.monotonic(), tokens[:left]
            if draft is not None:
                steps.append(draft)
            end = next((place for place, token in enumerate(kept) if token in ends), None)
            kept = kept if end is None else kept[: end + 1]
            left -= len(kept)
            if end is not None:
                finish = "stop"
            elif not left:
                finish = "length"
            elif id in self.aborted or self.closed.is_set():
                finish = "abort"
            last = {"drafts": drafts, "started": started} if finish else {"drafts": None}
            self.write(id=id, time=now, tokens=kept, finish=finish, **last)
            return finish is None

        self.decode(prompt, sampling, take)
        if finish is None:
            limit = sampling["max_tokens"]
            self.write(id=id, error=f"the package ended by itself after {limit - left} of at most {limit} tokens")


def computed_with() -> dict[str, Any]:
    """Threads and instruction set of torch."""
    import torch

    return {"threads": torch.get_num_threads(), "instructions": torch.backends.cpu.get_cpu_capability()}


def main() -> None:
    # The modules next to this file have common names, which the packages' imports must not find.
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own]
    # The packages print: only answers go to standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    package = sys.argv[1]
    if "--probe" in sys.argv:
        print(json.dumps(probe(package)), file=answers, flush=True)
        return
    engine = json.loads(sys.stdin.readline())["engine"]
    try:
        import torch

        torch.set_num_threads(engine["threads"] or torch.get_num_threads())
        load, prefills = PACKAGES[package]
        decode, held = load(engine)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"failed": one_line(error)}), file=answers, flush=True)
        sys.exit(1)
    worker = Worker(decode, answers, prefills)
    worker.write(ready={"versions": probe(package), "memory": held, **computed_with()})
    threading.Thread(target=worker.listen, args=(sys.stdin,), daemon=True).start()
    worker.run()
    answers.flush()
    # Skip the interpreter's shutdown, which takes time.
    os._exit(0)


if __name__ == "__main__":
    main()
