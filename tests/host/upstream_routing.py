"""A job in the shape of upstream's cloud-edge LLM example: same keys, class names, folders and imports; no model."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROUTING = Path("examples") / "cloud-edge-collaborative-inference-for-llm"
HEAD = "from sedna.common.class_factory import ClassType, ClassFactory\n"

ROUTING_FILES: Mapping[str, str] = {
    "benchmarkingjob.yaml": f"""
        benchmarkingjob:
          name: "benchmarkingjob"
          workspace: "./workspace-gpqa"
          hard_example_mining_mode: "mining-then-inference"
          testenv: "./{ROUTING}/testenv/testenv.yaml"
          test_object:
            type: "algorithms"
            algorithms:
              - name: "query-routing"
                url: "./{ROUTING}/testalgorithms/query-routing/test_queryrouting.yaml"
          rank:
            sort_by: [ {{ "Accuracy": "descend" }} ]
            visualization: {{ mode: "selected_only", method: "print_table" }}
            selected_dataitem:
              paradigms: [ "all" ]
              modules: [ "hard_example_mining" ]
              hyperparameters: [ "edgemodel-model", "edgemodel-backend", "cloudmodel-model" ]
              metrics: [ "Accuracy", "Edge Ratio" ]
            save_mode: "selected_and_all"
        """,
    "testenv/testenv.yaml": f"""
        testenv:
          dataset:
            train_data: "./dataset/gpqa/train_data/data.json"
            test_data_info: "./dataset/gpqa/test_data/metadata.json"
          metrics:
            - name: "Accuracy"
              url: "./{ROUTING}/testenv/accuracy.py"
            - name: "Edge Ratio"
              url: "./{ROUTING}/testenv/edge_ratio.py"
        """,
    "testenv/result_parser.py": """
        from collections import namedtuple

        JointInferenceResult = namedtuple("JointInferenceResult", "is_hard_example result edge_result cloud_result")
        """,
    "testenv/accuracy.py": """
        from result_parser import JointInferenceResult

        @ClassFactory.register(ClassType.GENERAL, alias="Accuracy")
        def acc(y_true, y_pred):
            rows = [JointInferenceResult(*row) for row in y_pred]
            right = [row.result["prediction"] == gold for row, gold in zip(rows, y_true)]
            return round(100 * sum(right) / len(right), 2)
        """,
    "testenv/edge_ratio.py": """
        from result_parser import JointInferenceResult

        @ClassFactory.register(ClassType.GENERAL, alias="Edge Ratio")
        def edge_ratio(_, y_pred):
            rows = [JointInferenceResult(*row) for row in y_pred]
            return round(100 * sum(not row.is_hard_example for row in rows) / len(rows), 2)
        """,
    "testalgorithms/query-routing/test_queryrouting.yaml": f"""
        algorithm:
          paradigm_type: "jointinference"
          modules:
            - type: "dataset_processor"
              name: "OracleRouterDatasetProcessor"
              url: "./{ROUTING}/testalgorithms/query-routing/data_processor.py"
            - type: "edgemodel"
              name: "EdgeModel"
              url: "./{ROUTING}/testalgorithms/query-routing/edge_model.py"
              hyperparameters:
                - model: {{ values: [ "Qwen/Qwen2.5-7B-Instruct" ] }}
                - backend: {{ values: [ "huggingface", "vllm" ] }}
                - temperature: {{ values: [ 0.0000001 ] }}
            - type: "cloudmodel"
              name: "CloudModel"
              url: "./{ROUTING}/testalgorithms/query-routing/cloud_model.py"
              hyperparameters:
                - model: {{ values: [ "gpt-4o-mini" ] }}
                - api_key_env: {{ values: [ "OPENAI_API_KEY" ] }}
            - type: "hard_example_mining"
              name: "OracleRouter"
              url: "./{ROUTING}/testalgorithms/query-routing/hard_sample_mining.py"
        """,
    "testalgorithms/query-routing/models/__init__.py": """
        from .local_llm import HuggingfaceLLM, VllmLLM
        from .base_llm import BaseLLM as APIBasedLLM
        """,
    "testalgorithms/query-routing/models/base_llm.py": """
        class BaseLLM:
            letter = ""

            def __init__(self, **kwargs):
                self.config = kwargs

            def _load(self, model):
                self.model = model

            def inference(self, data):
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                perf = {"time_to_first_token": 0.1, "internal_token_latency": 0.1, "throughput": 10.0}
                answer = self.letter or data["query"][-1]
                return {"completion": answer, "prediction": answer, "usage": usage, "perf": perf}
        """,
    "testalgorithms/query-routing/models/local_llm.py": """
        from models.base_llm import BaseLLM

        class HuggingfaceLLM(BaseLLM):
            letter = "A"

        VllmLLM = HuggingfaceLLM
        """,
    "testalgorithms/query-routing/edge_model.py": """
        import os
        from core.common.log import LOGGER
        from models import HuggingfaceLLM, APIBasedLLM, VllmLLM

        os.environ['BACKEND_TYPE'] = 'TORCH'

        @ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")
        class EdgeModel:
            def __init__(self, **kwargs):
                LOGGER.info("edge: %s", kwargs)
                self.kwargs, self.backend = kwargs, kwargs.get("backend")
                os.environ["model_path"] = kwargs["model"]

            def load(self, **kwargs):
                self.model = {"huggingface": HuggingfaceLLM, "vllm": VllmLLM}[self.backend](**self.kwargs)

            def predict(self, data, **kwargs):
                return self.model.inference(data)
        """,
    "testalgorithms/query-routing/cloud_model.py": """
        import os
        from models import APIBasedLLM

        os.environ['BACKEND_TYPE'] = 'TORCH'

        @ClassFactory.register(ClassType.GENERAL, alias="CloudModel")
        class CloudModel:
            def __init__(self, **kwargs):
                self.model = APIBasedLLM(**kwargs)
                self.model._load(model=kwargs.get("model"))

            def inference(self, data, **kwargs):
                return self.model.inference(data)
        """,
    "testalgorithms/query-routing/data_processor.py": """
        from sedna.datasources import BaseDataSource

        @ClassFactory.register(ClassType.GENERAL, alias="OracleRouterDatasetProcessor")
        class OracleRouterDatasetProcessor:
            def __call__(self, dataset):
                dataset.x = [{"query": x, "gold": y} for x, y in zip(dataset.x, dataset.y)]
                return dataset
        """,
    "testalgorithms/query-routing/hard_sample_mining.py": """
        import abc

        class BaseFilter(metaclass=abc.ABCMeta):
            def __init__(self, **kwargs):
                pass

        @ClassFactory.register(ClassType.HEM, alias="OracleRouter")
        class OracleRouterFilter(BaseFilter, abc.ABC):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.edge_model, self.cloud_model = kwargs.get("edgemodel"), kwargs.get("cloudmodel")
                if not self.edge_model or not self.cloud_model:
                    raise ValueError("both models are needed")

            def __call__(self, data=None):
                edge, cloud = self.edge_model.predict(data), self.cloud_model.inference(data)
                return edge["prediction"] != data["gold"] and cloud["prediction"] == data["gold"]
        """,
}


def write_routing_example(root: Path) -> str:
    """The cloud-edge LLM example with four questions, below ``root``; its job file."""
    write_files(root / ROUTING, ROUTING_FILES)
    data = root / "dataset" / "gpqa"
    for name in ("train_data", "test_data"):
        (data / name).mkdir(parents=True)
    (data / "train_data" / "data.json").write_text("[]")
    described = {"dataset": "GPQA", "description": "", "level_1_dim": "single-modal", "level_2_dim": "text"}
    (data / "test_data" / "metadata.json").write_text(json.dumps(described))
    rows = [
        {"query": f"Which? {last}", "response": gold, "explanation": "", "level_3_dim": "a", "level_4_dim": "b"}
        for last, gold in zip("ABBC", "ABAD", strict=True)
    ]
    (data / "test_data" / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(ROUTING / "benchmarkingjob.yaml")


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = HEAD if "@ClassFactory" in text else ""
        path.write_text(head + textwrap.dedent(text), encoding="utf-8")
