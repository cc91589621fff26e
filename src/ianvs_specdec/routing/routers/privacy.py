"""PrivacyRouter: a query that holds personal data stays on the edge, whatever the router inside would do with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import regex
from pydantic import Field

from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import UserError, optional_import, unknown
from ianvs_specdec.common.settings import Settings, Share, Text, described_as, validator
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.routers.base import Decision
from ianvs_specdec.routing.routers.constrained import PRIVATE, AnyRouter, ConstrainedRouter
from ianvs_specdec.routing.routers.personal_data import KINDS, kinds_in

SECONDS = 0.2
"""A pattern of the user's that has not come to an end after this time counts as found: what could not be looked
through stays on the edge."""


class DetectorSettings(Settings):
    noun = "key of detector"

    model: Text = Field(description="a spaCy model, by name or folder")
    language: Text = "en"
    entities: list[str] | None = None
    threshold: Share = 0.5


def _detector(value: str | dict[str, Any]) -> DetectorSettings:
    try:
        return DetectorSettings.parse({"model": value} if isinstance(value, str) else value)
    except UserError as error:
        faults = "; ".join(map(str, (error, *error.others)))
        raise UserError(f"detector: {faults}", key="detector") from error


def _check_kinds(value: list[str]) -> None:
    for kind in value:
        if kind not in KINDS:
            raise unknown("kind of personal data", kind, KINDS, key="kinds")


def _compiled(value: Mapping[str, str | list[str]]) -> list[tuple[str, Any]]:
    """Kind and compiled expression of each of the user's patterns."""
    compiled = []
    for kind, expressions in value.items():
        for expression in [expressions] if isinstance(expressions, str) else expressions:
            try:
                compiled.append((kind, regex.compile(expression)))
            except regex.error as error:
                raise UserError(f"patterns: {kind}: {expression!r}: {error}", key="patterns") from error
    return compiled


Kinds = Annotated[list[str], validator(_check_kinds)]
Patterns = Annotated[
    dict[Text, Text | list[Text]], validator(_compiled), described_as("a mapping from kinds to regular expressions")
]
DetectorModel = Annotated[str | dict[str, Any], validator(_detector)]


class PrivacyRouter(ConstrainedRouter):
    """The router inside is not asked for a private query, so that it cannot ask the cloud either. All turns, the system
    text and the prediction are searched for ``kinds`` of personal data, the user's ``patterns`` (kind -> regular
    expressions) and what a Presidio ``detector`` (a spaCy model, or ``DetectorSettings``) finds.

    The decision of a private query has score 0, the reason and, under ``private``, the kinds; never the text.
    """

    def __init__(
        self,
        router: AnyRouter = "RandomRouter",
        kinds: Kinds | None = None,
        patterns: Patterns | None = None,
        detector: DetectorModel | None = None,
    ) -> None:
        super().check_hyperparameters(locals())
        super().__init__(router)
        self.kinds = KINDS if kinds is None else tuple(kinds)
        self._patterns = _compiled(patterns or {})
        self._detector = None if detector is None else Detector(_detector(detector))

    @classmethod
    def check_hyperparameters(cls, hyperparameters: Mapping[str, Any]) -> None:
        super().check_hyperparameters(hyperparameters)
        if hyperparameters.get("detector") is not None:
            with optional_import():
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

    def __init__(self, settings: DetectorSettings) -> None:
        model, language = settings.model, settings.language
        with optional_import():
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
        for entity in settings.entities or ():
            if entity not in known:
                raise unknown("entity of the detector", entity, known, key="detector")
        self._asked = {
            "language": language,
            "entities": settings.entities,
            "score_threshold": settings.threshold,
        }

    def kinds_in(self, text: str) -> list[str]:
        return sorted({found.entity_type.lower() for found in self._analyzer.analyze(text=text, **self._asked)})
