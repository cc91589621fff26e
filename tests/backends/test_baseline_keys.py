"""Journal keys of answers and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ianvs_specdec.backends import backend
from ianvs_specdec.records.identity import FileDigests


def test_the_baseline_of_every_method_is_autoregressive_decoding(tmp_path: Path) -> None:
    digests = FileDigests(tmp_path / "digests.json")
    for name in ("model", "head", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
    model, head, draft = (str(tmp_path / name) for name in ("model", "head", "draft"))
    plain = backend("autoregressive")(model).identity(digests)
    methods: dict[str, dict[str, Any]] = {
        "autoregressive": {},
        "specdec": {},
        "EagleSpecDec": {"head": head, "tree": "dynamic", "length": "fixed:7"},
        "DraftModelSpecDec": {"draft": draft, "branches": 2},
        "huggingface": {},
    }
    for name, options in methods.items():
        llm = backend(name)(model, **options)
        assert llm.baseline_identity(digests) == plain
        assert (llm.identity(digests) == plain) == (name in ("autoregressive", "specdec"))
    computed = {json.dumps(backend("PromptLookup")(model, engine=name).identity(digests)) for name in ("torch", "auto")}
    assert len(computed) == 2
