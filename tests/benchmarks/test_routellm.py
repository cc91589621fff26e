"""The records of RouteLLM as outcomes, from a folder or an archive; errors with file and line."""

from __future__ import annotations

import io
import tarfile

import pytest

from ianvs_specdec.benchmarks import routellm
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.outcomes.recorded import load_outcomes
from tests.support.paths import shared_file

HEADER = f"prompt,{routellm.EDGE},{routellm.CLOUD}\n"
LAW = HEADER + '"Who sues?\nA. you\nB. they",True,False\nWhat is a tort?,False,True\n'
ART = HEADER + "Who painted it?,True,True\n"


def archive(path, files, kind="w:gz"):
    with tarfile.open(path, kind) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(member)
            else:
                data = content.encode()
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def test_an_archive_becomes_outcomes(tmp_path, capsys):
    files = {"x/mmlu_law.csv": LAW, "x/mmlu_art.csv": ART, "README": "no", "x/.mmlu_hidden.csv": "no"}
    records = archive(tmp_path / "records.tar", files)
    out = tmp_path / "outcomes.csv"
    assert main(["data", "routellm", str(records), "-o", str(out)]) == 0
    assert "3 queries, 2 groups; right: edge 66.7 %, cloud 66.7 %" in capsys.readouterr().out
    outcomes = load_outcomes(out)
    assert outcomes.groups == ["art", "law", "law"]
    assert [query.id for query in outcomes.queries] == ["art-0000", "law-0000", "law-0001"]
    assert outcomes.queries[1].turns == ("Who sues?\nA. you\nB. they",)
    assert outcomes.edge.tolist() == [1, 1, 0]
    assert outcomes.cloud.tolist() == [1, 0, 1]


def test_a_folder_and_a_file_are_read_alike_and_columns_can_be_named(tmp_path):
    (tmp_path / "mmlu_law.csv").write_text(LAW)
    from_folder = list(routellm.read(tmp_path))
    assert from_folder == list(routellm.read(tmp_path / "mmlu_law.csv"))
    swapped = list(routellm.read(tmp_path, edge=routellm.CLOUD, cloud=routellm.EDGE))
    assert [record.edge_correct for record in swapped] == [record.cloud_correct for record in from_folder]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"prompt,{routellm.EDGE},gpt\na,True,False\n", "mmlu_law.csv:2: unknown column 'gpt-4-1106-preview'"),
        (LAW.replace("False,True", "maybe,True"), "mmlu_law.csv:5: 'mistralai/Mixtral-8x7B-Instruct-v0.1' must"),
        (HEADER, "there are no records in it"),
    ],
)
def test_invalid_records_are_named_and_nothing_is_written(tmp_path, text, told, capsys):
    records = archive(tmp_path / "records.tar.gz", {"mmlu_law.csv": text})
    assert main(["data", "routellm", str(records), "-o", str(tmp_path / "outcomes.csv")]) != 0
    assert told in capsys.readouterr().err
    assert not (tmp_path / "outcomes.csv").exists()


def test_links_in_an_archive_are_not_followed(tmp_path):
    records = archive(tmp_path / "records.tar", {"mmlu_law.csv": None, "../mmlu_art.csv": ART}, "w")
    assert [record.group for record in routellm.read(records)] == ["art"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.tar"]


def test_an_archive_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(routellm, "MAX_BYTES", 100)
    with pytest.raises(UserError, match="holds more than"):
        list(routellm.read(archive(tmp_path / "records.tar.gz", {"mmlu_law.csv": LAW})))


def test_invalid_archives_are_errors(tmp_path):
    path = tmp_path / "records.tar.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00broken")
    with pytest.raises(UserError, match="cannot be read as a tar archive"):
        list(routellm.read(path))


def test_the_real_records():
    path = shared_file("data", "routellm", "mmlu_responses_csv.tar.gz")
    records = list(routellm.read(path))
    assert len(records) == 14_042
    assert len({record.group for record in records}) == 57
    assert sum(record.edge_correct for record in records) / len(records) == pytest.approx(0.681, abs=5e-4)
    assert sum(record.cloud_correct for record in records) / len(records) == pytest.approx(0.806, abs=5e-4)
