"""Verifiers with narrow bounds, and with a certificate."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import IDLE, STREAM
from ianvs_specdec.serving.verifier.server import Certificate
from ianvs_specdec.serving.verifier.service import Bounds
from tests.net.split.conftest import PROMPT
from tests.support.servers import make_certificate
from tests.support.split_client import Client, opening
from tests.support.verifiers import PATIENCE, edge_of, verifying


def test_a_silent_client_loses_its_session(llm):
    with verifying(llm, bounds=Bounds(idle=0.2)) as verifier:
        silent = Client(verifier.address).say(opening())
        assert silent.error() == IDLE
        silent.close()


def test_a_client_that_never_reads_holds_no_more_than_its_own_output(folder, llm, alone):
    with verifying(llm, bounds=Bounds(idle=0.5)) as verifier:
        deaf = Client(verifier.address).say(opening(mode=STREAM, max_tokens=400))
        drafter = drafters.create("draft_model", {"draft": folder})
        with edge_of(verifier.address, drafter) as edge:
            answer = edge.decode(PROMPT, Sampling(max_tokens=40))
        assert answer.token_ids == alone(PROMPT, Sampling(max_tokens=40))
        deaf.close()


def test_with_a_certificate_both_sides_need_tls(folder, llm, alone, tmp_path):
    chain, key = make_certificate(tmp_path)
    with verifying(llm, certificate=Certificate(chain, key)) as verifier:
        drafter = drafters.create("draft_model", {"draft": folder})
        with edge_of(Access(verifier.address, "", chain), drafter) as edge:
            assert edge.decode(PROMPT, Sampling(max_tokens=9)).token_ids == alone(PROMPT, Sampling(max_tokens=9))
        other = tmp_path / "other"
        other.mkdir()
        strange = Connection(Access(verifier.address, "", make_certificate(other)[0]))
        with pytest.raises(UserError, match="--verifier-ca, and see that both clocks are right"):
            strange.describe(PATIENCE)
        strange.close()
        for access in (Access(verifier.address), Access(f"localhost:{verifier.port}")):
            connection = Connection(access)
            with pytest.raises(UserError, match="do both sides use TLS or none"):
                connection.describe(0.3)
            connection.close()


def test_through_a_link_the_certificate_is_still_the_verifiers(llm, tmp_path):
    chain, key = make_certificate(tmp_path)
    with verifying(llm, certificate=Certificate(chain, key)) as verifier:
        for host, known in (("far.invalid", True), ("another.invalid", False)):
            connection = Connection(Access(f"{host}:443", "", chain, via=verifier.address))
            try:
                if known:
                    assert connection.describe(PATIENCE).name
                else:
                    with pytest.raises(UserError, match="give the certificate that signed it"):
                        connection.describe(1.0)
            finally:
                connection.close()
