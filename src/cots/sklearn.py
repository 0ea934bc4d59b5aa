"""The classifier as a scikit-learn estimator, for pipelines, searches and metrics; needs scikit-learn.

from cots.sklearn import PhotoClassifier

scores = cross_val_score(PhotoClassifier(), paths, names, cv=5)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._errors import CotsError, InputError
from .classifier import Classifier
from .prompts import DEFAULT_TEMPLATE, Template
from .rounds import Views

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import Tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError:

    def __getattr__(name: str) -> Any:
        if name == "PhotoClassifier":
            raise CotsError("cots.sklearn needs scikit-learn: run pip install scikit-learn.")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

else:

    class PhotoClassifier(ClassifierMixin, BaseEstimator):
        """A zero-shot classifier of photos: `fit` only takes the class names from the labels.

        - X: a list or array of photos, as for `cots.Classifier`
        - y: class names, or indices into `class_names`
        - settings: further parameters of `cots.Classifier` by name; the others are its own too
        """

        def __init__(
            self,
            model: Any = "mini",
            method: str = "tpt+ecots",
            *,
            class_names: Sequence[str] | None = None,
            template: Template = DEFAULT_TEMPLATE,
            views: Views | None = None,
            seed: int = 0,
            settings: dict[str, Any] | None = None,
        ) -> None:
            self.model = model
            self.method = method
            self.class_names = class_names
            self.template = template
            self.views: Views | None = views
            self.seed = seed
            self.settings = settings

        def fit(self, X: Any, y: Any) -> "PhotoClassifier":
            """Take the classes from `y` and load the model."""
            if y is None:
                raise ValueError("PhotoClassifier requires y to be passed, but the target y is None.")
            labels = column_or_1d(y, warn=True)
            check_classification_targets(labels)
            if len(labels) != len(X):
                raise InputError(f"X has {len(X)} photos and y {len(labels)} labels; pass one label per photo.")
            self.classes_ = np.unique(labels)
            self.classifier_ = self._load()
            return self

        def _load(self) -> Classifier:
            names = [str(label) for label in self.classes_]
            if self.class_names is not None:
                names = [self.class_names[int(label)] for label in self.classes_]
            return Classifier(
                self.model, names, self.method, template=self.template, views=self.views, seed=self.seed,
                **(self.settings or {}),
            )  # fmt: skip

        def __getstate__(self) -> dict[str, Any]:
            state: Any = super().__getstate__()
            # A copy in another process loads the model itself.
            return {name: value for name, value in state.items() if name != "classifier_"}

        def predict_proba(self, X: Any) -> np.ndarray:
            """Probabilities (photos, classes), columns as in `classes_`; a photo that cannot be read raises."""
            check_is_fitted(self, "classes_")
            if not hasattr(self, "classifier_"):
                self.classifier_ = self._load()
            predictions = self.classifier_(list(X))
            for index, prediction in enumerate(predictions):
                if prediction.error is not None:
                    raise InputError(f"photo {index}: {prediction.error}")
            return np.array([prediction.probabilities for prediction in predictions]).reshape(-1, len(self.classes_))

        def predict(self, X: Any) -> np.ndarray:
            """The most probable class of each photo."""
            best = self.predict_proba(X).argmax(1)  # first, because it checks that `classes_` exists
            return self.classes_[best]

        def __sklearn_tags__(self) -> Tags:
            tags = super().__sklearn_tags__()
            # X contains photos, not numbers.
            tags.input_tags.two_d_array = False
            tags.no_validation = True
            return tags
