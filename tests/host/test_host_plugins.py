"""Plugin files: private names, siblings, duplicate aliases, and a plugin set in the style of Ianvs's examples."""

from __future__ import annotations

import sys
import textwrap

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import Job


def model(alias: str, answer: str) -> str:
    return f"""
    from sedna.common.class_factory import ClassFactory, ClassType
    @ClassFactory.register(ClassType.GENERAL, alias="{alias}")
    class Model:
        def predict(self, data, **kwargs):
            return {answer}
    """


def test_two_folders_with_a_file_of_the_same_name_run_their_own(job: Job) -> None:
    for folder, letter in (("one", "A"), ("two", "B")):
        body = model("EdgeModel", "{'prediction': helper.letter()}")
        job.plugin(f"{folder}/model.py", "import helper\n" + textwrap.dedent(body))
        job.plugin(f"{folder}/helper.py", "def letter():\n    from lazy import LETTER\n    return LETTER\n")
        job.plugin(f"{folder}/lazy.py", f"LETTER = {letter!r}\n")
    job.modules[0]["url"] = "one/model.py"
    others = [dict(module) for module in job.modules]
    others[0]["url"] = "two/model.py"
    job.add_algorithm("second", others)
    assert job.run() == 0
    assert {row["algorithm"]: row["Accuracy"] for row in job.leaderboard()} == {"routing": "100.0", "second": "0.0"}
    assert "model" not in sys.modules
    assert "helper" not in sys.modules


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import importlib", 'importlib.import_module("helper")'),
        ("import importlib as il", 'il.import_module("helper")'),
        ("import importlib.util\nassert importlib.util.find_spec('json')", 'importlib.import_module("helper")'),
        ("from importlib import import_module", 'import_module("helper")'),
        ("from importlib import resources, import_module", 'import_module(name="helper")'),
        ("import importlib", 'importlib.import_module("parts.helper")'),
        ("", '__import__("helper")'),
    ],
)
def test_importlib_finds_siblings_of_its_own_folder(job: Job, imports: str, call: str) -> None:
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
    assert "helper" not in sys.modules


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


def test_a_siblings_name_wins_over_an_installed_packages_but_not_over_the_hosts(job: Job) -> None:
    job.plugin("algo/yaml.py", "OWN = True\n")
    job.plugin("algo/core.py", "raise ImportError('the host must be found')\n")
    job.plugin("algo/numpy/data.txt", "a folder without code is no package\n")
    job.plugin(
        "algo/edge_model.py",
        """
        import numpy, yaml
        from core.common.log import LOGGER
        from sedna.common.class_factory import ClassFactory, ClassType
        assert yaml.OWN and numpy.ones(1).sum() == 1
        @ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
        class EdgeModel:
            def predict(self, data):
                return {"prediction": "A"}
        """,
    )
    assert job.run() == 0


def test_a_duplicate_alias_names_both_places(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.plugin("algo/edge_model.py", model("EdgeModel", "1") + model("EdgeModel", "2"))
    assert job.run() == 2
    error = capfd.readouterr().err
    assert "'EdgeModel' is registered twice" in error
    assert "edge_model.py:3 and " in error
    assert "edge_model.py:9" in error


def test_the_same_alias_in_two_files_of_one_folder_is_told_apart_by_the_url(job: Job) -> None:
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


def test_nothing_is_written_beside_the_plugin_files(job: Job) -> None:
    assert job.run() == 0
    assert not list(job.folder.rglob("__pycache__"))


STYLE_OF_IANVS = {
    "algo/models/__init__.py": """
from .api_llm import APIBasedLLM
from .huggingface_llm import HuggingfaceLLM
""",
    "algo/models/base_llm.py": """
import os
from core.common.log import LOGGER

class BaseLLM:
    def __init__(self, **kwargs):
        self.config = kwargs
    def inference(self, data):
        gold, query = data.get("gold"), data.get("query")
        return {"completion": query, "prediction": self.predict(query, gold),
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                "perf": {"time_to_first_token": 0.1, "internal_token_latency": 0.1, "throughput": 10}}
    def save_cache(self):
        LOGGER.info("saved to %s", os.environ["RESULT_SAVED_URL"])
    def cleanup(self):
        pass
""",
    "algo/models/api_llm.py": """
from models.base_llm import BaseLLM
class APIBasedLLM(BaseLLM):
    def predict(self, query, gold):
        return gold
""",
    "algo/models/huggingface_llm.py": """
from models.base_llm import BaseLLM
class HuggingfaceLLM(BaseLLM):
    def predict(self, query, gold):
        return query[-1]
""",
    "algo/edge_model.py": """
from __future__ import absolute_import, division, print_function
import os
from core.common.log import LOGGER
from sedna.common.class_factory import ClassType, ClassFactory
from models import HuggingfaceLLM, APIBasedLLM
os.environ['BACKEND_TYPE'] = 'TORCH'
__all__ = ["BaseModel"]

@ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
class EdgeModel:
    def __init__(self, **kwargs):
        LOGGER.info(kwargs)
        self.kwargs = kwargs
        os.environ["model_path"] = kwargs.get("model", None)
    def load(self, **kwargs):
        self.model = HuggingfaceLLM(**self.kwargs)
    def predict(self, data, **kwargs):
        return self.model.inference(data)
    def cleanup(self):
        self.model.save_cache()
        self.model.cleanup()
""",
    "algo/cloud_model.py": """
from sedna.common.class_factory import ClassType, ClassFactory
from models import APIBasedLLM

@ClassFactory.register(ClassType.GENERAL, alias="CloudModel")
class CloudModel:
    def __init__(self, **kwargs):
        self.model = APIBasedLLM(**kwargs)
    def inference(self, data, **kwargs):
        return self.model.inference(data)
""",
    "algo/hard_sample_mining.py": """
import abc
from sedna.common.class_factory import ClassFactory, ClassType

class BaseFilter(metaclass=abc.ABCMeta):
    def __init__(self, **kwargs):
        pass
    def __call__(self, infer_result=None):
        raise NotImplementedError

@ClassFactory.register(ClassType.HEM, alias="OracleRouter")
class OracleRouterFilter(BaseFilter, abc.ABC):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.edge_model, self.cloud_model = kwargs.get("edgemodel"), kwargs.get("cloudmodel")
    def __call__(self, data=None):
        gold = data.get("gold", None)
        edge = self.edge_model.predict(data).get("prediction")
        cloud = self.cloud_model.inference(data).get("prediction")
        return edge != gold and cloud == gold
    def cleanup(self):
        pass
""",
    "algo/data_processor.py": """
from sedna.common.class_factory import ClassFactory, ClassType
from sedna.datasources import BaseDataSource

@ClassFactory.register(ClassType.GENERAL, alias="Processor")
class Processor:
    def __init__(self, **kwargs):
        pass
    def __call__(self, dataset: BaseDataSource) -> BaseDataSource:
        dataset.x = [{"query": x, "gold": y} for x, y in zip(dataset.x, dataset.y)]
        return dataset
""",
    "env/result_parser.py": """
from dataclasses import dataclass

@dataclass
class Row:
    is_hard_example: bool
    result: dict
    edge_result: dict
    cloud_result: dict
""",
    "env/metrics.py": """
from sedna.common.class_factory import ClassType, ClassFactory
from result_parser import Row
__all__ = ["acc"]

@ClassFactory.register(ClassType.GENERAL, alias="Accuracy")
def acc(y_true, y_pred):
    rows = [Row(*pred) for pred in y_pred]
    return round(100 * sum(row.result["prediction"] == y for row, y in zip(rows, y_true)) / len(rows), 2)

@ClassFactory.register(ClassType.GENERAL, alias="Edge Ratio")
def edge_ratio(_, y_pred):
    return round(100 * sum(not row[0] for row in y_pred) / len(y_pred), 2)
""",
}
"""Files of a plugin, by their paths."""


def test_a_plugin_set_in_the_style_of_ianvs(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """Several files, a package ``models`` beside them, constructors that take anything, absolute sibling imports."""
    for path, text in STYLE_OF_IANVS.items():
        job.plugin(path, text)
    job.modules[:] = [
        {"type": "dataset_processor", "name": "Processor", "url": "algo/data_processor.py"},
        {"type": "edgemodel", "name": "EdgeModel", "url": "algo/edge_model.py"},
        {"type": "cloudmodel", "name": "CloudModel", "url": "algo/cloud_model.py"},
        {"type": "hard_example_mining", "name": "OracleRouter", "url": "algo/hard_sample_mining.py"},
    ]
    job.hyperparameters(1, model=["org/name"], backend=["huggingface"])
    assert job.run() == 0
    (row,) = job.leaderboard()
    assert (row["Accuracy"], row["Edge Ratio"]) == ("100.0", "50.0")
    assert "saved to workspace/job/routing" in capfd.readouterr().err.replace("\\", "/")


def test_a_router_that_sedna_brings_along_needs_no_url(job: Job) -> None:
    job.modules[2] = {"type": "hard_example_mining", "name": "Random"}
    job.hyperparameters(2, random_ratio=[1.0])
    assert job.run() == 0
    assert job.leaderboard()[0]["Edge Ratio"] == "0.0"


def test_the_hook_for_hyperparameters_sees_every_combination(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    job.plugin(
        "algo/edge_model.py",
        """
        from sedna.common.class_factory import ClassFactory, ClassType
        class Unfit(Exception):
            key = "backend"
        @ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
        class EdgeModel:
            @classmethod
            def check_hyperparameters(cls, hyperparameters):
                if hyperparameters["backend"] == "huggingfcae":
                    raise Unfit("unknown back end 'huggingfcae'. Did you mean 'huggingface'?")
            def __init__(self, **kwargs):
                raise AssertionError("nothing may be built")
            def predict(self, data):
                pass
        """,
    )
    job.hyperparameters(0, tag=[1], backend=["huggingface", "huggingfcae"])
    assert main(["check", "-f", job.save()]) == 2
    line = job.line_of("algorithm.yaml", "- backend:")
    error = capfd.readouterr().err
    assert (
        f"algorithm.yaml:{line}: edgemodel EdgeModel: unknown back end 'huggingfcae'. Did you mean 'huggingface'?"
        in error
    )
