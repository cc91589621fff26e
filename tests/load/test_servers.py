"""``specdec serve`` is started for a policy, checked, and stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.servers import ServerDied, StartedServer, arguments, start_server
from tests.support.models import build_model


def plan_of(settings: str, **more: object) -> SweepPlan:
    return SweepPlan(**{"rates": (1.0,), "data": "d", "settings": settings, "policies": ("fixed:4",), **more})


def test_arguments_of_server() -> None:
    plan = plan_of("s.yaml", backend="PromptLookup", queue=3, set={"stop": ["a", "b"], "threads": 1})
    assert " ".join(arguments(plan, "fixed:4")) == (
        "--settings s.yaml --length fixed:4 --backend PromptLookup --queue 3 --deadline 300.0 "
        '--set stop=["a", "b"] --set threads=1'
    )


def test_server_does_not_start(tmp_path: Path) -> None:
    settings = tmp_path / "cloud.yaml"
    settings.write_text("model: ./not/there\n")
    with pytest.raises(UserError, match=r"policy fixed:4 did not start: .*there is no model folder"):
        start_server(plan_of(str(settings)), "fixed:4")


@pytest.mark.slow
def test_server_dies(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")
    settings = tmp_path / "cloud.yaml"
    settings.write_text(f"model: {build_model(tmp_path / 'tiny')}\n")
    server = start_server(plan_of(str(settings), backend="PromptLookup"), "fixed:4")
    try:
        assert isinstance(server, StartedServer)
        assert server.models() == ["load"]
        server.check()
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ServerDied, match=r"the server for the policy fixed:4 has ended: .* killed by signal 9"):
            server.check()
    finally:
        server.stop()
