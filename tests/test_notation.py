"""Names of methods with settings: what they mean, their one spelling, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cots
from cots._notation import read_part, split_methods
from cots.methods import Method, method_kind, method_title, parse_method


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tpt", "tpt"),
        (" tpt + none ", "tpt"),
        ("tpt+cots(k=4)", "tpt+cots(k=4)"),
        ("tpt( steps = 2 )+cots", "tpt(steps=2)+cots"),
        ("tpt(steps=1,lr=0.005)+cots(steps=50,t0=1,loss=l2,views=top_strong,k=none)", "tpt+cots"),
        ("tpt+cots(t0=0.50,k=4)", "tpt+cots(k=4,t0=0.5)"),
        ("tpt+ecots(alpha=0.0)", "tpt+ecots(alpha=0)"),
        ("tpt+cots(lr=1e+5)", "tpt+cots(lr=100000)"),
        ("tpt+cots(lr=1e+25)", "tpt+cots(lr=1e25)"),
        ("tps(reselect=false)", "tps(reselect=false)"),
        ("tda(soc)+cots", "tda(soc)+cots"),
        ("tda(positive=[2, 5])", "tda"),
        ("tda(positive=[2,5.5])", "tda(positive=[2,5.5])"),
        ("tda(soc(weight=20,steps=3),cache_from=confident)", "tda(soc,weight=20,steps=3,cache_from=confident)"),
        ("tda(soc,weight=20)", "tda(soc,weight=20)"),
        ("tda(soc(weight=30))", "tda(soc)"),
    ],
)
def test_a_method_has_one_name(text, name):
    method = parse_method(text)
    assert str(method) == name
    assert parse_method(name) == method == parse_method(str(parse_method(text, simplify=False)))
    assert hash(parse_method(name)) == hash(method)
    assert name.partition("+")[0] == method.base


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpt+cots(kk=3)", "Unknown setting of calibrator 'cots': 'kk'. Did you mean 'k'"),
        ("tpt+cots(views=1)", "views of cots must be a word, not 1. Its default is top_strong"),
        ("tpt(steps=two)", "steps of tpt must be a number, not two. Its default is 1"),
        ("tps(reselect=1)", "reselect of tps must be true or false, not 1"),
        ("tda(positive=2)", r"positive of tda must be a list such as \[2,5\], not 2"),
        ("tda(state=1)", "state of tda is filled in by cots and cannot be set"),
        ("tpt+dac(text_features=1)", "text_features of dac is filled in"),
        ("tpt(steps=2,steps=3)", "sets steps twice"),
        ("tda(soc(weight=2),weight=3)", r"tda\(soc\) sets weight twice"),
        ("tda(soc(rho=0.2))", r"Unknown setting of the prompt of tda\(soc\): 'rho'. Known: lr, steps, weight"),
        ("tda(tpt(steps=2))", r"Unknown adapter 'tda\(tpt\)'. Did you mean 'tda\(otpt\)'"),
        ("tda(tda(soc(steps=2)))", "is not a method's name with settings"),
        ("cots(k=3)", r"'cots\(k=3\)' is a calibrator; put an adapter before it, such as tpt\+cots\(k=3\)"),
        ("tpt+cots(k=)", "a setting with the value ''; values are numbers, words"),
        ("tpt+cots(k=4", r"Write it as cots\(k=4,loss=l1\)"),
        ("tpt+cots(k=4)x", "Write it as"),
        ("tpt+cots(4)", "Unknown calibrator"),
        ("tpt+cots(k=4,soc)", "Write it as"),
        ("tpt+cots(views=[[1]])", r"values are numbers, words, true, false, none and lists such as \[2,5\]"),
        ("tpt++cots", r"such as tpt\+cots, not"),
        ("+cots", r"such as tpt\+cots, not"),
        ("", r"such as tpt\+cots, not"),
        ("tpt+cots+cots(k=4)", r"such as tpt\+cots, not"),
        ("tpt+cots(" + "k=1," * 100 + ")", "at most 300 characters"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(cots.InputError, match=message):
        parse_method(text)


def test_lists_are_split_outside_parentheses():
    assert split_methods("tpt, tpt+cots(k=4,loss=l1),,tda(positive=[2,5])") == (
        *("tpt", "tpt+cots(k=4,loss=l1)", "tda(positive=[2,5])"),
    )


@given(st.text(alphabet="atps+()[]=,.1e- ", max_size=30))
def test_any_text_is_read_or_refused_with_an_input_error(text):
    try:
        method = parse_method(text)
    except cots.InputError:
        return
    assert parse_method(str(method)) == method
    read_part(method.base)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "k": st.integers(1, 63),
            "loss": st.sampled_from(["l1", "l2", "kl"]),
            "t0": st.floats(1e-3, 1e20),
            "lr": st.floats(allow_nan=False, allow_infinity=False),
            "steps": st.integers(0, 10**6),
        },
    )
)
def test_settings_survive_their_spelling(settings):
    method = Method(adapter="tpt", calibrator="cots", calibrator_settings=tuple(settings.items()))
    assert dict(parse_method(str(method), simplify=False).calibrator_settings) == settings


def test_overridden_settings_keep_their_default():
    method = parse_method("ctpt(weight=50,steps=1)+cots(k=4)", simplify=False)
    assert str(method.simplified({("ctpt", "weight")})) == "ctpt(weight=50)+cots(k=4)"


def test_titles_and_kinds():
    assert method_title("tpt(steps=2)+cots(k=4,loss=l1)") == "TPT (steps=2) + CoTS (k=4, loss=l1)"
    assert method_title("tpt+cots(steps=50)") == "TPT + CoTS (steps=50)", "in a run whose settings say otherwise"
    assert method_title("not-installed(x=1)") == "not-installed(x=1)"
    kinds = [method_kind(name) for name in ("tpt(steps=2)", "tda(soc,weight=2)+cots", "unknown(x=1)", ")(")]
    assert kinds == ["episodic", "online", "", ""]
    assert parse_method("tpt(steps=2)+cots(k=4)").place == parse_method("tpt+cots").place
