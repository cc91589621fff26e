"""Two jobs in the shape of upstream's examples: the same keys, class names, folders and imports; no model in them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROUTING = Path("examples") / "cloud-edge-collaborative-inference-for-llm"
DECODING = Path("examples") / "cloud-edge-speculative-decoding-for-llm"

_HEAD = "from sedna.common.class_factory import ClassType, ClassFactory\n"

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
        from dataclasses import dataclass

        @dataclass
        class JointInferenceResult:
            is_hard_example: bool
            result: dict
            edge_result: dict
            cloud_result: dict

            @classmethod
            def from_list(cls, *row):
                return cls(*row)
        """,
    "testenv/accuracy.py": _HEAD
    + textwrap.dedent("""
        from result_parser import JointInferenceResult

        @ClassFactory.register(ClassType.GENERAL, alias="Accuracy")
        def acc(y_true, y_pred):
            rows = [JointInferenceResult.from_list(*row) for row in y_pred]
            right = [row.result["prediction"] == gold for row, gold in zip(rows, y_true)]
            return round(100 * sum(right) / len(right), 2)
        """),
    "testenv/edge_ratio.py": _HEAD
    + textwrap.dedent("""
        from result_parser import JointInferenceResult

        @ClassFactory.register(ClassType.GENERAL, alias="Edge Ratio")
        def edge_ratio(_, y_pred):
            rows = [JointInferenceResult.from_list(*row) for row in y_pred]
            return round(100 * sum(not row.is_hard_example for row in rows) / len(rows), 2)
        """),
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
        from .api_llm import APIBasedLLM
        from .local_llm import HuggingfaceLLM, VllmLLM
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
    "testalgorithms/query-routing/models/api_llm.py": """
        from models.base_llm import BaseLLM

        class APIBasedLLM(BaseLLM):
            pass
        """,
    "testalgorithms/query-routing/models/local_llm.py": """
        from models.base_llm import BaseLLM

        class HuggingfaceLLM(BaseLLM):
            letter = "A"

        class VllmLLM(HuggingfaceLLM):
            pass
        """,
    "testalgorithms/query-routing/edge_model.py": "from __future__ import absolute_import, division\nimport os\n"
    + _HEAD
    + textwrap.dedent("""
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

            def cleanup(self):
                self.model = None
        """),
    "testalgorithms/query-routing/cloud_model.py": "import os\n"
    + _HEAD
    + textwrap.dedent("""
        from models import APIBasedLLM

        os.environ['BACKEND_TYPE'] = 'TORCH'

        @ClassFactory.register(ClassType.GENERAL, alias="CloudModel")
        class CloudModel:
            def __init__(self, **kwargs):
                self.model = APIBasedLLM(**kwargs)
                self.model._load(model=kwargs.get("model"))

            def inference(self, data, **kwargs):
                return self.model.inference(data)
        """),
    "testalgorithms/query-routing/data_processor.py": _HEAD
    + textwrap.dedent("""
        from sedna.datasources import BaseDataSource

        @ClassFactory.register(ClassType.GENERAL, alias="OracleRouterDatasetProcessor")
        class OracleRouterDatasetProcessor:
            def __init__(self, **kwargs):
                pass

            def __call__(self, dataset):
                dataset.x = [{"query": x, "gold": y} for x, y in zip(dataset.x, dataset.y)]
                return dataset
        """),
    "testalgorithms/query-routing/hard_sample_mining.py": "import abc\n"
    + _HEAD
    + textwrap.dedent("""
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

            def cleanup(self):
                pass
        """),
}

_PATHS = """
        import os
        import sys

        MODULE_DIR = os.path.dirname(os.path.abspath(__file__))
        SPECDEC_DIR = os.path.dirname(os.path.dirname(MODULE_DIR))
        for path in (MODULE_DIR, SPECDEC_DIR):
            if path not in sys.path:
                sys.path.insert(0, path)

        from sedna.common.class_factory import ClassFactory, ClassType
        """

DECODING_FILES: Mapping[str, str] = {
    "benchmarkingjob.yaml": f"""
        benchmarkingjob:
          name: "specdec"
          workspace: "./workspace-specdec"
          testenv: "./{DECODING}/testenv/testenv.yaml"
          test_object:
            type: "algorithms"
            algorithms:
              - name: "ar-specdec"
                url: "./{DECODING}/testalgorithms/ar/algorithm.yaml"
          rank:
            sort_by: [ "Rounds" ]
            visualization: {{ mode: "selected_only", method: "print_table" }}
            selected_dataitem:
              paradigms: [ "all" ]
              modules: [ "drafter", "verifier" ]
              hyperparameters: [ "drafter-inference_mode" ]
              metrics: [ "all" ]
            selected_output_columns: [ "drafter-inference_mode", "Rounds" ]
            save_mode: "selected_and_all"
        """,
    "testenv/testenv.yaml": f"""
        testenv:
          dataset:
            train_data: "./dataset/specdec/train.jsonl"
            test_data: "./dataset/specdec/test.jsonl"
          hard_example_mining_mode: "mining-free"
          metrics:
            - name: "Rounds"
              url: "./{DECODING}/testenv/rounds.py"
        """,
    "testenv/rounds.py": _HEAD
    + textwrap.dedent("""
        @ClassFactory.register(ClassType.GENERAL, alias="Rounds")
        def rounds(_, y_pred):
            return sum(row[1]["simulation"]["rounds"] for row in y_pred)
        """),
    "testalgorithms/ar/algorithm.yaml": f"""
        algorithm:
          paradigm_type: "jointinference"
          modules:
            - type: "drafter"
              name: "SpeculativeDraftModel"
              url: "./{DECODING}/testalgorithms/ar/drafter.py"
              hyperparameters:
                - model: {{ values: [ "Qwen/Qwen2.5-0.5B-Instruct" ] }}
                - inference_mode: {{ values: [ "collaboration", "cloud-only", "edge-only" ] }}
                - draft_tokens_per_step: {{ values: [ 4 ] }}
            - type: "verifier"
              name: "SpeculativeVerifyModel"
              url: "./{DECODING}/testalgorithms/ar/verifier.py"
              hyperparameters:
                - model: {{ values: [ "Qwen/Qwen2.5-7B-Instruct" ] }}
        """,
    "common/__init__.py": "",
    "common/session_store.py": """
        SESSIONS = {}

        def get_or_create(key, make):
            return SESSIONS.setdefault(key, make())

        def get(key):
            return SESSIONS.get(key)

        def pop(key, default=None):
            return SESSIONS.pop(key, default)
        """,
    "algorithms/__init__.py": "",
    "algorithms/ar/__init__.py": "",
    "algorithms/ar/core.py": """
        def answer_to(query):
            return query.upper()
        """,
    "testalgorithms/ar/base_drafter.py": """
        class BaseSpeculativeDrafter:
            def __init__(self, **kwargs):
                self.kwargs = dict(kwargs)
        """,
    "testalgorithms/ar/result_builder.py": """
        def build(text, rounds, mode):
            return {"completion": text, "simulation": {"rounds": rounds, "mode": mode}}
        """,
    "testalgorithms/ar/drafter.py": _PATHS
    + """
        from base_drafter import BaseSpeculativeDrafter
        from common.session_store import get as get_shared_session
        from common.session_store import get_or_create
        from common.session_store import pop as pop_shared_session
        from result_builder import build
        from algorithms.ar.core import answer_to

        os.environ["BACKEND_TYPE"] = "TORCH"

        @ClassFactory.register(ClassType.GENERAL, alias="SpeculativeDraftModel")
        class SpeculativeDraftModel(BaseSpeculativeDrafter):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                os.environ["model_path"] = kwargs["model"]
                self.inference_mode = kwargs.get("inference_mode", "collaboration")
                self.window = kwargs["draft_tokens_per_step"]

            def load(self, *args, **kwargs):
                self.loaded = True

            def cleanup(self):
                self.loaded = False

            def start_session(self, data=None, request=None, **kwargs):
                request = {"request_id": data, "query": data} if request is None else request
                shared = get_or_create(data, lambda: {"committed": "", "rounds": 0})
                return {"request_id": data, "request": request, "_shared_state": shared}

            def step(self, session, feedback=None, max_draft_tokens=None, **kwargs):
                done = len(session["_shared_state"]["committed"])
                return {"draft_ids": answer_to(session["request"]["query"])[done : done + self.window]}

            def close_session(self, session, request=None):
                assert session.pop("_pending_feedback")["verify_output"]["stop"]
                shared = get_shared_session(session["request_id"])
                pop_shared_session(session["request_id"], None)
                return build(shared["committed"], shared["rounds"], "collaboration")

            def inference(self, data=None, request=None, **kwargs):
                return build(answer_to(data), 1, "edge-only")
        """,
    "testalgorithms/ar/verifier.py": _PATHS
    + """
        from common.session_store import get as get_shared_session
        from result_builder import build
        from algorithms.ar.core import answer_to

        @ClassFactory.register(ClassType.GENERAL, alias="SpeculativeVerifyModel")
        class SpeculativeVerifyModel:
            def __init__(self, **kwargs):
                self.kwargs = kwargs

            def load(self, *args, **kwargs):
                self.loaded = True

            def start_session(self, data=None, draft_session=None, request=None, **kwargs):
                return {"request": draft_session["request"], "request_id": draft_session["request_id"]}

            def verify(self, session, draft_output=None, **kwargs):
                shared = get_shared_session(session["request_id"])
                shared["committed"] += draft_output["draft_ids"]
                shared["rounds"] += 1
                stop = shared["committed"] == answer_to(session["request"]["query"])
                feedback = {"draft_output": draft_output, "verify_output": {"stop": stop}}
                return {"stop": stop, "progress": bool(draft_output["draft_ids"]), "feedback": feedback}

            def close_session(self, session, request=None):
                return None

            def inference(self, data=None, request=None, **kwargs):
                return build(answer_to(data), 0, "cloud-only")
        """,
}


def write_routing_example(root: Path) -> str:
    """The cloud-edge LLM example with four questions, below ``root``; its job file."""
    _write(root / ROUTING, ROUTING_FILES)
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


def write_decoding_example(root: Path) -> str:
    """The speculative decoding example of 2026 with two questions of nine letters, below ``root``; its job file."""
    _write(root / DECODING, DECODING_FILES)
    data = root / "dataset" / "specdec"
    data.mkdir(parents=True)
    rows = [{"question": question, "answer": ""} for question in ("questions", "and wider")]
    for name in ("train.jsonl", "test.jsonl"):
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(DECODING / "benchmarkingjob.yaml")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
