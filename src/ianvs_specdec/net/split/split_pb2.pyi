from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPLIT: _ClassVar[Mode]
    STREAM: _ClassVar[Mode]

class States(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLOAT32: _ClassVar[States]
    BFLOAT16: _ClassVar[States]
    INT8: _ClassVar[States]

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE: _ClassVar[Kind]
    READ: _ClassVar[Kind]
    PROMPT: _ClassVar[Kind]

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILED: _ClassVar[Code]
    INVALID: _ClassVar[Code]
    BUSY: _ClassVar[Code]
    ANOTHER_MODEL: _ClassVar[Code]
    UNAUTHENTICATED: _ClassVar[Code]
    IDLE: _ClassVar[Code]
SPLIT: Mode
STREAM: Mode
FLOAT32: States
BFLOAT16: States
INT8: States
TREE: Kind
READ: Kind
PROMPT: Kind
FAILED: Code
INVALID: Code
BUSY: Code
ANOTHER_MODEL: Code
UNAUTHENTICATED: Code
IDLE: Code

class Question(_message.Message):
    __slots__ = ("timed",)
    TIMED_FIELD_NUMBER: _ClassVar[int]
    timed: bool
    def __init__(self, timed: _Optional[bool] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "fingerprint", "tokenizer", "vocabulary", "window", "ends", "most_draft", "layer", "numerics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    MOST_DRAFT_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: bytes
    tokenizer: str
    vocabulary: int
    window: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    most_draft: int
    layer: int
    numerics: str
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[bytes] = ..., tokenizer: _Optional[str] = ..., vocabulary: _Optional[int] = ..., window: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ..., most_draft: _Optional[int] = ..., layer: _Optional[int] = ..., numerics: _Optional[str] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("draft", "open", "cut", "slice")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    draft: Draft
    open: Open
    cut: Cut
    slice: Slice
    def __init__(self, draft: _Optional[_Union[Draft, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ..., slice: _Optional[_Union[Slice, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("fingerprint", "prompt", "output", "max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop", "mode", "task")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: str
    stop: _containers.RepeatedScalarFieldContainer[str]
    mode: Mode
    task: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., seed: _Optional[str] = ..., stop: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[Mode, str]] = ..., task: _Optional[str] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("tokens", "up", "guess")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    GUESS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    up: _containers.RepeatedScalarFieldContainer[int]
    guess: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., up: _Optional[_Iterable[int]] = ..., guess: _Optional[int] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("fingerprint", "layer", "states", "numerics")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    layer: int
    states: States
    numerics: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., layer: _Optional[int] = ..., states: _Optional[_Union[States, str]] = ..., numerics: _Optional[str] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("rows", "states", "ended")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    states: bytes
    ended: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., states: _Optional[bytes] = ..., ended: _Optional[_Iterable[int]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("answer", "begins", "path", "more", "kind", "up")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    answer: int
    begins: Open
    path: _containers.RepeatedScalarFieldContainer[int]
    more: int
    kind: Kind
    up: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, answer: _Optional[int] = ..., begins: _Optional[_Union[Open, _Mapping]] = ..., path: _Optional[_Iterable[int]] = ..., more: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., up: _Optional[_Iterable[int]] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("verdict", "tokens", "opened", "end", "error", "chosen")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    tokens: Tokens
    opened: Opened
    end: End
    error: Error
    chosen: Chosen
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., chosen: _Optional[_Union[Chosen, _Mapping]] = ...) -> None: ...

class Chosen(_message.Message):
    __slots__ = ("tokens", "micros")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MICROS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    micros: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., micros: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("node", "token", "budget", "tenths")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    TENTHS_FIELD_NUMBER: _ClassVar[int]
    node: int
    token: int
    budget: int
    tenths: int
    def __init__(self, node: _Optional[int] = ..., token: _Optional[int] = ..., budget: _Optional[int] = ..., tenths: _Optional[int] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("tokens", "tenths")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENTHS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    tenths: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., tenths: _Optional[int] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("finish_reason", "prefill", "work")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    finish_reason: str
    prefill: int
    work: int
    def __init__(self, finish_reason: _Optional[str] = ..., prefill: _Optional[int] = ..., work: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: Code
    message: str
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., message: _Optional[str] = ...) -> None: ...
