"""Keys and passwords, kept out of settings that are published and of texts that a server sends back."""

from __future__ import annotations

import functools
import hashlib
import html.entities
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.base import OnChunk
from ianvs_specdec.common.errors import UserError, visible

SHORTEST_TOLD, SHORTEST_ANSWERED = 4, 8
"""Shorter keys are placeholders ("-", "none", "EMPTY"), which a message, or an answer, may well contain."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset({
    *("authorization", "authentication", "auth", "oauth", "bearer", "jwt", "cookie", "cookies"),
    *("password", "passwords", "passwd", "passw", "pwd", "passphrase", "secret", "secrets"),
    *("credential", "credentials"),
    *("apikey", "apikeys", "apitoken", "authtoken", "accesstoken", "hftoken", "sig", "signature"),
})  # fmt: skip
_SECRET_ENDS = ("apikey", "accesskey", "secretkey", "subscriptionkey", "password", "secret")
_KEY_WORDS, _PUBLIC_KEYS = frozenset({"key", "keys"}), frozenset({"cache", "sort"})
_TOKEN_WORDS = frozenset({"access", "api", "auth", "refresh", "id"})
_PUBLIC_TOKENS = frozenset({
    *("eos", "bos", "pad", "unk", "stop", "special", "mask", "sep", "cls", "image", "audio", "start", "end", "think"),
})  # fmt: skip
"""What a word beside "key" or "token" is, where neither opens anything."""
_SCHEMAS = frozenset({"properties", "$defs", "definitions", "json_schema", "schema"})
"""Below these names stand names of fields, not values."""
_KEY_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{6,}|(?:sk|pk|rk|hf|gsk|xai|ghp|gho|ghs|glpat|nvapi|pplx|xox[abp]|r8|csk|fw)[-_]"
    r"(?=[\w-]*\d)[\w-]{10,}|AKIA\w{12,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]+)"
)
_HEADER_SHAPE = re.compile(r"\s*(?:bearer|basic|token)\s+\S{6,}\s*", re.IGNORECASE)
_RANDOM = re.compile(r"(?=(?:[A-Za-z]*\d){2})(?=(?:\d*[A-Za-z]){2})[A-Za-z0-9]{20,}")
_KNOWN_SEGMENT = re.compile(
    r"v\d+(?:(?:alpha|beta)\d*)?|api|apis|openai|compat|compatible|compatible-mode|inference|chat|llm|ai|models?|"
    r"engines?|deployments?|endpoints?|serving|serving-endpoints|gateway|proxy|paas|rest|public|azure|",
    re.IGNORECASE,
)
"""Parts of a path that servers have in common, and that so hold no key."""
_ROUNDS = 100_000
"""Of the hash that stands for a part of a path: each guess of a key costs as many."""


def check_no_secrets(options: Mapping[str, Any]) -> None:
    """Raise UserError where a key or a password stands in place of the environment variable that is to hold it.

    Leaderboard, configuration and report publish every option, those of other back ends among them, and so the message
    does not repeat what it found. A value may be a mapping from back ends to values.
    """
    for name, check in (("api_key_env", _check_variable), ("api_base_url", _check_address)):
        for value in _by_backend(options.get(name)):
            check(value, name, name)
    for entries in _by_backend(options.get("api_endpoints")):
        for entry in entries if isinstance(entries, list) else ():
            given = entry if isinstance(entry, Mapping) else {}
            for name, check in (("key_env", _check_variable), ("base_url", _check_address)):
                if isinstance(given.get(name), str):
                    check(given[name], f"{name} in api_endpoints", "api_endpoints")
    known = _known_keys(options)
    for name, value in options.items():
        nested = isinstance(value, (Mapping, list, tuple))
        for place, text, named in _texts(value, str(name)):
            shaped = nested and (_KEY_SHAPE.search(text) or _HEADER_SHAPE.fullmatch(text))
            if (nested and named) or shaped or any(key in text for key in known):
                rule = f"{visible(place)} holds what looks like a key or a password"
                advice = "put it into an environment variable, which api_key_env names; it is sent as Authorization"
                raise UserError(f"{rule}, and {name} is published with the results: {advice}", key=str(name))


def _by_backend(value: Any) -> list[Any]:
    return [item for item in (value.values() if isinstance(value, Mapping) else [value]) if item is not None]


def _known_keys(options: Mapping[str, Any]) -> list[str]:
    """The keys that the environment holds."""
    entries = [entry for entries in _by_backend(options.get("api_endpoints")) for entry in _listed(entries)]
    names = [entry.get("key_env") for entry in entries if isinstance(entry, Mapping)]
    names += [*_by_backend(options.get("api_key_env")), "OPENAI_API_KEY"]
    keys = [os.environ.get(name, "").strip() for name in names if isinstance(name, str)]
    return [key for key in keys if len(key) >= SHORTEST_ANSWERED]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any, place: str, named: bool = False, schema: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Every text and number in a value: where it stands, what it is, whether its name says that it is secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = str(key)
            # Of an endpoint, this is the name of a variable, and checked as such.
            below = schema or name in _SCHEMAS or name == "key_env"
            shown = "***" if _KEY_SHAPE.search(name) else name
            yield from _texts(item, f"{place}.{shown}", not below and (named or names_secret(name, item)), below)
            if shown != name:
                yield f"{place}.{shown}", name, True
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, place, named, schema)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value):
        yield place, str(value), named


def names_secret(name: str, value: Any = "") -> bool:
    """Whether what has this name is a key or a password. A token is none where it is counted."""
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _SECRET_WORDS or any(word.endswith(_SECRET_ENDS) for word in words):
        return True
    if words & _KEY_WORDS:
        return not words & _PUBLIC_KEYS
    if "tokens" in words:
        return bool(words & _TOKEN_WORDS) and not isinstance(value, (int, float))
    return "token" in words and not words & _PUBLIC_TOKENS and isinstance(value, (str, Mapping))


def _check_variable(text: Any, what: str, option: str) -> None:
    right = isinstance(text, str) and _VARIABLE.fullmatch(text)
    if not right or (_KEY_SHAPE.search(text) and text not in os.environ):
        advice = "put the key into a variable (export MY_KEY=...) and write the variable's name here"
        rule = f"{what} must be the name of an environment variable: letters, digits and _"
        raise UserError(f"{rule}; a key itself must never stand there: {advice}", key=option)


def _check_address(text: Any, what: str, option: str) -> None:
    if not isinstance(text, str) or not ("://" in text or _VARIABLE.fullmatch(text)):
        rule = "a URL that begins with http:// or https://, or the name of an environment variable that holds one"
        raise UserError(f"{what} must be {rule}", key=option)
    if _address_holds_secret(text):
        advice = "put the URL into an environment variable and write the variable's name here"
        raise UserError(f"the URL under {what} must hold no user name, password or key: {advice}", key=option)


def _address_holds_secret(text: str) -> bool:
    plain = urllib.parse.unquote(urllib.parse.unquote(text))
    if "://" not in plain:
        return bool(_KEY_SHAPE.search(plain)) and text not in os.environ
    place, _, query = plain.partition("://")[2].partition("?")
    # A fragment is not sent to any server: it says nothing, or what should not stand there.
    if "@" in plain or "#" in plain or _RANDOM.search(place.partition("/")[2]) or _KEY_SHAPE.search(plain):
        return True
    pairs = [part.partition("=") for part in re.split("[&;]", query) if part]
    words = _SECRET_WORDS | {"token", "code", "access"}
    return any(
        names_secret(name) or _like(name, words) or _RANDOM.search(value) or (not equals and len(name) >= 8)
        for name, equals, value in pairs
    )


def _like(name: str, words: frozenset[str]) -> bool:
    """Whether one of the words is in the name, run together with others as they may be."""
    return any(word in name.lower() for word in ("key", *words) if len(word) > 2)


def told_path(path: str) -> str:
    """A URL's path as it may be shown: parts that not all servers have in common are given by a hash."""
    return "/".join(segment if _KNOWN_SEGMENT.fullmatch(segment) else _hashed(segment) for segment in path.split("/"))


@functools.cache
def _hashed(segment: str) -> str:
    return "***" + hashlib.pbkdf2_hmac("sha256", segment.encode(), b"ianvs-specdec path", _ROUNDS).hex()[:12]


def parts_of_path(path: str) -> list[str]:
    """The parts that ``told_path`` hides."""
    return [segment for segment in path.split("/") if not _KNOWN_SEGMENT.fullmatch(segment)]


class Secrets:
    """Takes secrets out of texts, whether they stand there plainly, percent-encoded, or escaped as in JSON or HTML."""

    def __init__(self, secrets: Sequence[str]) -> None:
        found = sorted(set(secrets), key=len, reverse=True)
        self._all = _pattern([secret for secret in found if len(secret) >= SHORTEST_TOLD])
        self._long = _pattern([secret for secret in found if len(secret) >= SHORTEST_ANSWERED])

    def out_of(self, message: str) -> str:
        return self._all.sub("***", message) if self._all else message

    def out_of_answer(self, text: str) -> str:
        """A model's answer without secrets that it can hold only because its server has put them there."""
        return self._long.sub("***", text) if self._long else text

    def out_of_pieces(self, on_chunk: OnChunk) -> GuardedPieces:
        """Hands an answer on that comes in pieces, without such secrets."""
        return GuardedPieces(on_chunk, self._partial)

    @functools.cached_property
    def _partial(self) -> Any:
        if self._long is None:
            return None
        import regex

        return regex.compile(self._long.pattern)


class GuardedPieces:
    """An answer on its way to who asked, piece by piece. What may be the beginning of a secret waits for what follows.

    ``delivered``: whether any text has been handed on.
    """

    def __init__(self, on_chunk: OnChunk, pattern: Any) -> None:
        self._on_chunk, self._pattern = on_chunk, pattern
        self._held = ""
        self.delivered = False

    def __call__(self, piece: str, tokens: int) -> None:
        if self._pattern is None:
            self._hand(piece, tokens)
            return
        text, self._held = self._held + piece, ""
        safe = ""
        while text:
            found = self._pattern.search(text, partial=True)
            if found is None:
                safe, text = safe + text, ""
            elif found.partial:
                safe, self._held, text = safe + text[: found.start()], text[found.start() :], ""
            else:
                safe, text = f"{safe}{text[: found.start()]}***", text[found.end() :]
        if safe or not piece:
            self._hand(safe, tokens)

    def finish(self) -> None:
        """Nothing follows: what waited is no secret, or a whole one."""
        if self._held:
            text, self._held = self._pattern.sub("***", self._held), ""
            self._hand(text, 0)

    def _hand(self, piece: str, tokens: int) -> None:
        self.delivered |= piece != ""
        self._on_chunk(piece, tokens)


def _pattern(secrets: list[str]) -> re.Pattern[str] | None:
    def forms(character: str) -> str:
        code = f"{ord(character):02x}"
        encoded = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in code)
        named = "".join(f"|&{name}" for name, value in html.entities.html5.items() if value == character)
        plain = re.escape(character)
        # Bounded repetitions, so that no answer can make the search slow.
        escaped = rf"\\{{1,8}}(?:u00{encoded}|{plain})|&#(?:0{{0,4}}{ord(character)}|[xX]0{{0,4}}{encoded});"
        return rf"(?:{plain}|%(?:25){{0,4}}{encoded}|{escaped}{named})"

    return re.compile("|".join("".join(map(forms, secret)) for secret in secrets)) if secrets else None
