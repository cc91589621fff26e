"""The options of each drafting method. Imports no torch, so that a job is checked before anything is loaded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ianvs_specdec import lengths
from ianvs_specdec.common.settings import Count, ExistingPath, Settings, described_as, validator

Acceptance = Literal["rejection", "coupled", "typical"]
Tree = Literal["static", "dynamic", "chain"]
Head = Annotated[ExistingPath, Field(description="the folder of the head")]
Datastore = Annotated[ExistingPath, Field(description="a file that specdec datastore wrote")]
Length = Annotated[
    Any,
    validator(lengths.create),
    described_as("a speculation length, such as fixed:10, full or goodput"),
    Field(description="how many tokens to draft in each step"),
]


class MethodOptions(Settings):
    """What all methods have."""

    acceptance: Acceptance = Field("rejection", description="how sampled drafts are accepted")


class DraftingOptions(MethodOptions):
    """What all methods that draft have."""

    length: Length = "full"


class PromptLookupOptions(DraftingOptions):
    length: Length = "fixed:10"
    max_ngram: Count = Field(3, description="the longest n-gram that is looked up, in tokens")


class PredictedOutputOptions(DraftingOptions):
    length: Length = "fixed:64"
    resync: Count = Field(1, description="how many tokens must match again after a miss")


class LookaheadOptions(DraftingOptions):
    level: Annotated[int, Field(ge=2)] | None = Field(
        None, description="the length of n-grams, in tokens", json_schema_extra={"unset": "5"}
    )
    window: Count | None = Field(
        None, description="the width of the lookahead branch", json_schema_extra={"unset": "4, with start=official 7"}
    )
    guess: Count | None = Field(
        None, description="the n-grams verified in one step", json_schema_extra={"unset": "2, with start=official 7"}
    )
    start: Literal["official", "prompt"] = Field("prompt", description="what the branch starts from")


class RestOptions(DraftingOptions):
    datastore: Datastore
    nodes: Count = Field(32, description="the most tokens in a tree of drafts")


class SuffixOptions(DraftingOptions):
    datastore: Datastore | None = None
    head: Head | None = Field(None, description="an EAGLE head, which drafts where the match is short")
    min_match: Count | None = Field(
        None, description="the shortest match that is drafted from", json_schema_extra={"unset": "1, with a head 5"}
    )


class RecyclingOptions(DraftingOptions):
    nodes: Count = Field(16, description="the most tokens in a tree of drafts")
    successors: Count = Field(8, description="the candidates kept for each context")
    order: Count = Field(2, description="the longest context, in tokens")


class DraftModelOptions(DraftingOptions):
    length: Length = "fixed:5"
    draft: ExistingPath = Field(description="the folder of the draft model")
    branches: Count = Field(1, description="the candidates for each drafted position")


class MtpOptions(DraftingOptions):
    depth: Count | None = Field(
        None, description="the tokens drafted in a row", json_schema_extra={"unset": "the number of MTP layers"}
    )


class MedusaOptions(DraftingOptions):
    head: Head
    tree: Tree = Field("dynamic", description="the shape of drafts")
    nodes: Count = Field(8, description="the most tokens in a dynamic tree")


class EagleOptions(DraftingOptions):
    head: Head
    tree: Tree = Field("dynamic", description="the shape of drafts")
    total_tokens: Count | None = Field(
        None, description="the most tokens in a dynamic tree", json_schema_extra={"unset": "60 with tree=dynamic"}
    )
    depth: Count | None = Field(
        None, description="the steps of the head for a draft", json_schema_extra={"unset": "7, with tree=chain 6"}
    )
    eagle_topk: Count | None = Field(
        None, description="the breadth of a dynamic tree", json_schema_extra={"unset": "10 with tree=dynamic"}
    )


class DFlashOptions(DraftingOptions):
    head: Head


class OwnOptions(DraftingOptions):
    drafter: Annotated[str, described_as("a file and a class in it, path/to/file.py:Class")]
    drafter_options: dict[str, Any] | None = Field(None, description="arguments of its constructor")
