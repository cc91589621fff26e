"""Plugin files: private names, siblings, duplicate aliases."""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.host.host_job import Job


def model(alias: str, answer: str) -> str:
    return f"""
    from sedna.common.class_factory import ClassFactory, ClassType
    @ClassFactory.register(ClassType.GENERAL, alias="{alias}")
    class Model:
        def predict(self, data, **kwargs):
            return {answer}
    """


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import helper", "helper"),
        ("import importlib.util\nassert importlib.util.find_spec('json')", 'importlib.import_module("helper")'),
        ("from importlib import resources, import_module", 'import_module(name="parts.helper")'),
        ("", '__import__("helper")'),
    ],
)
def test_two_folders_with_equal_file_names_use_their_own_files(job: Job, imports: str, call: str) -> None:
    for folder, letter in (("one", "A"), ("two", "B")):
        body = model("EdgeModel", f"{{'prediction': {call}.LETTER}}")
        job.plugin(f"{folder}/model.py", f"{imports}\nEARLY = {call}.LETTER\n" + textwrap.dedent(body))
        job.plugin(f"{folder}/helper.py", f"LETTER = {letter!r}\n")
        job.plugin(f"{folder}/parts/__init__.py", "")
        job.plugin(f"{folder}/parts/helper.py", f"LETTER = {letter!r}\n")
    job.modules[0]["url"] = "one/model.py"
    others = [dict(module) for module in job.modules]
    others[0]["url"] = "two/model.py"
    job.add_algorithm("second", others)
    assert job.run() == 0
    assert {row["algorithm"]: row["Accuracy"] for row in job.leaderboard()} == {"routing": "100.0", "second": "0.0"}
    assert not {"model", "helper"} & sys.modules.keys()


def test_importlib_still_imports_what_is_installed(job: Job) -> None:
    job.plugin(
        "algo/answers.py",
        """
        import importlib
        import importlib.metadata
        from importlib.util import find_spec
        assert importlib.import_module("json.decoder").JSONDecoder
        assert importlib.import_module(".decoder", package="json") is importlib.import_module("json.decoder")
        assert importlib.metadata.version("numpy") and find_spec("numpy")
        assert importlib.reload(importlib.import_module("this_one")).VALUE == 1
        def answer(who, data):
            return {"prediction": "A", "completion": ""}
        """,
    )
    job.plugin("algo/this_one.py", "VALUE = 1\n")
    assert job.run() == 0


def test_a_sibling_hides_installed_packages_but_not_the_host(job: Job) -> None:
    job.plugin("algo/yaml.py", "OWN = True\n")
    job.plugin("algo/core.py", "raise ImportError('the host must be found')\n")
    job.plugin("algo/numpy/data.txt", "a folder without code is no package\n")
    body = """
    import numpy, yaml
    from core.common.log import LOGGER
    assert yaml.OWN and numpy.ones(1).sum() == 1
    def predict(self, data):
        return {"prediction": "A"}
    """
    job.define("algo/edge_model.py", "EdgeModel", body)
    assert job.run() == 0


def test_a_duplicate_alias_names_both_places(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.plugin("algo/edge_model.py", model("EdgeModel", "1") + model("EdgeModel", "2"))
    assert job.run() == 2
    expected = "'EdgeModel' is registered twice: at algo/edge_model.py:3 and algo/edge_model.py:9"
    assert expected in capfd.readouterr().err


def test_the_url_decides_between_equal_aliases_in_a_folder(job: Job) -> None:
    job.plugin("algo/other.py", model("EdgeModel", "{'prediction': 'A'}"))
    others = [dict(module) for module in job.modules]
    others[0]["url"] = "algo/other.py"
    job.add_algorithm("second", others)
    assert job.run() == 0
    assert {row["algorithm"]: row["Accuracy"] for row in job.leaderboard()} == {"routing": "50.0", "second": "100.0"}


def test_a_class_registered_by_an_imported_sibling(job: Job) -> None:
    job.plugin("algo/impl/__init__.py", "")
    job.plugin("algo/impl/base.py", "class Base:\n    letter = 'A'\n")
    body = model("EdgeModel", "{'prediction': self.letter}").replace("class Model:", "class Model(Base):")
    job.plugin("algo/impl/edge.py", "from impl.base import Base\n" + textwrap.dedent(body))
    job.plugin("algo/edge_model.py", "import impl.edge\nfrom impl import base\n")
    assert job.run() == 0
    assert job.leaderboard()[0]["Accuracy"] == "100.0"


def test_no_byte_code_is_written_next_to_plugins(job: Job) -> None:
    assert job.run() == 0
    assert not list(job.folder.rglob("__pycache__"))


def test_routers_of_sedna_need_no_url(job: Job) -> None:
    job.modules[2] = {"type": "hard_example_mining", "name": "Random"}
    job.hyperparameters(2, random_ratio=[1.0])
    assert job.run() == 0
    assert job.leaderboard()[0]["Edge Ratio"] == "0.0"
