"""The scikit-learn wrapper: its own checks where photos allow them, and the classifier behind it."""

from __future__ import annotations

import pickle
import sys
from unittest import SkipTest

import numpy as np
import pytest
from support.models import tiny
from test_classifier import photo

import cots

QUICK = {"method": "zeroshot", "views": 1}


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))


@pytest.fixture(scope="module")
def wrapper():
    """PhotoClassifier, here and not above: only the process that runs these tests imports scikit-learn."""
    pytest.importorskip("sklearn")
    from cots.sklearn import PhotoClassifier

    return PhotoClassifier


@pytest.fixture(scope="module")
def rows(wrapper):
    class Rows(wrapper):
        """Rows of numbers as photos of one row, so that scikit-learn's checks, which send tables, can be run."""

        def __init__(self, method="zeroshot", views=1):
            # The checks send 4,000 rows.
            super().__init__(method=method, views=views, settings={"batch_size": 64, "augmix": False})

        def _photos(self, X):
            return [np.uint8(np.clip(np.asarray(row, dtype=float)[None] * 20 + 128, 0, 255)) for row in np.asarray(X)]

        def fit(self, X, y):
            return super().fit(self._photos(X), y)

        def predict_proba(self, X):
            return super().predict_proba(self._photos(X))

        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            tags.input_tags.two_d_array = True
            tags.classifier_tags.poor_score = True  # the labels of random tables are no names of what a photo shows
            return tags

    vars(sys.modules[__name__])["Rows"] = Rows  # where pickle, which one of the checks uses, looks for it
    Rows.__qualname__ = "Rows"
    return Rows


INAPPLICABLE = {
    "check_estimator_sparse_tag": "a photo is never a sparse matrix",
    "check_estimator_sparse_array": "a photo is never a sparse matrix",
    "check_estimator_sparse_matrix": "a photo is never a sparse matrix",
}


@pytest.mark.filterwarnings("ignore:With one class")  # one of the checks
def test_sklearns_own_checks(rows):
    from sklearn.utils.estimator_checks import estimator_checks_generator

    passed, problems = set(), {}
    for estimator, check in estimator_checks_generator(rows()):
        if check.keywords.get("readonly_memmap"):
            continue  # repeats a check with a table in read-only memory, of which the photos are copies
        name = check.func.__name__
        try:
            check(estimator)
            passed.add(name)
        except SkipTest:
            pass
        except Exception as error:
            problems[name] = repr(error)
    assert problems.keys() == INAPPLICABLE.keys(), problems
    assert len(passed) >= 30


def test_it_is_the_classifier(wrapper):
    photos = [photo(seed) for seed in range(3)]
    names = ["tree", "car", "tree"]
    ours = wrapper(method="tpt+ecots", views=8, settings={"batch_size": 2}).fit(photos, names)
    theirs = cots.Classifier(tiny("vit"), ["car", "tree"], "tpt+ecots", views=8)(photos)
    assert ours.classes_.tolist() == ["car", "tree"]
    np.testing.assert_allclose(ours.predict_proba(photos), [one.probabilities for one in theirs], atol=1e-5)
    assert ours.predict(photos).tolist() == [one.label for one in theirs]
    assert ours.score(photos, names) == np.mean([a == b.label for a, b in zip(names, theirs, strict=True)])


def test_numbers_have_names_and_bad_photos_raise(wrapper):
    from sklearn.exceptions import NotFittedError

    numbered = wrapper(class_names=["car", "tree", "cat"], **QUICK).fit([photo(0), photo(1)], [2, 0])
    assert numbered.classifier_.task.classes == ("car", "cat")
    assert set(numbered.predict([photo(0)])) <= {0, 2}
    with pytest.raises(cots.InputError, match=r"photo 1: image file 'missing\.jpg'"):
        numbered.predict([photo(0), "missing.jpg"])
    with pytest.raises(cots.InputError, match="X has 1 photos and y 2 labels"):
        numbered.fit([photo(0)], [0, 1])
    with pytest.raises(NotFittedError):
        wrapper().predict([photo(0)])


def test_a_pickled_one_loads_the_model_again(wrapper):
    fitted = wrapper(**QUICK).fit([photo(0), photo(1)], ["car", "tree"])
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba([photo(2)]), fitted.predict_proba([photo(2)]))


def test_searches_clone_it(wrapper):
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV

    given = wrapper(template=["a {}.", "the {}."], **QUICK)
    assert clone(given).get_params() == given.get_params()
    search = GridSearchCV(given, {"template": ["a photo of a {}.", "a {}."]}, cv=2)
    search.fit([photo(seed) for seed in range(4)], ["car", "tree", "car", "tree"])
    assert search.best_params_["template"] in ("a photo of a {}.", "a {}.")
