"""Files of outcomes, and labels."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.labels import soft_labels, targets
from ianvs_specdec.routing.outcomes.recorded import Outcomes, load_outcomes, save_outcomes, text_of

HEADER = "query,edge_correct,cloud_correct"


def csv(tmp_path, text, name="outcomes.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_csv_with_everything(tmp_path):
    rows = '"a, ""b""\nc",True,0,0.1,2,maths,q7,x\r\nd,0.25,true,0,3,law,q8,y\r\n'
    path = csv(tmp_path, f"\ufeff{HEADER},edge_cost,cloud_cost,group,id,more\r\n{rows}")
    outcomes = load_outcomes(path)
    assert [text_of(query) for query in outcomes.queries] == ['a, "b"\nc', "d"]
    assert [(query.id, query.group) for query in outcomes.queries] == [("q7", "maths"), ("q8", "law")]
    assert outcomes.edge.tolist() == [1.0, 0.25]
    assert outcomes.cloud.tolist() == [0.0, 1.0]
    assert outcomes.edge_cost.tolist() == [0.1, 0.0]
    assert outcomes.cloud_cost.tolist() == [2.0, 3.0]
    assert outcomes.gain.tolist() == [-1.0, 0.75]


def test_files_may_be_compressed(tmp_path):
    text = f"{HEADER}\na,TRUE, False".encode()
    for name, data in (("OUTCOMES.CSV", text), ("outcomes.csv.gz", gzip.compress(text))):
        found = load_outcomes(csv(tmp_path, data, name))
        assert (found.edge.tolist(), found.cloud.tolist()) == ([1.0], [0.0])


def test_save_and_load(tmp_path):
    queries = (Query(("one", "two"), id="x", group="g", system="be brief", scorer="choice"), Query(("é\n",), id="1"))
    saved = Outcomes(
        queries,
        np.array([0.1, 1.0]),
        np.array([0.7, 0.0]),
        cloud_cost=np.array([1e-5, 2e-5]),
        edge_samples=((0.0, 1.0), (1.0,)),
        cloud_samples=((1.0,), (0.5, 0.25)),
    )
    path = tmp_path / "outcomes.jsonl"
    save_outcomes(path, saved, label=[1, 0])
    read = load_outcomes(path)
    assert read.queries == queries
    assert read.edge.tolist() == [0.1, 1.0]
    assert read.edge_samples == saved.edge_samples
    assert read.cloud_samples == saved.cloud_samples
    assert read.edge_cost is None
    assert json.loads(path.read_text().splitlines()[0])["label"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no outcomes"),
        ("query,edge_correct\na,1\n", "outcomes.csv:2: there is no cloud_correct; found: query, edge_correct"),
        ("query;edge_correct;cloud_correct\na;1;0\n", "there is no query; found: query;edge_correct;cloud_correct"),
        (f"{HEADER}\na,1,0\nb,yes,0\n", "outcomes.csv:3: edge_correct must be true, false or a number"),
        (
            f"{HEADER}\na,1,nan\n",
            "outcomes.csv:2: cloud_correct must be true, false or a number from 0 to 1, not 'nan'",
        ),
        (f"{HEADER}\na,1,1.5\n", "outcomes.csv:2: cloud_correct must be"),
        (f"{HEADER}\na,1\n", "outcomes.csv:2: 2 columns, but the header"),
        (f"{HEADER},cloud_cost\na,1,0,1\nb,1,0,\n", "outcomes.csv:3: cloud_cost is missing: give it for every query"),
        (f"{HEADER},cloud_cost\na,1,0,-1\n", "outcomes.csv:2: cloud_cost must be a number from 0"),
        (b"query,edge_correct,cloud_correct\n\xff\xfe,1,0\n", "outcomes.csv: cannot be read after line"),
    ],
)
def test_bad_csv(tmp_path, text, told):
    with pytest.raises(UserError) as error:
        load_outcomes(csv(tmp_path, text))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query": "a", "edge": 1}, "outcomes.jsonl:2: there is no cloud"),
        ({"query": "a", "edge": 2, "cloud": 1}, "outcomes.jsonl:2: edge must be"),
        ({"query": 7, "edge": 1, "cloud": 1}, "outcomes.jsonl:2: the question of data row 2 must be a string"),
        ({"query": "a", "edge": 1, "cloud": 1, "edge_samples": 1}, "outcomes.jsonl:2: edge_samples must be a list"),
        ({"query": "a", "edge": 1, "cloud": 1, "edge_samples": [None]}, "outcomes.jsonl:2: edge_samples must be"),
    ],
)
def test_bad_json_lines(tmp_path, row, told):
    lines = [{"query": "fine", "edge": 1, "cloud": 1, "edge_samples": [1]}, row]
    path = csv(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "outcomes.jsonl")
    with pytest.raises(UserError) as error:
        load_outcomes(path)
    assert told in str(error.value)


def outcomes(edge, cloud, **samples):
    queries = tuple(Query((f"q{i}",)) for i in range(len(edge)))
    return Outcomes(queries, np.array(edge, dtype=float), np.array(cloud, dtype=float), **samples)


def test_the_four_labels():
    given = outcomes([1.0, 0.0, 0.4, 0.6], [1.0, 1.0, 0.5, 0.0])
    assert targets(given, "hard").tolist() == [0, 1, 1, 0]
    assert targets(given, "hybrid").tolist() == [0, 1, 1, 0]
    assert targets(given, "hybrid", 0.2).tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(targets(given, "gain"), [0.5, 1.0, 0.55, 0.2])


def test_soft_labels_by_their_definition():
    generator = np.random.default_rng(0)
    edge = tuple(tuple(generator.integers(0, 6, 4) / 5) for _ in range(30))
    cloud = tuple(tuple(generator.integers(0, 6, 3) / 5) for _ in range(30))
    given = outcomes(np.zeros(30), np.ones(30), edge_samples=edge, cloud_samples=cloud)

    def share(query, shift):
        pairs = list(itertools.product(edge[query], cloud[query]))
        return 1 - sum(ours >= round(theirs - shift, 9) - 1e-12 for ours, theirs in pairs) / len(pairs)

    def spread(labels):
        return np.mean([abs(a - b) for a in labels for b in labels])

    labels, shift = soft_labels(given)
    np.testing.assert_allclose(labels, [share(query, shift) for query in range(30)])
    others = [spread([share(query, t) for query in range(30)]) for t in np.arange(0, 1.01, 0.2)]
    assert spread(labels) == pytest.approx(max(others))


def test_unknown_labels_and_missing_samples_are_refused():
    with pytest.raises(UserError, match="Did you mean 'hybrid'"):
        targets(outcomes([1, 0], [1, 1]), "hybird")
    with pytest.raises(UserError, match="route label --samples"):
        targets(outcomes([1, 0], [1, 1]), "soft")


@pytest.mark.parametrize("by", ["row", "group"])
def test_equal_queries_or_groups_are_on_one_side(by):
    queries = tuple(Query((f"question {i % 50}",), id=str(i), group=f"g{i % 10}") for i in range(200))
    rest, held = Outcomes(queries, np.zeros(200), np.ones(200)).split(by, 0.3, seed=1)
    assert (len(rest), len(held)) == (140, 60)
    sides = [set(part.groups) if by == "group" else set(part.digests().tolist()) for part in (rest, held)]
    assert not sides[0] & sides[1]
