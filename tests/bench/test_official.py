"""The measurement beside the published packages: its protocol with scripted drivers, its order, its reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from tests.support.few import few
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def bench_is_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


SCRIPTED = """
import sys
sys.path.insert(0, {folder!r})
from serve import serve

def load(options):
    print("noise on standard output")
    def decode(request):
        if request["prompt"] == [13]:
            raise ValueError("no luck with 13")
        print("more noise")
        output = [request["prompt"][-1] + i for i in range(request["max_new_tokens"] + 2)]
        return {{"output": output, "seconds": 0.5, "steps": 3, "emitted": [len(output) - 2, 1, 1], "prefills": 0}}
    return {{"scripted": "1.0", "transformers": "4"}}, decode

serve(load, with_torch={with_torch})
"""


@pytest.fixture
def scripted(tmp_path, request):
    """A driver that speaks the protocol without a model; its parameter says whether it imports torch."""
    from bench.official.process import Driver

    script = tmp_path / "scripted.py"
    script.write_text(
        SCRIPTED.format(folder=str(ROOT / "bench" / "official"), with_torch=getattr(request, "param", False))
    )
    command = [sys.executable, str(script), "--model", str(tmp_path)]
    with Driver("scripted", command, tmp_path / "scripted.log", threads=1) as driver:
        yield driver


@pytest.mark.parametrize("scripted", few([False, True], lambda torch: not torch), indirect=True, ids=str)
def test_a_driver_answers_and_its_prints_do_not_disturb(scripted, tmp_path):
    scripted.start()
    assert scripted.versions == {"scripted": "1.0", "transformers": "4"}
    answer = scripted.ask({"row": {}, "prompt": [5], "max_new_tokens": 2, "eos_ids": []})
    resident = answer.pop("resident")
    assert answer == {"output": [5, 6, 7, 8], "seconds": 0.5, "steps": 3, "emitted": [2, 1, 1], "prefills": 0}
    assert resident is None or 1e6 < resident < 4e9
    assert "noise on standard output" in (tmp_path / "scripted.log").read_text()


def test_a_driver_that_dies_is_one_line_with_what_it_wrote_last(scripted, tmp_path):
    scripted.start()
    with pytest.raises(UserError) as raised:
        scripted.ask({"row": {}, "prompt": [13], "max_new_tokens": 2, "eos_ids": []})
    message = str(raised.value)
    assert message.startswith("scripted ended with status 1: ")
    assert "ValueError: no luck with 13" in message
    assert "noise" not in message
    assert str(tmp_path / "scripted.log") in message
    assert "\n" not in message


def test_a_driver_that_never_starts_and_one_that_babbles_are_told(tmp_path):
    from bench.official.process import Driver

    def start(code):
        with Driver("broken", [sys.executable, "-c", code], tmp_path / "broken.log", threads=1) as driver:
            driver.start()

    with pytest.raises(UserError, match=r"broken ended with status 3: it wrote nothing \(its log: "):
        start("raise SystemExit(3)")
    with pytest.raises(UserError, match="broken: not an answer: b'hello"):
        start("print('hello')")


class Scripted:
    """Stands in for a driver; writes down what it was asked."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def ask(self, request):
        self.asked.append((request["row"]["which"], request["prompt"]))
        return {"output": [1, 2, 3], "seconds": 1.0, "steps": 2, "emitted": [1, 1], "prefills": 1}


def test_rows_take_turns_prompt_by_prompt_each_first_as_often_after_a_warm_up():
    from bench.official.measure import measure
    from bench.official.rows import Row

    asked: list[tuple[str, list[int]]] = []
    rows = [Row(name, driver, {"which": name}) for name, driver in (("A", "x"), ("B", "y"), ("C", "x"))]
    drivers = {name: Scripted(name, asked) for name in ("x", "y")}
    runs = measure(rows, drivers, [[1], [2], [3]], 2, 8, [])
    order = ["".join(which for which, _ in asked[i : i + 3]) for i in range(0, len(asked), 3)]
    assert order == ["ABC", "ABC", "BCA", "CAB", "ABC", "BCA", "CAB"]
    assert [prompt for _, prompt in asked[3::3]] == [[1], [2], [3]] * 2
    assert [[len(repeats) for repeats in runs[name]] for name in "ABC"] == [[2, 2, 2]] * 3


def test_every_package_row_has_its_baseline_and_ours_of_the_same_settings(tmp_path):
    from bench.official.rows import PACKAGES, REFERENCE, pairs, rows

    (tmp_path / "head").mkdir()
    chosen = rows(PACKAGES, tmp_path / "head")
    assert chosen[0].name == REFERENCE
    by_name = {row.name: row for row in chosen}
    ratios = pairs(chosen)
    for name in ("eagle-llm static", "eagle-llm chain of 7"):
        assert (name, "eagle-env generate") in ratios
        assert (name.replace("eagle-llm", "ours eagle"), name) in ratios
    for numbers in ("(5,7,7)", "(7,20,20)"):
        theirs, ours = by_name[f"lade {numbers}"], by_name[f"ours lookahead {numbers}"]
        assert theirs.settings.items() <= ours.settings.items()
        assert {(ours.name, theirs.name), (ours.name, REFERENCE), (theirs.name, "lade-env generate")} <= set(ratios)
    assert {row.driver for row in rows(["lade"], tmp_path / "nowhere")} == {"ours", "lade"}
    with pytest.raises(UserError, match="head"):
        rows(["eagle"], tmp_path / "nowhere")


def test_the_report_of_a_run_is_whole(tmp_path, capsys, monkeypatch):
    """With scripted drivers in place of the packages' environments and of ours."""
    from transformers import LlamaConfig

    from bench.official import __main__ as official

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaConfig(vocab_size=48, max_position_embeddings=256, eos_token_id=47, **shape).save_pretrained(tmp_path / "m")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": [3, 4 + i]}) + "\n" for i in range(3)))

    class Fake:
        def __init__(self, name, command, *rest):
            self.name, self.versions = name, {"transformers": f"of {name}"}
            assert rest[-1] == 1, "not as many threads as were asked for"
            if name == "ours":
                assert command[1].endswith("ours_driver.py")
                assert command[command.index("--threads") + 1] == "1"
            else:
                assert str(command) == str(python)
                assert json.loads((Path(rest[0]["model"]) / "config.json").read_text())["model_type"] == "llama"

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def start(self):
            return None

        def ask(self, request):
            output, steps = [request["prompt"][-1]] * 9, [2, 2, 2, 2, 1]
            seconds = 1.0 if self.name == "ours" else 2.0
            return {"output": output, "seconds": seconds, "steps": 5, "emitted": steps, "prefills": 0}

    monkeypatch.setattr(official, "Driver", Fake)
    monkeypatch.setattr(official, "Package", Fake)
    python = tmp_path / "out" / "venv-lade" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    arguments = ["--model", str(tmp_path / "m"), "--prompts", str(prompts), "--out", str(tmp_path / "out")]
    arguments += ["--packages", "lade", "--threads", "1", "--max-new-tokens", "9", "--repeats", "2"]
    assert official.main(arguments) == 2
    assert "`make bench-official` makes it" in capsys.readouterr().err
    python.parent.mkdir(parents=True)
    python.touch()
    assert official.main(arguments) == 0

    report = json.loads((tmp_path / "out" / "bench.json").read_text())
    names = [row["name"] for row in report["methods"]]
    assert names[:3] == ["ours autoregressive", "lade-env generate", "lade (5,7,7)"]
    for row in report["methods"]:
        assert (row["same_output"], row["tokens"], row["tau"]) == (1.0, 27, 9 / 5)
        assert row["tokens_per_second"]["value"] == (9.0 if row["name"].startswith("ours") else 4.5)
        (first, *_), *_ = report["runs"][row["name"]]
        assert (first["tokens"], first["emitted"]) == (9, [2, 2, 2, 2, 1])
    assert {ratio["value"] for ratio in report["ratios"]} <= {1.0, 2.0}
    assert report["versions"]["lade"] == {"transformers": "of lade"}
    assert "transformers of ours (ours), of lade (lade)" in capsys.readouterr().out


def test_importing_it_is_light():
    import subprocess

    code = "import sys; import bench.official.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
