from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys

import pytest
from pydantic_core import PydanticUndefined

from ianvs_specdec import backends as llm
from ianvs_specdec import drafters, lengths
from ianvs_specdec.backends import backend
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import table
from ianvs_specdec.drafters.autoregressive import Autoregressive
from ianvs_specdec.drafters.lookahead.drafter import DEFAULTS
from ianvs_specdec.drafters.options import DraftingOptions

OPTIONS = {name: method.options for name, method in drafters.METHODS.items()}


@pytest.mark.parametrize("name", drafters.METHODS)
def test_every_entry_names_a_class_that_takes_its_options(name):
    method = drafters.METHODS[name]
    module, _, cls = method.drafter.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), cls))
    declared = {key: field.get_default() for key, field in method.options.model_fields.items()}
    own = {key: declared[key] for key in declared if key not in DraftingOptions.model_fields}
    assert own == {
        key: PydanticUndefined if p.default is p.empty else p.default for key, p in signature.parameters.items()
    }
    lengths.create(drafters.default_length(name))
    made = backend(method.backend)
    assert (made.method, made.__name__) == (name, f"{method.backend[0].upper()}{method.backend[1:]}LLM")
    assert method.about in f"{made.__doc__[0].lower()}{made.__doc__[1:]}"
    assert getattr(llm, made.__name__) is pickle.loads(pickle.dumps(made)) is made


def test_documented_defaults_equal_those_of_the_code():
    told = {name: {option: default for option, _, default, _ in table(options)} for name, options in OPTIONS.items()}
    unset = [told["lookahead"][name] for name in ("level", "window", "guess")]
    assert unset == ["5", "4, with start=official 7", "2, with start=official 7"]
    assert DEFAULTS == {"prompt": (5, 4, 2), "official": (5, 7, 7)}
    assert told["suffix"]["min_match"] == "1, with a head 5"
    assert told["eagle"]["depth"] == "7, with tree=chain 6"


def test_create_applies_options_and_ignores_length():
    assert drafters.create("prompt_lookup", {"max_ngram": 2, "length": "fixed:3"})._max_ngram == 2
    assert all(isinstance(drafters.create(name), Autoregressive) for name in ("autoregressive", "none"))


def test_unknown_names_suggest_the_nearest_one():
    with pytest.raises(UserError, match=r"'prompt_lokup'. Did you mean 'prompt_lookup'"):
        drafters.create("prompt_lokup")
    with pytest.raises(UserError, match=r"'max_gram'. Did you mean 'max_ngram'") as caught:
        drafters.create("prompt_lookup", {"max_gram": 2})
    assert caught.value.key == "max_gram"
    with pytest.raises(UserError, match=r"'length'"):
        drafters.create("autoregressive", {"length": "fixed:3"})


def test_the_registry_imports_no_torch():
    code = (
        "import sys; from ianvs_specdec import drafters, lengths; drafters.method_of('prompt_lookup').options.names();"
        "lengths.create('fixed:3'); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
