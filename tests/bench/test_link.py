"""``bench.link`` says what may be expected of a path, and measures it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench import link
from bench.link_kernel import NETEM, Kernel
from ianvs_specdec.net.link import Path as NetworkPath


def test_the_bandwidth_is_less_the_headers_and_bounded_by_window_and_loss() -> None:
    assert link.says(NetworkPath(up=15e6))["up"] == pytest.approx(15e6 / 8 * 1448 / 1500)
    assert "down" not in link.says(NetworkPath(up=15e6))
    assert link.says(NetworkPath(delay=0.5))["up"] == 6 << 20
    lossy = link.says(NetworkPath(delay=0.05, up=1e9, loss=0.01))
    assert lossy["up"] == pytest.approx(1448 / 0.1 * math.sqrt(150))
    assert (lossy["p50"], lossy["loss"]) == (0.1, 0.01)


def test_what_a_file_says_of_a_path_is_that_path() -> None:
    path = NetworkPath.parse({"preset": "satellite-leo", "seed": 5})
    again = NetworkPath.parse(link._options(path))
    assert (again.delay, again.jitter, again.up, again.down, again.loss, again.seed) == pytest.approx(
        (path.delay, path.jitter, path.up, path.down, path.loss, path.seed)
    )


def test_netem_is_asked_for_the_same_path() -> None:
    path = NetworkPath(delay=0.025, jitter=0.005, up=12e6, loss=0.005, queue=0.1)
    kernel = Kernel(path, NETEM, link._options(path))
    up = kernel.netem(path.up)
    assert up[3:] == ["delay", "25000us", "loss", "0.5%", "rate", "12000000bit"]
    # 150,000 bytes wait, 37,500 are under way.
    assert int(up[2]) == math.ceil(187_500 / 1514)
    assert kernel.netem(path.down)[3:] == ["delay", "25000us", "loss", "0.5%"]


@pytest.mark.slow
def test_a_short_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert link.main(["--presets", "none,fibre", "--seconds", "0.4", "--repeats", "1", "--out", str(tmp_path)]) == 0
    rows = {row["path"]: row for row in json.loads((tmp_path / "link.json").read_text())["rows"]}
    assert set(rows) == {"direct", "none", "fibre"}
    (fibre,) = rows["fibre"]["runs"]
    assert fibre["p50"] >= 0.009
    assert 0 < fibre["up"] < 100e6 / 8
    assert "fibre" in capsys.readouterr().out


def test_an_unknown_preset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        link.main(["--presets", "fiber"])
    assert "unknown preset 'fiber'; there are none, lan, fibre" in capsys.readouterr().err
