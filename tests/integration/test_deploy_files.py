"""The files in ``deploy``, as described in docs/deployment.md."""

from __future__ import annotations

import argparse
import re
import shlex
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml

from ianvs_specdec.commands import serve, verifier
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MODELS, SERVICE = (list(yaml.safe_load_all((DEPLOY / "sedna.yaml").read_text()))[part] for part in (slice(2), 2))
WORKERS = {side: SERVICE["spec"][f"{side}Worker"] for side in ("edge", "cloud")}
SECRET = re.compile(r"(?i)(?:key|token|password)\w*\"?\s*[:=]\s*\"?[\w-]{12,}$")


def arguments_of(command: list[str]) -> argparse.Namespace:
    """The command line of a server, as the command reads it."""
    name, *given = command
    parser = argparse.ArgumentParser(exit_on_error=False)
    {"serve": serve, "verifier": verifier}[name].add_arguments(parser)
    return parser.parse_args(given)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_is_confined_healthy_and_without_secrets(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["profiles"] == ["edge" if name == "edge" else "cloud"]
    options = arguments_of(service["command"])
    assert options.host == "0.0.0.0"
    assert any(str(options.port) == port.rpartition(":")[2] for port in service["ports"])
    mounted = {one if isinstance(one, str) else one["source"] for one in service["secrets"]}
    needed = {options.tls_cert, options.tls_key, getattr(options, "token_file", None)} - {None}
    assert {file.name for file in needed} <= mounted <= set(COMPOSE["secrets"])
    if name != "verifier":
        assert service["environment"][options.api_key_env] == f"${{{options.api_key_env}:-}}"
    for settings in re.findall(r"examples/\S+?\.yaml", " ".join(service["command"])):
        assert (ROOT / settings).is_file()


def test_no_file_contains_a_secret() -> None:
    for file in DEPLOY.iterdir():
        assert not [line for line in file.read_text().splitlines() if SECRET.search(line)], file
        assert "PRIVATE KEY" not in file.read_text()
    assert all(list(entry) == ["file"] for entry in COMPOSE["secrets"].values())


def test_images_are_pinned_and_do_not_run_as_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    images = [stage for stage in stages if re.match(r"base AS (?:cloud|edge)\n", stage)]
    assert len(images) == 2
    assert all(re.findall(r"^USER (.*)$", stage, re.MULTILINE) == ["10001:10001"] for stage in images)
    extras = {part for group in re.findall(r"\$1\[([\w,]+)\]", text) for part in group.split(",")}
    assert all(re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE) for extra in extras)


def test_both_workers_of_sedna_find_each_other() -> None:
    """What the CRD requires, and the variables that Sedna's controller gives to the workers."""
    assert (SERVICE["apiVersion"], SERVICE["kind"]) == ("sedna.io/v1alpha1", "JointInferenceService")
    assert WORKERS["edge"]["hardExampleMining"]["name"] == "LearnedRouter"
    assert [model["metadata"]["name"] for model in MODELS] == [WORKERS[side]["model"]["name"] for side in WORKERS][::-1]
    for worker in WORKERS.values():
        pod = worker["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        # A slow load is not a hang.
        assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] >= 1800
        assert "initialDelaySeconds" not in container["livenessProbe"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
        assert all("secretKeyRef" in entry["valueFrom"] for entry in container["env"])
    (edge,) = WORKERS["edge"]["template"]["spec"]["containers"]
    assert "https://$BIG_MODEL_IP:$BIG_MODEL_PORT/v1" in edge["args"][0]
    *_, start = edge["args"][0].partition("exec specdec ")
    options = arguments_of(shlex.split(start))
    assert (ROOT / options.job).is_file()
    assert edge["livenessProbe"]["httpGet"]["port"] == options.port
    (cloud,) = WORKERS["cloud"]["template"]["spec"]["containers"]
    arguments_of([word.replace("$(BIG_MODEL_BIND_PORT)", "5000") for word in cloud["args"]])
    assert {"--port=$(BIG_MODEL_BIND_PORT)", "--model=$(MODEL_URL)"} <= {*cloud["args"]}


def test_certificates_are_for_the_names_given(tmp_path: Path) -> None:
    script = str(DEPLOY / "certificates.sh")
    try:
        subprocess.run(["sh", script, "cloud.example.org", "10.0.0.2"], cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    made = tmp_path / "certificates"
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for side, name in (("cloud", "cloud.example.org"), ("edge", "10.0.0.2"), ("cloud", "specdec-cloud.default")):
        server.load_cert_chain(made / f"{side}.pem", made / f"{side}.key")
        client = ssl.create_default_context(cafile=made / "ca.pem")
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        shake_hands(client, server, name)
    # A bad name, or an authority without its key, replaces nothing.
    before = {file: file.read_bytes() for file in (*made.glob("*.pem"), made / "cloud.key", made / "edge.key")}
    assert subprocess.run(["sh", script, "a.example.org", "300.0.0.2"], cwd=tmp_path, capture_output=True).returncode
    (made / "ca.key").unlink()
    again = subprocess.run(["sh", script, "a.example.org", "10.0.0.2"], cwd=tmp_path, capture_output=True, text=True)
    assert "put ca.key back" in again.stderr
    assert {file: file.read_bytes() for file in before} == before
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(client, server, "other.example.org")
    assert (made / "cloud.key").stat().st_mode & 0o077 == 0
    assert len((made / "token").read_text().strip()) >= 16


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=name)
    theirs = server.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
