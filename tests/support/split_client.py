"""A client of a verifier that sends arbitrary messages."""

from __future__ import annotations

import queue
from contextlib import contextmanager

import grpc

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.net.split.split_pb2 import Down, Open, Up
from ianvs_specdec.net.split.wire import DECODE, write_sampling
from tests.support.verifiers import PATIENCE

TOKENS = ("a token of the first edge", "a token of another edge")


def opening(**changes):
    message = Open(prompt=list(range(64, 94)))
    write_sampling(message, Sampling(max_tokens=200))
    for name, value in changes.items():
        if isinstance(value, list):
            getattr(message, name)[:] = value
        else:
            setattr(message, name, value)
    return Up(open=message)


class Client:
    """Sends arbitrary messages."""

    def __init__(self, address, token=""):
        self._said = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address)
        call = self._channel.stream_stream(DECODE, request_serializer=bytes, response_deserializer=Down.FromString)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        self._answers = call(iter(self._said.get, None), metadata=metadata, timeout=PATIENCE)

    def say(self, *messages):
        for message in messages:
            self._said.put(message if isinstance(message, bytes) else message.SerializeToString())
        return self

    def hear(self):
        return next(self._answers)

    def error(self):
        return next(answer.error.code for answer in self._answers if answer.HasField("error"))

    def close(self):
        self._said.put(None)
        self._answers.cancel()
        self._channel.close()


@contextmanager
def clients(verifier):
    """Makes clients of ``verifier``, with the first token or another. Afterwards they and their sessions are gone."""
    made = []

    def new(token=TOKENS[0]):
        made.append(Client(verifier.address, token))
        return made[-1]

    yield new
    for each in made:
        each.close()
    verifier.forget()
