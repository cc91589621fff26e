from __future__ import annotations

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.decoding import Stats
from ianvs_specdec.errors import UserError


@pytest.mark.parametrize(("spec", "tokens"), [("fixed:10", 10), ("fixed:0", 0), ("7", 7)])
def test_fixed(spec, tokens):
    assert lengths.create(spec).budget(Stats(5)) == tokens


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fixd:3", "Did you mean 'fixed'"),
        ("fixed", "for example fixed:10"),
        ("fixed:-1", "for example fixed:10"),
        ("fixed:many", "for example fixed:10"),
        ("", "Known: fixed"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_key(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        lengths.create(spec)
    assert caught.value.key == "length"
