"""The part of Sedna that plugin files use."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

from sedna.algorithms.hard_example_mining import CrossEntropyFilter, IBTFilter, RandomFilter, ThresholdFilter
from sedna.common.class_factory import ClassFactory, ClassType
from sedna.common.config import BaseConfig, Context
from sedna.core.joint_inference import JointInference
from sedna.datasources import BaseDataSource


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'transformers', 'openai', 'pandas', 'ianvs_specdec'}"
    code = f"import sys, core.cmd.job; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_help_imports_the_standard_library_alone() -> None:
    code = (
        "import atexit, sys; known = set(sys.modules); sys.argv[0] = 'ianvs'\n"
        "from core.cmd.start import main\n"
        "ours = sys.stdlib_module_names | {'core', 'sedna'}\n"
        "new = lambda: {name.partition('.')[0] for name in sys.modules} - known - ours\n"
        "atexit.register(lambda: print('imported:', sorted(new())))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_a_missing_package_is_reported_before_the_run() -> None:
    code = "import sys; sys.modules['tabulate'] = None; from core.cmd.start import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "-f", "job.yaml"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "ianvs: the package tabulate is not installed: pip install -r requirements.txt\n"


def test_registering_and_looking_up() -> None:
    @ClassFactory.register(ClassType.CALLBACK)
    class ByItsName:
        pass

    def function() -> None:
        pass

    assert ClassFactory.register_cls(function, ClassType.CALLBACK, alias="An Alias") is function
    assert ClassFactory.get_cls(ClassType.CALLBACK, "ByItsName") is ByItsName
    assert ClassFactory.get_cls(ClassType.CALLBACK, "An Alias") is function
    assert ClassFactory.is_exists(ClassType.CALLBACK, "ByItsName")
    ClassFactory.register_from_package(types.SimpleNamespace(Public=ByItsName, _Hidden=ByItsName, n=3), ClassType.MTL)
    assert ClassFactory.is_exists(ClassType.MTL, "ByItsName")
    assert not ClassFactory.is_exists(ClassType.CALLBACK, "Another")
    assert not ClassFactory.is_exists("no type")
    with pytest.raises(ValueError, match="no class is registered as 'Another'"):
        ClassFactory.get_cls(ClassType.CALLBACK, "Another")


def test_routers_of_sedna() -> None:
    sure, unsure = [[0, 0, 1, 1, 0.9, 1]], [[0, 0, 1, 1, 0.2, 1]]
    assert (ThresholdFilter(0.5)(unsure), ThresholdFilter(0.5)(sure), ThresholdFilter()(None)) == (True, False, False)
    assert (IBTFilter()(unsure), IBTFilter()(sure), IBTFilter()([[1]])) == (True, False, False)
    assert [CrossEntropyFilter()(p) for p in ([0.5, 0.5], [1.0, 0.0], [2])] == [True, False, False]
    assert [RandomFilter(seed=1)() for _ in range(3)] == [RandomFilter(seed=1)() for _ in range(3)]
    assert (RandomFilter(0)(), RandomFilter(1)()) == (False, True)


class Edge:
    def __init__(self) -> None:
        self.loaded_with: dict[str, Any] | None = None

    def load(self, **kwargs: Any) -> None:
        self.loaded_with = kwargs

    def predict(self, data: Any) -> list[Any]:
        return [data]


class Cloud:
    def inference(self, data: Any, post_process: Any = None, **kwargs: Any) -> Any:
        return post_process([data, kwargs]) if post_process else [data, kwargs]


def test_joint_inference_of_sedna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND_TYPE", "something else")
    monkeypatch.setenv("MODEL_PATH", "org/name")
    router = {"method": "Threshold", "param": {"threshold": 0.5}}
    job = JointInference(estimator=Edge, cloud=Cloud(), hard_example_mining=router, LCReporter_enable=False)
    assert job.estimator.loaded_with == {"model_url": "org/name"}
    box = [0, 0, 0, 0, 0.1]
    assert job.inference(box) == [True, [box, {}], [box], [box, {}]]
    easy = [0, 0, 0, 0, 0.9]
    assert job.inference([easy], post_process=lambda result: result[0]) == [False, [easy], [[easy]], None]
    hard, result, edge, cloud = job.inference([box], mining_mode="mining-then-inference")
    assert (hard, edge) == (True, None)
    assert result == cloud == [[box], {"mining_mode": "mining-then-inference"}]
    assert result is not cloud
    with pytest.raises(ValueError, match="mining_mode must be one of"):
        job.inference(box, mining_mode="mining")


def test_the_torch_back_end_loads_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND_TYPE", "torch")
    job = JointInference(estimator=Edge(), cloud=Cloud())
    assert job.estimator.loaded_with == {}
    with pytest.raises(ValueError, match="needs a router"):
        job.inference(1)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWER", "42")
    assert (Context.get_parameters("answer"), Context.get_parameters("nothing", "default")) == ("42", "default")
    assert BaseConfig.get("log_level") == "INFO"
    assert Context.get_algorithm_from_api("HEM") == {}
    monkeypatch.setenv("HEM_NAME", "IBT")
    monkeypatch.setenv("HEM_PARAMETERS", '[{"key": "threshold_img", "value": 0.5}]')
    expected = {"method": "IBT", "param": {"threshold_img": 0.5, "x": 1}}
    assert Context.get_algorithm_from_api("HEM", x=1) == expected
    monkeypatch.setenv("HEM_PARAMETERS", "not json")
    with pytest.raises(ValueError, match="HEM_PARAMETERS is not JSON"):
        Context.get_algorithm_from_api("HEM")


def test_a_custom_data_source() -> None:
    source = BaseDataSource("test", func=len)
    source.x = [1, 2]
    assert (len(source), source.num_examples(), source.is_test_data, source.process_func) == (2, 2, True, len)
    with pytest.raises(NotImplementedError):
        source.parse()
