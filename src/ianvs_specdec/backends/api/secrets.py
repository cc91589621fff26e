"""Detection of keys and passwords in published options, and their redaction from texts of servers."""

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

MIN_IN_MESSAGES, MIN_IN_ANSWERS = 4, 8
"""Characters. Shorter keys ("-", "none", "EMPTY") are placeholders, which texts may contain by chance."""

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
"""Words that make names with "key" or "token" harmless."""
_SCHEMAS = frozenset({"properties", "$defs", "definitions", "json_schema", "schema"})
"""Their contents are names of fields, not values."""
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
"""Common segments of URL paths, which are no keys."""
_ROUNDS = 100_000
"""Iterations of the hash that replaces a segment of a path: the cost of guessing a key."""


def check_no_secrets(options: Mapping[str, Any]) -> None:
    """Raise UserError for a key or password in options, which are published with the results.

    The message does not repeat it. A value may be a mapping from back ends to values.
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
                rule = f"{visible(place)} looks like a key or a password"
                advice = "put it into an environment variable, which api_key_env names; it is sent as Authorization"
                raise UserError(f"{rule}, and {name} is published with the results: {advice}", key=str(name))


def _by_backend(value: Any) -> list[Any]:
    return [item for item in (value.values() if isinstance(value, Mapping) else [value]) if item is not None]


def _known_keys(options: Mapping[str, Any]) -> list[str]:
    """The keys in the environment."""
    entries = [entry for entries in _by_backend(options.get("api_endpoints")) for entry in _listed(entries)]
    names = [entry.get("key_env") for entry in entries if isinstance(entry, Mapping)]
    names += [*_by_backend(options.get("api_key_env")), "OPENAI_API_KEY"]
    keys = [os.environ.get(name, "").strip() for name in names if isinstance(name, str)]
    return [key for key in keys if len(key) >= MIN_IN_ANSWERS]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any, place: str, named: bool = False, schema: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Place and text of every text and number in a value, and whether its name is that of a secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = str(key)
            # key_env of an endpoint is checked as the name of a variable.
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
    """Whether this is the name of a key or a password. Numbers of tokens are not."""
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
        raise UserError(f"{rule}; a key itself must never be there: {advice}", key=option)


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
    # Fragments are not sent to servers: they have no use here but secrets.
    if "@" in plain or "#" in plain or _RANDOM.search(place.partition("/")[2]) or _KEY_SHAPE.search(plain):
        return True
    pairs = [part.partition("=") for part in re.split("[&;]", query) if part]
    words = _SECRET_WORDS | {"token", "code", "access"}
    return any(
        names_secret(name) or _contains_word(name, words) or _RANDOM.search(value) or (not equals and len(name) >= 8)
        for name, equals, value in pairs
    )


def _contains_word(name: str, words: frozenset[str]) -> bool:
    """Whether the name contains one of the words."""
    return any(word in name.lower() for word in ("key", *words) if len(word) > 2)


def redacted_path(path: str) -> str:
    """A URL's path with uncommon segments replaced by a hash."""
    return "/".join(segment if _KNOWN_SEGMENT.fullmatch(segment) else _hashed(segment) for segment in path.split("/"))


@functools.cache
def _hashed(segment: str) -> str:
    return "***" + hashlib.pbkdf2_hmac("sha256", segment.encode(), b"ianvs-specdec path", _ROUNDS).hex()[:12]


def secret_segments(path: str) -> list[str]:
    """The segments that ``redacted_path`` replaces."""
    return [segment for segment in path.split("/") if not _KNOWN_SEGMENT.fullmatch(segment)]


class Secrets:
    """Redacts secrets in texts, plain, percent-encoded, or escaped as in JSON or HTML."""

    def __init__(self, secrets: Sequence[str]) -> None:
        found = sorted(set(secrets), key=len, reverse=True)
        self._all = _pattern([secret for secret in found if len(secret) >= MIN_IN_MESSAGES])
        self._long = _pattern([secret for secret in found if len(secret) >= MIN_IN_ANSWERS])

    def redact(self, message: str) -> str:
        return self._all.sub("***", message) if self._all else message

    def redact_answer(self, text: str) -> str:
        """Redact the secrets that are too long to be in a model's answer by chance."""
        return self._long.sub("***", text) if self._long else text

    def redacted_stream(self, on_chunk: OnChunk) -> RedactedStream:
        """Redact a streamed answer."""
        return RedactedStream(on_chunk, self._partial)

    @functools.cached_property
    def _partial(self) -> Any:
        if self._long is None:
            return None
        import regex

        return regex.compile(self._long.pattern)


class RedactedStream:
    """Redacts a streamed answer; text that may begin a secret is held back. ``delivered``: any text was passed on."""

    def __init__(self, on_chunk: OnChunk, pattern: Any) -> None:
        self._on_chunk, self._pattern = on_chunk, pattern
        self._held = ""
        self.delivered = False

    def __call__(self, piece: str, tokens: int) -> None:
        if self._pattern is None:
            self._send(piece, tokens)
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
            self._send(safe, tokens)

    def finish(self) -> None:
        """Send the rest at the end of the answer."""
        if self._held:
            text, self._held = self._pattern.sub("***", self._held), ""
            self._send(text, 0)

    def _send(self, piece: str, tokens: int) -> None:
        self.delivered |= piece != ""
        self._on_chunk(piece, tokens)


def _pattern(secrets: list[str]) -> re.Pattern[str] | None:
    def forms(character: str) -> str:
        code = f"{ord(character):02x}"
        encoded = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in code)
        named = "".join(f"|&{name}" for name, value in html.entities.html5.items() if value == character)
        plain = re.escape(character)
        # Bounded repetitions keep the search linear.
        escaped = rf"\\{{1,8}}(?:u00{encoded}|{plain})|&#(?:0{{0,4}}{ord(character)}|[xX]0{{0,4}}{encoded});"
        return rf"(?:{plain}|%(?:25){{0,4}}{encoded}|{escaped}{named})"

    return re.compile("|".join("".join(map(forms, secret)) for secret in secrets)) if secrets else None
