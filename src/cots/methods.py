"""Methods by name, `adapter+calibrator` such as `tpt(steps=2)+cots`, and what they give for an image: a Prediction.

How names are written is in `_notation.py`; what they mean, and which settings they may have, is here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ._arrays import check_finite, to_host
from ._errors import InputError, check_fraction, unknown_name
from ._notation import Part, Value, read_part, split_method, write_part, write_value
from ._registry import Registry
from .adapters import ADAPTERS
from .calibrators import CALIBRATORS, TEXT
from .presence import Presence

if TYPE_CHECKING:
    from torch import Tensor

    from .adaptation import Outcome
    from .prompts import Task


Settings = tuple[tuple[str, Value], ...]
_FILLED_IN = ("state", *TEXT)  # settings that a pipeline fills in
_SHOWN = 3  # values of a tuple in the repr of a prediction


@dataclass(frozen=True, kw_only=True, repr=False)
class Method:
    """An adapter and a calibrator, by name, with the settings that the method's name has; no calibrator means `none`.

    adapter, calibrator: registered names. adapter_settings, calibrator_settings: pairs in the order of the functions'
    parameters; other settings keep their defaults.
    """

    adapter: str
    calibrator: str = "none"
    adapter_settings: Settings = ()
    calibrator_settings: Settings = ()

    def __str__(self) -> str:
        return self.base if self.calibrator == "none" else f"{self.base}+{self.correction}"

    def __repr__(self) -> str:
        return f"Method({str(self)!r})"

    @property
    def base(self) -> str:
        """The adapter as written, `tpt(steps=2)`: what methods with the same logits share."""
        return write_part(self.adapter, dict(self.adapter_settings))

    @property
    def correction(self) -> str:
        """The calibrator as written, `cots(k=4)`."""
        return write_part(self.calibrator, dict(self.calibrator_settings))

    @property
    def title(self) -> str:
        """The title for tables and figures."""
        title = _title(ADAPTERS.info(self.adapter).title, self.adapter_settings)
        if self.calibrator == "none":
            return title
        return f"{title} + {_title(CALIBRATORS.info(self.calibrator).title, self.calibrator_settings)}"

    @property
    def place(self) -> tuple[int, int]:
        """Position in tables, lowest first."""
        return ADAPTERS.info(self.adapter).place, CALIBRATORS.info(self.calibrator).place

    def uses_one_view(self, settings: Mapping[str, Any] | None = None) -> bool:
        """Whether a photo needs only its weak view, under these settings of the adapter."""
        given = {**(settings or {}), **dict(self.adapter_settings)}
        return CALIBRATORS.info(self.calibrator).one_view and ADAPTERS.info(self.adapter).uses_one_view(given)

    def check_settings(self, adapter: Mapping[str, Any], calibrator: Mapping[str, Any]) -> None:
        """Refuse settings that adapter or calibrator do not have."""
        ADAPTERS.check_settings(self.adapter, adapter)
        CALIBRATORS.check_settings(self.calibrator, calibrator)

    def simplified(self, overridden: Collection[tuple[str, str]] = ()) -> Self:
        """Without settings at their default.

        overridden: (adapter or calibrator, setting) whose value comes from elsewhere, so that the default is not it.
        """
        return replace(
            self,
            adapter_settings=_simplified(ADAPTERS, self.adapter, self.adapter_settings, overridden),
            calibrator_settings=_simplified(CALIBRATORS, self.calibrator, self.calibrator_settings, overridden),
        )


def parse_method(text: str, *, simplify: bool = True) -> Method:
    """The method that `text` names; an unknown part gets a suggestion.

    Settings are written as in a call, and those at their default are dropped: identical settings are one method.
    simplify=False keeps them.

    >>> parse_method("tpt+ecots")
    Method('tpt+ecots')
    >>> str(parse_method("tpt+none")), str(parse_method("tpt(steps=2, lr=0.005) + cots(loss=l1, k=4)"))
    ('tpt', 'tpt(steps=2)+cots(k=4,loss=l1)')
    """
    parts = [read_part(part) for part in split_method(text)]
    adapter, calibrator = parts[0], parts[1] if len(parts) == 2 else Part(name="none")
    if adapter.name not in ADAPTERS and adapter.name in CALIBRATORS and len(parts) == 1:
        raise InputError(f"{text!r} is a calibrator; put an adapter before it, such as tpt+{text}.")
    if "tuned_features" in CALIBRATORS.settings(calibrator.name) and not ADAPTERS.info(adapter.name).tunes_text:
        raise InputError(
            f"{text} is not possible: {calibrator.name} measures how far tuning moved the text features, "
            f"and {adapter.name} does not tune them. Use an adapter that does, such as tpt+{calibrator.name}."
        )
    method = Method(
        adapter=adapter.name,
        calibrator=calibrator.name,
        adapter_settings=_checked(ADAPTERS, adapter, ADAPTERS.info(adapter.name).of_prompt),
        calibrator_settings=_checked(CALIBRATORS, calibrator, ()),
    )
    return method.simplified() if simplify else method


def _checked(registry: Registry[Any], part: Part, of_prompt: Collection[str]) -> Settings:
    """The settings of a part, checked and in the order of the function's parameters.

    of_prompt: the settings of the part inside that the function takes.
    """
    known = registry.settings(part.name)
    for key in part.inner:
        if key not in of_prompt:
            raise unknown_name(f"setting of the prompt of {part.name}:", key, of_prompt)
        if key in part.settings:
            raise InputError(f"{part.name} sets {key} twice. Set it once.")
    given = {**part.inner, **part.settings}
    registry.check_settings(part.name, given)
    settings = []
    for key, default in known.items():
        if key in given:
            if key in _FILLED_IN:
                raise InputError(f"{key} of {part.name} is filled in by cots and cannot be set. Omit it.")
            settings.append((key, _like_default(f"{key} of {part.name}", given[key], default)))
    return tuple(settings)


def _like_default(name: str, value: Value, default: Any) -> Value:
    """`value`, which must have the type of the default; any number may replace a number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, (int, float)):
        fits, kind = number, "a number"
    elif isinstance(default, (str, tuple)):
        fits, kind = isinstance(value, type(default)), {str: "a word", tuple: "a list such as [2,5]"}[type(default)]
    else:
        return value
    if not fits:
        raise InputError(f"{name} must be {kind}, not {write_value(value)}. Its default is {write_value(default)}.")
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


def _simplified(
    registry: Registry[Any], name: str, settings: Settings, overridden: Collection[tuple[str, str]]
) -> Settings:
    known = registry.settings(name)
    return tuple((key, value) for key, value in settings if value != known[key] or (name, key) in overridden)


def _title(title: str, settings: Settings) -> str:
    given = ", ".join(f"{key}={write_value(value)}" for key, value in settings)
    return f"{title} ({given})" if given else title


def check_attributes(methods: Iterable[Method], attributes: object) -> None:
    """Refuse methods without the attributes that they need, and attributes that no method uses."""
    users = [info.name for info in ADAPTERS.infos() if info.takes_attributes]
    needing = [method.adapter for method in methods if ADAPTERS.info(method.adapter).takes_attributes]
    if needing and attributes is None:
        raise InputError(f"{needing[0]} needs words for each class. Pass attributes (--attributes FILE).")
    if attributes is not None and not needing:
        raise InputError(f"attributes have no effect: no method uses them. Omit them, or add {users[0]}.")


def method_title(text: str) -> str:
    """The title of a method; a name that is not registered is its own title."""
    try:
        return parse_method(text, simplify=False).title
    except InputError:
        return text


def method_kind(text: str) -> str:
    """`episodic` or `online`; empty for a method that is not installed."""
    try:
        return ADAPTERS.info(parse_method(text, simplify=False).adapter).kind
    except InputError:
        return ""


def headline_methods() -> tuple[str, ...]:
    """The main comparison: `tpt` with each headline calibrator, every other headline adapter alone and with CoTS."""
    methods = []
    for info in ADAPTERS.infos():
        if not info.headline:
            continue
        methods.append(info.name)
        if info.name == "tpt":
            methods += [f"tpt+{calibrator.name}" for calibrator in CALIBRATORS.infos() if calibrator.headline]
        elif info.name != "zeroshot":
            methods.append(f"{info.name}+cots")
    return tuple(methods)


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction:
    """The classifier's result for one image.

    - tau: the temperature applied
    - alpha: the weight of the weak view in an ensemble, else None
    - views: the selected strong views (Omega); views_used: how many views were encoded
    - in_list: from 0 to 1, how much better the best class matches than unrelated words (`cots.novelty.in_list`)
    - none_of_these: whether `in_list` is below the classifier's threshold, or there are warnings
    - warnings: why the image shows nothing that could be recognised (`cots.content`); it is none of these, then
    - agreement: share of the views whose own best class is the label; NaN for methods that use only the weak view
    - confidence_range: contains 90% of the confidences under other random views, if requested and known
    - label_set: the classes of the prediction set, under a policy
    - abstained: the confidence is too low, the set is empty, or the photo belongs to none of the classes and the
      classifier was asked to abstain then; an abstained prediction has no label, and `top` has the candidates
    - node, rank, path, node_probability: with a taxonomy, the answer at the rank that is sure, and the nodes from the
      top to it; no node if not even the first is sure
    - unsure, candidates: with a taxonomy and no label, the rank that is unsure, and the likeliest classes of the node
    - presence: with `mode="present"`, what the image shows, class by class (`cots.presence`)
    - error: why the image could not be read, or None; with an error there is no label and the numbers are NaN
    """

    label: str | None
    confidence: float
    probabilities: np.ndarray = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    tau: float = float("nan")
    alpha: float | None = None
    views: tuple[int, ...] = field(default=(), repr=False)
    views_used: int = field(default=0, repr=False)
    method: str = ""
    in_list: float = float("nan")
    none_of_these: bool = False
    warnings: tuple[str, ...] = ()
    agreement: float = float("nan")
    confidence_range: tuple[float, float] | None = None
    label_set: tuple[str, ...] | None = None
    abstained: bool = False
    node: str | None = None
    rank: str | None = None
    path: tuple[str, ...] | None = None
    node_probability: float | None = None
    unsure: str | None = None
    candidates: tuple[tuple[str, float], ...] = ()
    presence: Presence | None = None
    error: str | None = None

    def __repr__(self) -> str:
        parts = []
        for one in fields(self):
            value = getattr(self, one.name)
            if not one.repr:
                continue
            default = value == one.default or value != value  # NaN differs from itself
            if one.name in ("label", "confidence") or not default:
                parts.append(f"{one.name}={_short(value)}")
        return f"Prediction({', '.join(parts)})"

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The `count` most probable classes with their probabilities; the label comes first."""
        other = np.ones(len(self.classes), dtype=bool)
        if self.label in self.classes:
            other[self.classes.index(self.label)] = False
        order = np.lexsort((other, -self.probabilities))[:count].tolist()
        return [(self.classes[k], float(self.probabilities[k])) for k in order]

    def abstain(self, below: float | None = None, none_of_these: bool = False) -> Prediction:
        """This prediction, abstained if its confidence is less than `below`, or if it is flagged as none of these.

        With a taxonomy, `below` has no effect: it was the threshold of the answer.
        """
        if below is not None:
            check_fraction("abstain", below)
        low = below is not None and self.confidence < below and self.path is None
        if low or (none_of_these and self.none_of_these):
            path = None if self.path is None else ()
            none = dict.fromkeys(("label", "node", "rank", "node_probability"))
            return replace(self, abstained=True, path=path, **none)
        return self

    @property
    def name(self) -> str:
        """What to show as the answer: the label, or the node with its rank, such as "heron (family)"."""
        if self.node is None:
            return self.label or "unsure"
        return self.node if self.rank is None else f"{self.node} ({self.rank})"

    @property
    def doubt(self) -> str:
        """What a taxonomy's answer leaves open, such as "species unsure: grey heron 41%, purple heron 38%"."""
        if not self.candidates:
            return ""
        return f"{self.unsure} unsure: {', '.join(f'{name} {percentage(p)}' for name, p in self.candidates)}"

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """All fields in JSON types: arrays and tuples become lists, NaN becomes None.

        With `top`, that many of the most probable classes replace `probabilities` and `classes`, as in `cots predict`
        and in HTTP answers.
        """
        names = [one.name for one in fields(self)]
        if top is not None:
            names = [name for name in names if name not in ("probabilities", "classes")]
        values = {name: _plain(getattr(self, name)) for name in names}
        values["candidates"] = _ranked(self.candidates)
        if self.presence is not None:
            values["presence"] = self.presence.ranked(top or len(self.classes))
        if top is None:
            return values
        return values | {"top": _ranked([] if self.error is not None else self.top(top))}

    def _repr_html_(self) -> str:
        """What a notebook shows: the most likely classes, as bars."""
        if self.error is not None:
            return f"<p><b>No prediction:</b> {html.escape(self.error)}</p>"
        notes = [f"range {' to '.join(f'{end:.0%}' for end in self.confidence_range)}"] if self.confidence_range else []
        notes += ["perhaps none of these"] if self.none_of_these else []
        notes += ["unsure"] if self.abstained else []
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td><progress value='{p:.4f}'></progress></td><td>{p:.1%}</td></tr>"
            for name, p in self.top()
        )
        about = html.escape("; ".join([self.method, *notes]))
        name, p = self.top(1)[0][0], self.confidence
        if self.node is not None:
            name, p = self.name, self.node_probability
        return f"<table><caption>{html.escape(name)} {p:.1%} ({about})</caption>{rows}</table>"


def percentage(p: float, digits: int = 0) -> str:
    """A percentage that is never rounded to 0% or 100%.

    >>> percentage(0.999), percentage(0.9999), percentage(0.94)
    ('99.9%', '>99.9%', '94%')
    """
    if p < 0.0005:
        return "<0.1%"
    if p >= 0.9995:
        return ">99.9%"
    if 0.095 <= p < 0.995:
        return f"{p:.{digits}%}"
    return f"{p:.1%}"


def _ranked(pairs: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"class": name, "probability": p} for name, p in pairs]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        more = ", ..." if len(value) > _SHOWN else ""
        return f"({', '.join(map(_short, value[:_SHOWN]))}{more})"
    return repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.astype(float).tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def predictions_of(
    outcome: Outcome, task: Task, method: Method, membership_B: Tensor, below: float, *,
    one_view: bool = False, views_used: int = 0,
) -> Callable[[], list[Prediction]]:  # fmt: skip
    """Start copying the results of a batch to the host; calling the result waits and gives one Prediction per sample.

    membership_B: their `in_list`; below: the none-of-these threshold; one_view: the method uses only the weak view, so
    there is no agreement of views. views_used: of each sample.
    """
    result, ranges = outcome.calibrated, outcome.confidence_range
    columns = [result.prediction, result.confidence, result.tau, result.views, outcome.agreement, membership_B]
    if ranges is not None:
        columns.append(ranges)
    fetch = to_host(result.probabilities, *columns)

    def finish() -> list[Prediction]:
        probabilities, *fetched = fetch()
        check_finite(probabilities, f"the result of {method}")
        check_finite(fetched[4], f"the agreement of views under {method}")
        predictions = []
        for row, *values in zip(probabilities.numpy(), *(column.tolist() for column in fetched), strict=True):
            prediction, confidence, tau, views, agreement, membership, *ends = values
            predictions.append(
                Prediction(
                    label=task.classes[prediction],
                    confidence=confidence,
                    probabilities=row.copy(),
                    classes=task.classes,
                    tau=tau,
                    alpha=result.alpha,
                    views=tuple(views),
                    views_used=views_used,
                    method=str(method),
                    in_list=membership,
                    none_of_these=membership < below,
                    agreement=math.nan if one_view else agreement,
                    confidence_range=tuple(ends[0]) if ends else None,
                )
            )
        return predictions

    return finish
