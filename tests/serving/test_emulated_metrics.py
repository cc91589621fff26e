"""What a server shows while another machine's speed is emulated."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")

from ianvs_specdec.serving.metrics import Metrics

TOLD = {"machine": "a stated one", "model": "m", "method": "eagle", "scale": 25.0, "steps": 7, "overruns": 2}


def test_metrics_say_whose_speed_it_is_and_how_many_steps_overran():
    metrics = Metrics("model", "EagleSpecDec")
    metrics.watch_emulation(lambda: TOLD)
    text = metrics.text().decode()
    assert 'machine="a stated one"' in text
    assert 'scale="25.0"' in text
    assert "specdec_emulated_steps 7.0" in text
    assert "specdec_emulated_overruns 2.0" in text


def test_without_emulation_there_is_nothing_of_it():
    metrics = Metrics("model", "EagleSpecDec")
    metrics.watch_emulation(lambda: None)
    assert "emulated" not in metrics.text().decode()
