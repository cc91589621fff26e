"""``SplitSpecDec``: what it refuses, what its answers depend on, and one answer over a link to a verifier."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.backends import backend, child
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.common.errors import RequestCancelledError, UserError
from ianvs_specdec.common.types import Hints, Sampling, Trace
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.identity import FileDigests
from tests.support.models import build_model
from tests.support.paths import EXAMPLE
from tests.support.verifiers import Verifier, loaded, verifying

STREAM = {"mode": "stream"}
GREEDY, DRAWN = Sampling(max_tokens=40), Sampling(max_tokens=40, temperature=0.8, seed=5)
CHAT = [{"role": "user", "content": "ab ab ab"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("split") / "target")


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[Verifier]:
    llm = loaded(folder)
    with verifying(llm) as running:
        yield running
    llm.close()


def split(folder: Path, **options: Any) -> LLM:
    return backend("SplitSpecDec")(str(folder), **{"edge": STREAM, "threads": 1, **options})


DRAFTS = {"method": "draft_model", "mode": "split"}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no edge": ({"edge": None}, "edge", "needs the mapping edge"),
    "a key of the edge": ({"edge": {"mode": "stream", "drafts": 1}}, "edge", "unknown key of edge 'drafts'"),
    "a mode": ({"edge": {"mode": "both"}}, "edge", "edge: unknown mode 'both'"),
    "no drafter": ({"edge": {"mode": "split"}}, "edge", "method is missing"),
    "no draft model": ({"edge": DRAFTS}, "edge", "edge: draft is missing: the folder of the draft model"),
    "a method": ({"edge": {"method": "medusa", "head": "x"}}, "edge", "needs what the target computes"),
    "a length": ({"edge": {"method": "prompt_lookup", "length": "goodput"}}, "edge", "auto or fixed:N"),
    "nothing to finish with": ({"edge": {"method": "prompt_lookup", "outage": "edge"}}, "edge", "only a draft model"),
    "a preset": ({"link": "lt"}, "link", "link: unknown preset 'lt'. Did you mean 'lte'?"),
    "a name that is not explained": ({"edge": "strem", "named": {"stream": STREAM}}, "edge", "Did you mean 'stream'?"),
    "a name for no mapping": ({"named": {"stream": "stream"}}, "named", "from names to mappings"),
    "a back end beside": ({"beside": {"backend": "vllm"}}, "beside", "unknown back end of our engine in beside"),
    "no head beside": ({"beside": {"backend": "EagleSpecDec"}}, "beside", "beside: head is missing"),
    "drafts of a verifier that runs": (
        {"verifier": "far:1", "beside": {"backend": "PromptLookup"}},
        "beside",
        "has its own drafting method",
    ),
    "a rule of length": ({"length": "foo"}, "length", "unknown speculation length"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_said_before_anything_is_started(what: str, folder: Path) -> None:
    options, key, message = REFUSED[what]
    with pytest.raises(UserError) as caught:
        split(folder, **options)
    assert (caught.value.key, message in str(caught.value)) == (key, True), caught.value


def test_a_name_is_what_it_stands_for(folder: Path) -> None:
    digests, beside = FileDigests(None), {"backend": "PromptLookup"}
    named = {"it streams": STREAM, "lookup": beside, "not asked for": {"method": "medusa"}}
    known = split(folder, edge="it streams", beside="lookup", named=named)
    assert known.identity(digests) == split(folder, edge=STREAM, beside=beside).identity(digests)


@pytest.mark.parametrize("file", ["cloud_stream", "split", "edge_alone"])
def test_the_shipped_grid_has_names_that_fit_into_a_table(file: str, folder: Path) -> None:
    shipped = EXAMPLE / "testalgorithms" / "split-decoding"
    named = yaml.safe_load((shipped / "cloud_settings.yaml").read_text())["named"]
    algorithm = yaml.safe_load((shipped / f"{file}.yaml").read_text())["algorithm"]
    (cloud,) = (one for one in algorithm["modules"] if one["type"] == "cloudmodel")
    given = {name: one["values"] for each in cloud["hyperparameters"] for name, one in each.items()}
    for edge in given["edge"]:
        for beside in given.get("beside", [None]):
            assert max(len(edge), len(beside or "")) <= len("autoregressive")
            split(folder, edge=edge, beside=beside, named=named)


def test_a_mapping_of_the_job_reaches_it_whole(folder: Path) -> None:
    settings = ModelSettings.parse({"model": str(folder), "backend": "SplitSpecDec", "edge": STREAM, "link": "lan"})
    digests = FileDigests(None)
    assert settings.llm("SplitSpecDec").identity(digests) == split(folder, link="lan", threads=None).identity(digests)


@pytest.mark.parametrize(
    ("sampling", "options", "message"),
    [
        (Sampling(logprobs=True), {}, "sends none"),
        (Sampling(temperature=0.5), {}, "acceptance: coupled"),
    ],
)
def test_what_a_verifier_cannot_sample(sampling: Sampling, options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        split(folder, **options).check(sampling)
    split(folder, acceptance="coupled").check(DRAWN)


def test_without_grpc_one_message_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "grpc" else found(name, *more))
    with pytest.raises(UserError, match=r"grpc is not installed: pip install 'grpcio>="):
        split(folder).check(GREEDY)


def test_answers_are_compared_with_the_plain_stream_over_the_same_link(folder: Path) -> None:
    digests = FileDigests(None)
    drafting = {"edge": {**DRAFTS, "draft": str(folder)}, "beside": {"backend": "PromptLookup"}, "length": "fixed:2"}
    baseline = split(folder, link="lte", **drafting).baseline_identity(digests)
    assert baseline == split(folder, link="lte").identity(digests)
    assert baseline == split(folder, link="lte", length="fixed:3", beside={"backend": "autoregressive"}).identity(
        digests
    )
    assert baseline != split(folder, link="lan").identity(digests)
    assert baseline != split(folder, link="lte", verifier="far:1").identity(digests)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"edge": {"method": "prompt_lookup", "length": 2}}, {"edge": {"method": "prompt_lookup", "length": 3}}),
        ({"link": {"delay": "1ms"}}, {"link": {"delay": "2ms"}}),
        ({}, {"beside": {"backend": "PromptLookup"}}),
        ({}, {"acceptance": "coupled"}),
    ],
)
def test_what_changes_times_or_answers_is_another_answer(one: dict, other: dict, folder: Path) -> None:
    assert split(folder, **one).identity(FileDigests(None)) != split(folder, **other).identity(FileDigests(None))


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_an_answer_over_a_link_is_the_models_own_and_tells_what_it_took(
    sampling: Sampling, folder: Path, verifier: Verifier
) -> None:
    edge = {**DRAFTS, "draft": str(folder), "length": "fixed:4", "in_flight": 1}
    far = split(folder, edge=edge, verifier=verifier.address, acceptance="coupled")
    with backend("autoregressive")(str(folder), threads=1, acceptance="coupled") as own:
        expected = own.generate(CHAT, sampling)
    pieces: list[str] = []
    with far:
        completion = far.generate(CHAT, sampling, lambda text, tokens: pieces.append(text))
        (link,) = far.processes
        with pytest.raises(RequestCancelledError):
            far.generate(CHAT, sampling, hints=Hints(cancelled=lambda: True))
        again = far.generate(CHAT, sampling)
    assert completion.token_ids == again.token_ids == expected.token_ids
    assert completion.text == "".join(pieces) == expected.text
    assert completion.finish_reason == expected.finish_reason
    with pytest.raises(ProcessLookupError):
        os.kill(link, 0)
    told, trace = completion.trace.split, completion.trace
    assert told is not None
    assert told.rounds == told.waits == len(trace.steps) >= 2
    assert (told.in_flight, told.streamed, told.breaks, told.alone) == (1, 0, 0, 0)
    assert min(told.prefill or 0, told.work or 0, told.drafting) > 0
    assert told.hits <= told.ahead
    # The draft of four tokens alone takes 15 bytes, and HTTP/2 adds its own.
    assert (trace.bytes_up or 0) > 20 * told.rounds
    assert msgspec.json.decode(msgspec.json.encode(trace), type=Trace) == trace


def test_a_verifier_with_another_model_is_refused(folder: Path, verifier: Verifier, tmp_path: Path) -> None:
    another = split(build_model(tmp_path / "other", seed=3), verifier=verifier.address)
    with pytest.raises(UserError, match="whose files are not those of") as caught:
        another.load()
    assert caught.value.key == "verifier"
    assert another.processes == ()


def test_a_server_that_ends_when_it_should_leaves_no_log() -> None:
    started = ServerProcess(["link", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"])
    assert started.log.exists()
    started.close()
    assert not started.log.exists()


def test_a_server_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "START_SECONDS", 0.01)
    with pytest.raises(UserError, match=r"specdec link was not ready after 0.01 s"):
        ServerProcess(["link", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"])


def test_a_server_ends_with_a_process_that_is_killed() -> None:
    start = "from ianvs_specdec.backends.child import ServerProcess; import time"
    link = "ServerProcess(['link', '--listen', '127.0.0.1:0', '--to', '127.0.0.1:1'])"
    owner = subprocess.Popen(
        [sys.executable, "-c", f"{start}\nstarted = {link}\nprint(started.pid, flush=True)\ntime.sleep(600)"],
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{server}/cmdline").exists()


def test_a_link_that_dies_in_an_answer_is_what_is_told(folder: Path, verifier: Verifier) -> None:
    edge = {**DRAFTS, "draft": str(folder), "patience": 0.1}
    with split(folder, edge=edge, verifier=verifier.address) as far:
        far.load()

        def kill(text: str, tokens: int) -> None:
            os.kill(far.processes[0], signal.SIGKILL)  # type: ignore[attr-defined]

        with pytest.raises(UserError, match=r"specdec link, which this job started, was killed by signal 9.*its log"):
            far.generate(CHAT, Sampling(max_tokens=400), kill)
