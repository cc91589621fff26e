"""Whether a module of a job could ask and score the rows of a data file, told before a model is asked."""

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
from ianvs_specdec.models.templates import reads, render

TOKENS = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "")


class RowsChecked:
    """A module of a job that can be asked whether it could work with the rows."""

    whole_rows: ClassVar[bool] = True
    """Our host hands on rows with further fields whole."""

    @classmethod
    def check_rows(cls, hyperparameters: dict[str, Any], rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
        """Place and reason of every row that could not be asked or scored with these hyperparameters."""
        judged = JudgeSettings.parse(hyperparameters) is not None
        return RowReader(lambda part, place: f"the {part}", judged).faults(rows)

    @classmethod
    def describe_rows(cls, rows: Iterable[DataRow]) -> Iterator[str]:
        """How the first row is asked and scored, and how many rows each scorer has, a line each."""
        scorers = Counter[str]()
        for place, question, answer in rows:
            question, answer = normalize_row(question, answer)
            query = parse_query(question, answer, "", place)
            if not scorers:
                text = repr("\n\n".join((query.system, *query.turns)).strip())
                short = text if len(text) <= 3 * SHOWN else f"{text[: 2 * SHOWN]} ... {text[-SHOWN:]}"
                yield f"{place} is asked as {short}; scorer {query.scorer}, answer {answer!r:.80}"
            lacking = query.scorer == "text" and not any(references_of(answer))
            scorers[query.scorer + " without an answer to compare with" * lacking] += 1
        yield f"scorers: {', '.join(f'{count} {name}' for name, count in scorers.items())}"


def without_letters(llm: LLM, rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
    """Place and reason of the first row whose scorer compares probabilities that the back end does not give."""
    if llm.letters:
        return
    for place, question, answer in rows:
        with suppress(UserError):
            if parse_query(*normalize_row(question, answer), "", place).scorer == LOGPROB:
                yield (
                    place,
                    f"scorer {LOGPROB}: the back end {llm.backend} gives no log-probabilities of letters: use scorer "
                    "choice, or another back end, such as autoregressive, huggingface, llamacpp or api",
                )
                return


def _kind(question: Any) -> tuple[bool, bool]:
    """Whether a row has a system prompt, and several turns, without a look at the rest of it."""
    fields = question if isinstance(question, Mapping) else {}
    asked = fields.get("question")
    own = asked if isinstance(asked, Mapping) else fields
    turns = own.get("turns")
    return bool(own.get("system") or fields.get("system")), isinstance(turns, (list, tuple)) and len(turns) > 1


def warn_unread_variables(llm: LLM, sampling: Sampling) -> None:
    """Name the variables that the chat template of a model that is here never reads."""
    given = sampling.chat_template_kwargs.keys()
    if given and _template_is_here(llm) and (unread := given - reads(chat_template(llm))):
        warn_once(f"chat_template_kwargs: the chat template of {llm.model} never reads {', '.join(sorted(unread))}")


def refused_by_template(llm: LLM, sampling: Sampling, rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
    """Place and reason of rows that a local model's chat template refuses, one of each kind: with a system prompt or
    without, of one turn or several."""
    template, seen = chat_template(llm) if _template_is_here(llm) else "", set[tuple[bool, bool]]()
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


def _template_is_here(llm: LLM) -> bool:
    return llm.truncate_prompts is not None and Path(llm.model).exists()
