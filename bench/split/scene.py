"""The processes of a measurement: a target, a verifier, and edges over emulated paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.command import EXAMPLE, SETS
from bench.prompts import read_rows
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.backends.split.backend import SplitSpecDecLLM
from ianvs_specdec.common.sampling import Sampling
from ianvs_specdec.common.settings import ExistingPath, Share
from ianvs_specdec.common.types import Completion, Message
from ianvs_specdec.drafters.options import DraftingOptions
from ianvs_specdec.drafters.registry import METHODS, Method

MODELS = EXAMPLE / "models"
COSTS, SCALE = EXAMPLE / "costs" / "h100-8b.json", 2.0
"""A verifier's step times, and by which they are stretched."""
BESIDE = {"right": 0.5, "most": 2}
"""Acceptance and length of a verifier's own drafts."""
PACED = Path(__file__).with_name("paced.py")
SPECDEC = (sys.executable, "-m", "ianvs_specdec")


class PacedOptions(DraftingOptions):
    truth: ExistingPath
    right: Share
    seconds: Share = 0.0


def register_paced() -> None:
    """Make the drafter of these measurements a method, which ``SplitSpecDec`` can name."""
    METHODS["paced"] = Method("bench.split.paced:Paced", "Paced", PacedOptions, tokens_only=True)


def endless_target(folder: Path) -> Path:
    """A small model with random weights that ends no answer: a step of it takes about a millisecond, so that only the
    times of a cost table count."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "cloud", trust_remote_code=False)
    tokenizer.eos_token = None
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, bos_token_id=None, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Truth:
    """Questions, what the target writes alone after each (token ids), and the file that has both."""

    questions: list[str]
    answers: list[list[int]]
    file: Path


def truth_of(model: Path, questions: Sequence[str], tokens: int, file: Path, *more: str) -> Truth:
    """What ``specdec decode --method autoregressive`` writes."""
    asked = file.with_suffix(".prompts.jsonl")
    asked.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in questions), encoding="utf-8")
    named = ("--model", str(model), "--prompts", str(asked), "--out", str(file), "--max-new-tokens", str(tokens))
    method = ("decode", "--method", "autoregressive", "--chat", "--threads", "1", *named, *more)
    # Several processes compute at the same time.
    subprocess.run([*SPECDEC, *method], check=True, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return Truth(list(questions), [row["output"][len(row["prompt"]) :] for row in rows], file)


def questions(count: int) -> list[str]:
    """Of the embedded knowledge set, evenly spread."""
    return [text for text, _ in read_rows(SETS[0], count)]


@contextmanager
def verifier(file: Path, model: Path, settings: Mapping[str, Any], *more: str) -> Iterator[str]:
    """The address of a running one. ``settings`` are hyperparameters, which are written into ``file``."""
    file.write_text(json.dumps({"model": str(model), "threads": 1, **settings}), encoding="utf-8")
    started = ServerProcess(["verifier", "--settings", str(file), "--port", "0", "--grace", "1", *more])
    try:
        yield started.address
    finally:
        started.close()


@contextmanager
def drafting_verifier(truth: Truth, model: Path, number: int) -> Iterator[str]:
    """A verifier that drafts beside its model. ``number`` distinguishes those that run at the same time."""
    drafting = {"truth": str(truth.file), **BESIDE}
    own = {"backend": "SpecDec", "drafter": f"{PACED}:Paced", "drafter_options": drafting}
    settings = {**own, "emulate": str(COSTS), "emulate_scale": SCALE}
    file = truth.file.with_name(f"verifier-{number}.yaml")
    with verifier(file, model, settings, "--length", "full") as address:
        yield address


def edge(model: Path, address: str, edge: Mapping[str, Any], link: Any = None, **more: Any) -> SplitSpecDecLLM:
    """The back end of an edge, as a job has it; ``link`` is a preset or the options of a path."""
    return SplitSpecDecLLM(str(model), verifier=address, edge={"threads": 1, **edge}, link=link, **more)


def decode(llm: LLM, question: str, tokens: int, on_chunk: Any = None, **sampling: Any) -> Completion:
    messages: list[Message] = [{"role": "user", "content": question}]
    return llm.generate(messages, Sampling(max_tokens=tokens, **sampling), on_chunk)
