"""Nothing that comes with a model is run: every call that could says that it must not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

ASKED = {
    "from_pretrained": ("trust_remote_code", False),
    "SentenceTransformer": ("trust_remote_code", False),
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
}
"""Call -> the argument that it must be given, and its value."""
OTHERS = ("GenerationConfig", "Embedding", "EaModel")
"""Classes whose ``from_pretrained`` takes no code, or, of another package, not this argument."""
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "host").rglob("*.py")])


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, bool | None]]:
    """Each call that must be given an argument, with the argument's name and the value that it is given."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, last = called.rpartition(".")
        asked = ASKED.get(called) or ASKED.get(last)
        if asked is None or owner.rpartition(".")[2] in OTHERS:
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        value = given.get(asked[0])
        yield node, asked[0], value.value if isinstance(value, ast.Constant) else None


def test_every_call_that_could_run_foreign_code_says_that_it_must_not() -> None:
    found, wrong = 0, []
    for file in FILES:
        for node, name, value in calls(ast.parse(file.read_text(encoding="utf-8"))):
            found += 1
            if value is not dict(ASKED.values())[name]:
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: {name} is {value}")
    assert not wrong
    assert found > 15


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("AutoModel.from_pretrained(folder)", None),
        ("transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)", True),
        ("AutoModel.from_pretrained(folder, trust_remote_code=flag)", None),
        ("getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False)", False),
        ("torch.load(file)", None),
        ("np.load(file, allow_pickle=True)", True),
    ],
)
def test_the_search_sees_what_it_is_to_see(line: str, value: bool | None) -> None:
    assert [given for _, _, given in calls(ast.parse(line))] == [value]
