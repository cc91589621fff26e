"""The processes of a measurement: a target, a verifier, a link that can be talked to, and certificates."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.command import EXAMPLE
from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.controller import Choice, Controller
from ianvs_specdec.backends.split.edge.decode import Answer, Edge
from ianvs_specdec.backends.split.edge.drafts import FarTarget
from ianvs_specdec.backends.split.edge.session import Outage
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling

MODELS = EXAMPLE / "models"
COSTS = EXAMPLE / "costs" / "h100-8b.json"
PACED = Path(__file__).with_name("paced.py")
SPECDEC = (sys.executable, "-m", "ianvs_specdec")
PATIENCE = 60.0
"""Seconds for a process to be there."""
PROMPT_TOKENS = 24
NOISE = 0.3
"""With it about half of the embedded cloud model's tokens are guessed right."""
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Several processes compute at the same time."""


@dataclass(frozen=True)
class Certificate:
    """PEM files."""

    chain: Path
    key: Path

    @classmethod
    def made(cls, folder: Path) -> Certificate:
        """A self-signed one for this machine. Raises ``UserError`` without openssl."""
        chain, key = folder / "certificate.pem", folder / "key.pem"
        kind = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        try:
            command = ["openssl", *kind, *names, "-keyout", str(key), "-out", str(chain)]
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError as error:
            raise UserError("TLS needs a certificate, which openssl makes: install it") from error
        return cls(chain, key)


def endless_target(folder: Path) -> Path:
    """A small model with random weights that ends no answer: a step of it takes about a millisecond, so that only the
    times count that a table gives."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "cloud", trust_remote_code=False)
    tokenizer.eos_token = None
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, bos_token_id=None, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def noised(model: Path, folder: Path, share: float = NOISE) -> Path:
    """A draft model that is ``model`` but for noise in its weights, of this share of each one's standard deviation."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, trust_remote_code=False)
    with torch.no_grad():
        for weight in loaded.parameters():
            if weight.dim() > 1:
                weight += share * weight.std() * torch.randn_like(weight)
    loaded.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model, trust_remote_code=False).save_pretrained(folder)
    return folder


def random_prompts(count: int, vocabulary: int = 1000) -> list[list[int]]:
    from random import Random

    dice = Random(0)
    return [[dice.randrange(16, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def decoded(model: Path, prompts: Sequence[Sequence[int]], tokens: int, out: Path, *more: str) -> dict[int, list[int]]:
    """What the target writes alone, by the number of the prompt: prompt and answer. The file ``out`` has it, too."""
    asked = out.with_suffix(".prompts.jsonl")
    asked.write_text("".join(json.dumps({"prompt": list(prompt)}) + "\n" for prompt in prompts), encoding="utf-8")
    named = ("--model", str(model), "--prompts", str(asked), "--out", str(out), "--max-new-tokens", str(tokens))
    method = ("decode", "--method", "autoregressive", "--threads", "1", *named, *more)
    subprocess.run([*SPECDEC, *method], check=True, stderr=subprocess.PIPE, env=ONE_THREAD)
    return {number: json.loads(line)["output"] for number, line in enumerate(out.read_text().splitlines())}


def free_port() -> int:
    """One of this machine that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def process(command: Sequence[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process, which has ended afterwards. It is told to by SIGTERM, and killed where it does not. It has pipes and
    computes with one thread, where ``more`` does not say otherwise."""
    given: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": ONE_THREAD, **more}
    with subprocess.Popen(command, text=True, **given) as running:
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                running.kill()


def said(running: subprocess.Popen[str], begin: str) -> str:
    """The first line that begins so."""
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith(begin):
            return line
    raise UserError(f"{' '.join(map(str, running.args))} ended at once")  # type: ignore[arg-type]


def verifier_command(
    folder: Path,
    model: Path,
    settings: Mapping[str, Any],
    port: int = 0,
    certificate: Certificate | None = None,
    number: int = 0,
) -> list[str]:
    """``settings``: hyperparameters, which are written into ``folder``, and options by their names with ``--``."""
    own = {name: value for name, value in settings.items() if not name.startswith("--")}
    file = folder / f"verifier-{number}.yaml"
    file.write_text(json.dumps({"model": str(model), "threads": 1, **own}), encoding="utf-8")
    command = [*SPECDEC, "verifier", "--settings", str(file), "--port", str(port), "--grace", "1"]
    for name in settings.keys() - own.keys():
        command += [name, str(settings[name])]
    if certificate is not None:
        command += ["--tls-cert", str(certificate.chain), "--tls-key", str(certificate.key)]
    return command


@contextmanager
def verifier(
    folder: Path, model: Path, settings: Mapping[str, Any], certificate: Certificate | None = None, number: int = 0
) -> Iterator[str]:
    """The address of a running one."""
    with process(verifier_command(folder, model, settings, 0, certificate, number)) as running:
        yield said(running, "listening on").split()[-1]


class Relay:
    """A link in a process of its own, told what to do line by line."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running
        self.address: str = self._ask()

    def outage(self, seconds: float) -> None:
        self._tell("outage", seconds)

    def cut(self) -> None:
        self._tell("cut")

    def move(self, delay: float) -> None:
        self._tell("move", delay)

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = self._tell("summary")
        return found

    def _tell(self, *words: Any) -> Any:
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps(words) + "\n")
        self._running.stdin.flush()
        return self._ask()

    def _ask(self) -> Any:
        assert self._running.stdout is not None
        return json.loads(self._running.stdout.readline())


@contextmanager
def relay(to: str, path: Mapping[str, Any]) -> Iterator[Relay]:
    """``path``: options of a path, as a file has them."""
    with process((sys.executable, "-m", "bench.split.relay", to, json.dumps(path))) as running:
        yield Relay(running)


@dataclass
class Client:
    """An edge of this process, and how it drafts. ``length`` None = chosen."""

    access: Access
    drafter: Any
    length: int | None = None
    mode: Choice = "auto"
    in_flight: int = 4
    outage: Outage = field(default_factory=Outage)
    controls: type[Controller] = Controller

    def __enter__(self) -> Client:
        import torch

        self._connection = Connection(self.access)
        model = self._connection.describe(PATIENCE)
        target = FarTarget(model.vocabulary, model.window or None, torch.float32, None)
        self.drafter.prepare(target)
        ahead = self.in_flight if self.drafter.lines else 0
        self.controller = self.controls(self.length, in_flight=ahead, mode=self.mode, beside=model.drafts)
        self._edge = Edge(self._connection, model, self.drafter, target, self.controller, self.outage, self.in_flight)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def decode(self, prompt: Sequence[int], tokens: int, **more: Any) -> Answer:
        return self.sampled(prompt, Sampling(max_tokens=tokens), **more)

    def sampled(self, prompt: Sequence[int], sampling: Sampling, **more: Any) -> Answer:
        return self._edge.decode(prompt, sampling, **more)


def floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


@dataclass(frozen=True)
class Known:
    """A target, prompts, and the file of what it writes after them."""

    target: Path
    prompts: list[list[int]]
    truth: Path

    @classmethod
    def made(cls, folder: Path, count: int, tokens: int) -> Known:
        target, prompts, truth = endless_target(folder / "target"), random_prompts(count), folder / "truth.jsonl"
        decoded(target, prompts, tokens + 1, truth)
        return cls(target, prompts, truth)


@contextmanager
def drafting_verifier(known: Known, beside: Sequence[float], scale: float, number: int = 0) -> Iterator[str]:
    """The address of a verifier whose steps take what a cost table says, ``scale`` times, and which drafts with this
    acceptance and length. ``number`` tells those apart that run at the same time."""
    settings = {
        "backend": "SpecDec",
        "drafter": f"{PACED}:Paced",
        "drafter_options": {"truth": str(known.truth), "acceptance": beside[0], "most": int(beside[1])},
        "emulate": str(COSTS),
        "emulate_scale": scale,
        "--length": "full",
    }
    with verifier(known.truth.parent, known.target, settings, number=number) as address:
        yield address


def pace(answer: Answer) -> tuple[int, float]:
    """Tokens behind the first, and the seconds they took."""
    chunks = answer.trace.chunks
    return sum(count for _, count in chunks[1:]), chunks[-1][0] - chunks[0][0]
