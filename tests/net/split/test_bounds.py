"""Limits of a verifier, TLS, and a flood of sessions."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import BUSY, IDLE, STREAM, Down
from ianvs_specdec.net.split.wire import DECODE
from ianvs_specdec.serving.verifier.server import tls_credentials
from ianvs_specdec.serving.verifier.service import Limits
from tests.net.split.conftest import PROMPT
from tests.support.servers import make_certificate
from tests.support.split_client import TOKENS, Client, opening
from tests.support.verifiers import PATIENCE, edge_of, verifying

FEW = Limits(sessions=4)
AT_ONCE = 32
LONG = Sampling(max_tokens=200)


def test_idle_session_ends(llm):
    with verifying(llm, limits=Limits(idle=0.2)) as verifier:
        silent = Client(verifier.address).say(opening())
        assert silent.error() == IDLE
        silent.close()


def test_client_that_never_reads(folder, llm, alone):
    with verifying(llm, limits=Limits(idle=0.5)) as verifier:
        deaf = Client(verifier.address).say(opening(mode=STREAM, max_tokens=400))
        with edge_of(verifier.address, folder) as edge:
            answer = edge.decode(PROMPT, Sampling(max_tokens=40))
        assert answer.token_ids == alone(PROMPT, Sampling(max_tokens=40))
        deaf.close()


def test_tls(folder, llm, alone, tmp_path):
    chain, key = make_certificate(tmp_path)
    with verifying(llm, credentials=tls_credentials(chain, key)) as verifier:
        with edge_of(Access(verifier.address, "", chain), folder) as edge:
            assert edge.decode(PROMPT, Sampling(max_tokens=9)).token_ids == alone(PROMPT, Sampling(max_tokens=9))
        other = tmp_path / "other"
        other.mkdir()
        via = {"via": verifier.address}
        for access, message in (
            (Access(verifier.address, "", make_certificate(other)[0]), "--verifier-ca, and see that both clocks are"),
            (Access(f"localhost:{verifier.port}"), "do both sides use TLS or none"),
            (Access("another.invalid:443", "", chain, **via), "give the certificate that signed it"),
        ):
            connection = Connection(access)
            with pytest.raises(UserError, match=message):
                connection.describe(1.0)
            connection.close()
        # Through a link the certificate is still the verifier's.
        connection = Connection(Access("far.invalid:443", "", chain, **via))
        assert connection.describe(PATIENCE).name
        connection.close()


@pytest.mark.parametrize("opens", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_flood_of_sessions(folder, llm, alone, opens):
    expected = alone(PROMPT, LONG)
    with verifying(llm, limits=FEW, tokens=TOKENS) as running:
        started, answers = threading.Event(), []

        def go_on():
            with edge_of(Access(running.address, TOKENS[0]), folder, length=2) as edge:
                answers.append(edge.decode(PROMPT, LONG, on_tokens=lambda tokens: started.set()).token_ids)

        honest = threading.Thread(target=go_on)
        honest.start()
        assert started.wait(PATIENCE)
        held = [Client(running.address, TOKENS[1]).say(opening()) for _ in range(FEW.sessions)]
        told = Counter(one.hear().WhichOneof("message") for one in held)
        refused = _flood(running.address, opens)
        # Either the verifier has no room, or the process takes no more streams.
        assert set(refused) <= {BUSY, "opened", grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert told["opened"] <= FEW.sessions
        assert len(running.service.sessions) <= FEW.sessions
        honest.join(PATIENCE)
        assert answers == [expected]
        for one in held:
            one.close()


def _flood(address, opens):
    """The answers to ``opens`` openings."""
    message, metadata = opening().SerializeToString(), [("authorization", f"Bearer {TOKENS[1]}")]
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(AT_ONCE) as threads:
        call = channel.stream_stream(DECODE, request_serializer=bytes, response_deserializer=Down.FromString)

        def one(_):
            try:
                answer = next(call(iter([message]), metadata=metadata, timeout=PATIENCE))
            except grpc.RpcError as error:
                return error.code()
            return answer.error.code if answer.HasField("error") else answer.WhichOneof("message")

        return Counter(threads.map(one, range(opens)))
