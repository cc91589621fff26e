"""PrivacyRouter: a query that holds personal data stays on the edge, whatever the router inside would do with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import regex

from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import UserError, packages, unknown
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.base import Decision, number
from ianvs_specdec.routing.routers.composed import PRIVATE, ConstrainedRouter
from ianvs_specdec.routing.routers.personal_data import KINDS, kinds_in

SECONDS = 0.2
"""A pattern of the user's that has not come to an end after this time counts as found: what could not be looked
through stays on the edge."""

DETECTOR = ("model", "language", "entities", "threshold")


class PrivacyRouter(ConstrainedRouter):
    """``router``: see ``ConstrainedRouter``; it is not asked for a private query, so that it cannot ask the cloud
    either. All turns, the system text and expected answers are looked through.

    - ``kinds``: which kinds of personal data to look for (default: all of ``personal_data.KINDS``);
    - ``patterns``: a mapping from the name of a further kind to a regular expression, or to a list of them;
    - ``detector``: a spaCy model (name or folder) for Microsoft Presidio, which knows names and places, too; or a
      mapping with ``model``, ``language`` (default en), ``entities`` (default: all it knows) and ``threshold`` (0.5).

    The decision of a private query has score 0, the reason and, under ``private``, the kinds; never the text.
    """

    def __init__(
        self, router: Any = "RandomRouter", kinds: Any = None, patterns: Any = None, detector: Any = None
    ) -> None:
        super().__init__(router)
        self.kinds = _kinds(kinds)
        self._patterns = _compiled(patterns)
        self._detector = None if detector is None else Detector(**_detector(detector))

    @staticmethod
    def check(given: Mapping[str, Any]) -> None:
        _kinds(given["kinds"])
        _compiled(given["patterns"])
        if given["detector"] is not None:
            _detector(given["detector"])
            with packages():
                for package in ("presidio_analyzer", "spacy"):
                    if importlib.util.find_spec(package) is None:
                        raise ModuleNotFoundError(name=package)

    def score(self, query: Query) -> float:
        return 0.0 if self.private(query) else super().score(query)

    def decide(self, data: Any) -> Decision:
        found = self.private(query_of_row(data))
        if found:
            return Decision(0.0, False, f"personal data: {', '.join(found)}", {PRIVATE: found})
        return self.ask(data)

    def private(self, query: Query) -> list[str]:
        """The kinds of personal data in a query."""
        found: list[str] = []
        for text in (*query.turns, query.system, *query.prediction):
            found += [kind for kind in self._kinds_in(text) if kind not in found]
        return found

    def _kinds_in(self, text: str) -> Iterator[str]:
        yield from kinds_in(text, self.kinds)
        for kind, expression in self._patterns:
            try:
                held = expression.search(text, timeout=SECONDS) is not None
            except TimeoutError:
                held = True
            if held:
                yield kind
        if self._detector is not None and text:
            yield from self._detector.kinds_in(text)


class Detector:
    """Presidio with a spaCy model. Raises UserError where the package or the model is not there."""

    def __init__(self, model: str, language: str, entities: list[str] | None, threshold: float) -> None:
        with packages():
            import spacy
            from presidio_analyzer import AnalyzerEngine
            from presidio_analyzer.nlp_engine import NlpEngineProvider

        # Presidio fetches a model that it does not find; a job does not install anything.
        if not spacy.util.is_package(model) and not Path(model).exists():
            raise UserError(
                f"detector: there is no spaCy model {model}: name a folder, or python -m spacy download {model}",
                key="detector",
            )
        models = [{"lang_code": language, "model_name": model}]
        provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models})
        self._analyzer = AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=[language])
        known = self._analyzer.get_supported_entities(language)
        for entity in entities or ():
            if entity not in known:
                raise unknown("entity of the detector", entity, known, key="detector")
        self._asked = {"language": language, "entities": entities, "score_threshold": threshold}

    def kinds_in(self, text: str) -> list[str]:
        return sorted({found.entity_type.lower() for found in self._analyzer.analyze(text=text, **self._asked)})


def _kinds(value: Any) -> tuple[str, ...]:
    if value is None:
        return KINDS
    if not isinstance(value, (list, tuple)):
        raise UserError(f"kinds must be a list, not {value!r}. Known: {', '.join(KINDS)}", key="kinds")
    for kind in value:
        if kind not in KINDS:
            raise unknown("kind of personal data", kind, KINDS, key="kinds")
    return tuple(value)


def _compiled(value: Any) -> list[tuple[str, Any]]:
    """Kind and compiled expression of each of the user's patterns."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise UserError(
            f"patterns must be a mapping from kinds to regular expressions, not {type(value).__name__}", key="patterns"
        )
    compiled = []
    for kind, expressions in value.items():
        for expression in expressions if isinstance(expressions, (list, tuple)) else [expressions]:
            if not isinstance(kind, str) or not isinstance(expression, str) or not expression:
                raise UserError(f"patterns: {kind}: must be a regular expression, not {expression!r}", key="patterns")
            try:
                compiled.append((kind, regex.compile(expression)))
            except regex.error as error:
                raise UserError(f"patterns: {kind}: {expression!r}: {error}", key="patterns") from error
    return compiled


def _detector(value: Any) -> dict[str, Any]:
    """Arguments of ``Detector``."""
    given = {"model": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("model"), str) or not given["model"]:
        raise UserError("detector must be a spaCy model, or a mapping with model", key="detector")
    for name in given:
        if name not in DETECTOR:
            raise unknown("key of detector", name, DETECTOR, key="detector")
    language, entities = given.get("language", "en"), given.get("entities")
    if not isinstance(language, str) or not language:
        raise UserError(f"detector: language must be a code such as en, not {language!r}", key="detector")
    if entities is not None and not (isinstance(entities, list) and all(isinstance(item, str) for item in entities)):
        raise UserError(f"detector: entities must be a list of names, not {entities!r}", key="detector")
    threshold = number("detector: threshold", given.get("threshold", 0.5), low=0.0, high=1.0)
    return {"model": given["model"], "language": language, "entities": entities, "threshold": threshold}
