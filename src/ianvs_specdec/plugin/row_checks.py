"""Checks whether a module can request and score the rows of a data file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.judge import JudgeSettings
from ianvs_specdec.backends.prompts import chat_template
from ianvs_specdec.benchmarks.rows import SHOWN, DataRow, RowReader, normalize_row, parse_query
from ianvs_specdec.benchmarks.scorers import LOGPROB, references_of
from ianvs_specdec.common.errors import ChatTemplateError, UserError, warn_once
from ianvs_specdec.common.types import Sampling, messages_of
from ianvs_specdec.models.templates import render, template_variables

TOKENS = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "")


class RowChecks:
    """Row checks of a module, called by our host."""

    whole_rows: ClassVar[bool] = True
    """Our host passes rows with further fields whole."""

    @classmethod
    def check_rows(cls, hyperparameters: dict[str, Any], rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
        """Place and reason of every row that cannot be requested or scored with these hyperparameters."""
        judged = JudgeSettings.parse(hyperparameters) is not None
        return RowReader(lambda part, place: f"the {part}", judged).faults(rows)

    @classmethod
    def describe_rows(cls, rows: Iterable[DataRow]) -> Iterator[str]:
        """The request and the scorer of the first row, and the number of rows per scorer, a line each."""
        scorers = Counter[str]()
        for place, question, answer in rows:
            question, answer = normalize_row(question, answer)
            query = parse_query(question, answer, "", place)
            if not scorers:
                text = repr("\n\n".join((query.system, *query.turns)).strip())
                short = text if len(text) <= 3 * SHOWN else f"{text[: 2 * SHOWN]} ... {text[-SHOWN:]}"
                yield f"{place} becomes {short}; scorer {query.scorer}, answer {answer!r:.80}"
            unscored = query.scorer == "text" and not any(references_of(answer))
            scorers[query.scorer + " without a reference answer" * unscored] += 1
        yield f"scorers: {', '.join(f'{count} {name}' for name, count in scorers.items())}"


def without_letters(llm: LLM, rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
    """Place and reason of the first row whose scorer needs log-probabilities that the back end does not return."""
    if llm.letters:
        return
    for place, question, answer in rows:
        with suppress(UserError):
            if parse_query(*normalize_row(question, answer), "", place).scorer == LOGPROB:
                yield (
                    place,
                    f"scorer {LOGPROB}: the back end {llm.backend} returns no log-probabilities of letters: use scorer "
                    "choice, or another back end, such as autoregressive, huggingface, llamacpp or api",
                )
                return


def _kind(question: Any) -> tuple[bool, bool]:
    """Whether a row has a system prompt and several turns."""
    fields = question if isinstance(question, Mapping) else {}
    inner = fields.get("question")
    own = inner if isinstance(inner, Mapping) else fields
    turns = own.get("turns")
    return bool(own.get("system") or fields.get("system")), isinstance(turns, (list, tuple)) and len(turns) > 1


def warn_unread_variables(llm: LLM, sampling: Sampling) -> None:
    """Warn of variables that a local model's chat template does not read."""
    given = sampling.chat_template_kwargs.keys()
    if given and _is_local(llm) and (unread := given - template_variables(chat_template(llm))):
        warn_once(f"chat_template_kwargs: the chat template of {llm.model} never reads {', '.join(sorted(unread))}")


def refused_by_template(llm: LLM, sampling: Sampling, rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
    """Place and reason of rows that a local model's chat template rejects, one of each kind: with or without system
    prompt, with one or several turns."""
    template, seen = chat_template(llm) if _is_local(llm) else "", set[tuple[bool, bool]]()
    tokenizer = SimpleNamespace(chat_template=template, special_tokens_map=TOKENS)
    for place, question, answer in rows if template else ():
        if (kind := _kind(question)) in seen:
            continue
        try:
            query = parse_query(*normalize_row(question, answer), "", place)
            seen.add(kind)
            render(tokenizer, messages_of(query, ["..."] * (len(query.turns) - 1)), sampling)
        except ChatTemplateError as error:
            yield place, f"model {llm.model}: {error}"
        except UserError:
            continue


def _is_local(llm: LLM) -> bool:
    return llm.truncate_prompts is not None and Path(llm.model).exists()
