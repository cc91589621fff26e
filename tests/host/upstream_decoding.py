"""A job in the shape of upstream's speculative decoding example of 2026, with a drafter and a verifier; no model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.host.upstream_routing import write_files

DECODING = Path("examples") / "cloud-edge-speculative-decoding-for-llm"

_PATHS = """
        import os
        import sys

        MODULE_DIR = os.path.dirname(os.path.abspath(__file__))
        SPECDEC_DIR = os.path.dirname(os.path.dirname(MODULE_DIR))
        for path in (MODULE_DIR, SPECDEC_DIR):
            if path not in sys.path:
                sys.path.insert(0, path)
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
    "testenv/rounds.py": """
        @ClassFactory.register(ClassType.GENERAL, alias="Rounds")
        def rounds(_, y_pred):
            return sum(row[1]["simulation"]["rounds"] for row in y_pred)
        """,
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
    "common/session_store.py": "SESSIONS = {}\n",
    "testalgorithms/ar/result_builder.py": """
        def answer_to(query):
            return query.upper()

        def build(text, rounds):
            return {"completion": text, "simulation": {"rounds": rounds}}
        """,
    "testalgorithms/ar/drafter.py": _PATHS
    + """
        from common.session_store import SESSIONS
        from result_builder import answer_to, build

        os.environ["BACKEND_TYPE"] = "TORCH"

        @ClassFactory.register(ClassType.GENERAL, alias="SpeculativeDraftModel")
        class SpeculativeDraftModel:
            def __init__(self, **kwargs):
                os.environ["model_path"] = kwargs["model"]
                self.inference_mode = kwargs.get("inference_mode", "collaboration")
                self.window = kwargs["draft_tokens_per_step"]

            def load(self, *args, **kwargs): ...

            def start_session(self, data=None, request=None, **kwargs):
                request = {"request_id": data, "query": data} if request is None else request
                SESSIONS[data] = {"committed": "", "rounds": 0}
                return {"request_id": data, "request": request}

            def step(self, session, feedback=None, max_draft_tokens=None, **kwargs):
                done = len(SESSIONS[session["request_id"]]["committed"])
                return {"draft_ids": answer_to(session["request"]["query"])[done : done + self.window]}

            def close_session(self, session, request=None):
                assert session.pop("_pending_feedback")["verify_output"]["stop"]
                return build(*SESSIONS.pop(session["request_id"]).values())

            def inference(self, data=None, request=None, **kwargs):
                return build(answer_to(data), 1)
        """,
    "testalgorithms/ar/verifier.py": _PATHS
    + """
        from common.session_store import SESSIONS
        from result_builder import answer_to, build

        @ClassFactory.register(ClassType.GENERAL, alias="SpeculativeVerifyModel")
        class SpeculativeVerifyModel:
            def __init__(self, **kwargs): ...

            def start_session(self, data=None, draft_session=None, request=None, **kwargs):
                return {"request": draft_session["request"], "request_id": draft_session["request_id"]}

            def verify(self, session, draft_output=None, **kwargs):
                shared = SESSIONS[session["request_id"]]
                shared["committed"] += draft_output["draft_ids"]
                shared["rounds"] += 1
                stop = shared["committed"] == answer_to(session["request"]["query"])
                feedback = {"draft_output": draft_output, "verify_output": {"stop": stop}}
                return {"stop": stop, "progress": bool(draft_output["draft_ids"]), "feedback": feedback}

            def close_session(self, session, request=None): ...

            def inference(self, data=None, request=None, **kwargs):
                return build(answer_to(data), 0)
        """,
}


def write_decoding_example(root: Path) -> str:
    """The speculative decoding example of 2026 with two questions of nine letters, below ``root``; its job file."""
    write_files(root / DECODING, DECODING_FILES)
    data = root / "dataset" / "specdec"
    data.mkdir(parents=True)
    rows = [{"question": question, "answer": ""} for question in ("questions", "and wider")]
    for name in ("train.jsonl", "test.jsonl"):
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(DECODING / "benchmarkingjob.yaml")
