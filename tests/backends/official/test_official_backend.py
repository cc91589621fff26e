"""Back ends ``eagle-llm`` and ``lade`` with a stand-in for their worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.official import backend as official
from ianvs_specdec.backends.official.backend import PublishedLLM, steps_of
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Sampling, Step
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.identity import FileDigests
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"
HEAD = str(MODELS / "edge-eagle")
WORKER = official.WORKER
IDS = list(range(65, 77))
FOUND = {"eagle-llm": "1.2.1", "lade": "0.0.2", "transformers": "4.0", "torch": "2.0"}
OWN = {"eagle-llm": {"head": HEAD}, "lade": {}}
PYTHONS = {"eagle-llm": "eagle_python", "lade": "lade_python"}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PublishedLLM]]:
    """Creates back ends with the stand-in; ``behaviour``: what goes wrong."""
    made: list[PublishedLLM] = []

    def start(name: str = "eagle-llm", behaviour: str = "", **options: Any) -> PublishedLLM:
        monkeypatch.setenv("STAND_IN_BEHAVIOUR", behaviour)
        chosen = {PYTHONS[name]: sys.executable, **OWN[name], **options}
        llm = backend(name)(str(MODELS / "edge"), **chosen)
        assert isinstance(llm, PublishedLLM)
        made.append(llm)
        return llm

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(official, "WORKER", Path(__file__).with_name("package_stand_in.py"))
    for key, value in {
        "STAND_IN_WORKER": str(WORKER),
        "STAND_IN_IDS": " ".join(map(str, IDS)),
        "STAND_IN_PROBE": json.dumps(FOUND),
        "TMPDIR": str(tmp_path / "tmp"),
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    yield start
    for llm in made:
        llm.close()


def ask(llm: PublishedLLM, **sampling: Any) -> Any:
    return llm.generate([{"role": "user", "content": "hello"}], Sampling(**{"max_tokens": len(IDS), **sampling}))


def asked(llm: PublishedLLM) -> dict[str, Any]:
    """The last request to the worker."""
    assert llm._worker is not None
    line = [line for line in llm._worker.log.read_text().splitlines() if line.startswith("asked ")][-1]
    return dict(json.loads(line.removeprefix("asked ")))


@pytest.mark.parametrize("name", OWN)
def test_an_answer_has_ids_times_and_steps(name: str, stand_in: Callable[..., PublishedLLM], tmp_path: Path) -> None:
    llm = stand_in(name, threads=1)
    answer = ask(llm, max_tokens=11)
    assert answer.token_ids == IDS[:11]
    assert (answer.finish_reason, answer.completion_tokens) == ("length", 11)
    assert [tokens for _, tokens in answer.trace.chunks] == [1, 3, 1, 4, 1, 1]
    assert answer.trace.steps == [Step(5, 2, 3, 6), Step(5, 0, 1, 6), Step(5, 3, 4, 6), *[Step(5, 0, 1, 6)] * 2]
    assert 0 < answer.trace.chunks[0][0] < answer.trace.chunks[-1][0]
    assert llm.memory() == 77
    assert llm.hardware()["threads"] == 1
    llm.close()
    assert llm.memory() is None
    assert list((tmp_path / "tmp").iterdir()) == [], "files of a worker that was closed are left behind"


def test_the_worker_gets_converted_folders_and_settings(
    stand_in: Callable[..., PublishedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(MODELS)
    llm = stand_in(head="edge-eagle", tree="chain", depth=3, dtype="float32", threads=2)
    ask(llm)
    assert llm._worker is not None
    ready = llm._worker.ready
    assert (ready["engine"]["dtype"], ready["engine"]["threads"]) == ("float32", 2)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(ready["files"]["model"])
    assert ready["files"]["head"] == ["config.json", "pytorch_model.bin"]
    assert asked(llm)["settings"] == {"tree": "chain", "depth": 3}
    assert asked(llm)["stop_token_ids"]
    lade = stand_in("lade", level=4, guess=2)
    ask(lade)
    assert asked(lade)["settings"] == {"level": 4, "window": 7, "guess": 2}


def test_tokens_after_the_end_are_removed(
    stand_in: Callable[..., PublishedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = stand_in()
    cut = ask(llm, max_tokens=3)
    assert (cut.token_ids, cut.finish_reason, cut.trace.steps) == (IDS[:3], "length", [Step(5, 2, 2, 6)])
    ends = llm._eos_ids
    llm.close()
    monkeypatch.setenv("STAND_IN_IDS", f"65 66 67 68 69 70 {ends[0]} 71 72")
    ended = ask(stand_in())
    assert (ended.token_ids, ended.finish_reason) == ([*IDS[:6], ends[0]], "stop")
    assert [tokens for _, tokens in ended.trace.chunks] == [1, 3, 1, 2]
    assert ended.trace.steps == [Step(5, 2, 3, 6), Step(5, 0, 1, 6), Step(5, 3, 2, 6)]


def test_the_window_has_room_for_a_tree(stand_in: Callable[..., PublishedLLM]) -> None:
    windows = {}
    for name, options in (("lade", {}), ("eagle-llm", {}), ("eagle-llm", {"tree": "chain", "depth": 9})):
        llm = stand_in(name, **options)
        llm.load()
        assert llm._chat is not None
        windows[name, bool(options)] = llm._chat.window
    stated = json.loads((MODELS / "edge" / "config.json").read_text())["max_position_embeddings"]
    assert windows == {
        ("lade", False): stated,
        ("eagle-llm", False): min(stated - 26, 1960),
        ("eagle-llm", True): min(stated - 10, 1960),
    }


def test_an_early_end_is_an_error(stand_in: Callable[..., PublishedLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnswerError, match="ended by itself after 12 of at most 500 tokens"):
        ask(stand_in(), max_tokens=500)


def test_errors_of_the_package_are_one_line(stand_in: Callable[..., PublishedLLM], tmp_path: Path) -> None:
    llm = stand_in(behaviour="fail")
    with pytest.raises(AnswerError, match=r"eagle-llm did not answer the request: no luck with this one$"):
        ask(llm)
    assert ask(llm, max_tokens=8).token_ids == IDS[:8], "no answers after a failed request"
    with pytest.raises(UserError, match="the lade process was killed by signal 9") as error:
        ask(stand_in("lade", "die"))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"lade cannot load the model: weights are missing: model\.norm\.weight"):
        stand_in("lade", "no").load()
    left = [path.suffix for path in (tmp_path / "tmp").iterdir()]
    assert set(left) <= {".log"}, "the folders made for a package that cannot load are left behind"


@pytest.mark.parametrize("name", OWN)
def test_unsupported_sampling_is_rejected_before_loading(
    name: str, stand_in: Callable[..., PublishedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PublishedLLM, "load", lambda self: pytest.fail("the model was loaded"))
    llm = stand_in(name)
    llm.check(Sampling())
    cases = {"temperature": 0.7, "repetition_penalty": 1.1, "logprobs": True}
    for key, value in (cases | ({"max_tokens": 1025} if name == "eagle-llm" else {})).items():
        for refuse in (lambda **sampling: llm.check(Sampling(**sampling)), lambda **sampling: ask(llm, **sampling)):
            with pytest.raises(UserError, match=name) as error:
                refuse(**{key: value})
            assert error.value.key == key


@pytest.mark.parametrize(
    ("name", "options", "key", "message"),
    [
        ("eagle-llm", {"head": None}, "head", "head is missing: the folder of an EAGLE-1"),
        ("eagle-llm", {"tree": "dynamic"}, "tree", "Known: chain, static"),
        ("eagle-llm", {"depth": 0}, "depth", "whole number from 1"),
        ("lade", {"level": 2}, "level", "whole number from 3"),
        ("lade", {"device": "cuda"}, "device", "unknown device 'cuda'"),
    ],
)
def test_invalid_options_are_rejected_with_their_key(
    name: str, options: dict[str, Any], key: str, message: str, stand_in: Callable[..., PublishedLLM]
) -> None:
    with pytest.raises(UserError, match=message) as error:
        stand_in(name, **options)
    assert error.value.key == key


def parse(name: str, **options: Any) -> ModelSettings:
    """As ``ianvs check`` does."""
    chosen = {PYTHONS[name]: sys.executable, **OWN[name], **options}
    return ModelSettings.parse({"backend": name, "model": str(MODELS / "edge"), **chosen})


@pytest.mark.parametrize("name", OWN)
def test_check_finds_unusable_environments(
    name: str, stand_in: Callable[..., PublishedLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = PYTHONS[name]
    parse(name)
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    message = rf"cannot run .*text \({key}\), the Python of the environment with {name}"
    with pytest.raises(UserError, match=message) as error:
        parse(name, **{key: str(tmp_path / "text")})
    assert error.value.key == key
    assert "\n" not in str(error.value)
    for lacking in (name, "torch"):
        monkeypatch.setenv("STAND_IN_PROBE", json.dumps({**FOUND, lacking: None}))
        with pytest.raises(UserError, match=f"there is no {lacking} in the environment of .*: install {lacking}"):
            parse(name)


def test_missing_packages_are_reported_by_the_real_worker() -> None:
    """With the real worker."""
    for name in OWN:
        with pytest.raises(UserError, match=f"there is no {name} in the environment of .* under {PYTHONS[name]}"):
            backend(name)(str(MODELS / "edge"), **OWN[name]).check(Sampling())


def test_check_finds_unsupported_models_and_heads(stand_in: Callable[..., PublishedLLM], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="head of EAGLE-3") as error:
        parse("eagle-llm", head=str(MODELS / "cloud-eagle3"))
    assert error.value.key == "head"
    with pytest.raises(UserError, match=r"no tensor fc\.weight"):
        parse("eagle-llm", head=str(MODELS / "edge"))
    with pytest.raises(UserError, match="there is no model folder"):
        parse("eagle-llm", head=str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(UserError, match="run Llama only, this is 'qwen2'") as error:
        parse("lade", model=str(tmp_path))
    assert error.value.key == "model"


def test_identity_has_all_that_answers_depend_on(stand_in: Callable[..., PublishedLLM], tmp_path: Path) -> None:
    digests = FileDigests(tmp_path / "digests.json")
    common = {"dtype": "float32", "threads": 1}
    eagle = stand_in(**common)
    assert eagle.identity(digests)["versions"] == FOUND
    assert str(MODELS) not in str(eagle.identity(digests))
    ours = engine_backend("autoregressive")(str(MODELS / "edge"), **common).identity(digests)
    others = [stand_in(**{**common, **change}) for change in ({"tree": "chain"}, {"dtype": "bfloat16"}, {"threads": 2})]
    others += [stand_in(**common, tree="chain", depth=9), stand_in(**common, head=str(MODELS / "cloud-eagle"))]
    others += [stand_in("lade", **common), stand_in("lade", **common, level=6), stand_in("lade", **common, guess=1)]
    seen = [str(llm.identity(digests)) for llm in (eagle, *others)]
    assert len(set(seen)) == len(seen)
    assert eagle.baseline_identity(digests) == stand_in("lade", **common).baseline_identity(digests) == ours


@pytest.mark.parametrize(
    ("kept", "prefills", "told", "steps"),
    [
        # eagle-llm: the first token comes with the first step, the last step's own token never.
        ([3, 2], 1, [[25, 2, 26], [25, 1, 26]], [Step(25, 2, 3, 26), Step(25, 1, 1, 26)]),
        # lade: the forward over the prompt is a step.
        ([1, 3, 1], 0, [[0, 0, 10], [4, 2, 12], [0, 0, 8]], [Step(0, 0, 1, 10), Step(4, 2, 3, 12), Step(0, 0, 1, 8)]),
        # A step all of whose tokens came after the end decided nothing of the output.
        ([3, 1, 0], 1, [[5, 2, 6], [5, 0, 6], [5, 3, 6]], [Step(5, 2, 3, 6)]),
        ([1], 1, [], []),
    ],
)
def test_steps_exclude_prefills_and_tokens_after_the_end(
    kept: list[int], prefills: int, told: list[list[int]], steps: list[Step]
) -> None:
    assert steps_of(kept, kept, {"prefills": prefills, "steps": told}) == steps
    assert sum(step.emitted for step in steps) == max(0, sum(kept) - prefills)
