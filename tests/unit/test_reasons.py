"""Reasons: every code can be said to a person."""

import string

import pytest

from carnator_core.reasons import _SENTENCES, Code, Decision, Reason


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_sentence_without_leftover_fields(code: Code) -> None:
    fields = {name for _, name, _, _ in string.Formatter().parse(_SENTENCES[code]) if name}
    reason = Reason.of(code, **dict.fromkeys(fields, 0.5))
    assert reason.code is code
    assert len(reason.sentence.split()) >= 4
    assert "{" not in reason.sentence


def test_no_sentence_is_without_a_code() -> None:
    assert set(_SENTENCES) == set(Code)


def test_two_codes_never_say_the_same() -> None:
    assert len(set(_SENTENCES.values())) == len(Code)


def test_a_missing_value_is_an_error_and_not_a_hole_in_the_sentence() -> None:
    with pytest.raises(KeyError):
        Reason.of(Code.KEY_DIFFERS)


def test_decisions_and_codes_are_plain_lower_case_strings() -> None:
    for word in [*Decision, *Code]:
        assert word.value == word.value.lower()
        assert word.value.replace("_", "").isalpha()
