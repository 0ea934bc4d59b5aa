"""Task: a backbone, class names and an initial context, with everything that depends only on them."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arrays import default_modes, mean_similarity
from .._errors import InputError, UntrainedWordWarning
from ..accelerate import accelerator
from ..backbones import Backbone, FixedText
from ..classes import Classes, read_classes
from ._descriptions import Attributes, Descriptions, Sentences, hash_of, read_attributes, read_descriptions
from ._tokens import (
    DEFAULT_TEMPLATE,
    Template,
    read_context,
    split_template,
    template_list,
    tokenize_prompts,
)
from ._towers import CausalText, NoTower, PlainText, TextTower, token_embedding

T = TypeVar("T")

ONE_CLASS = (
    "With one class its probability is always 1; add the classes it could be mistaken for, or name a known list such "
    "as everyday or imagenet."
)


class Task:
    """A classification task: a backbone, class names and the initial context.

    - classes: names, a file of names, or a known list such as "imagenet" (`cots.classes.read_classes`)
    - template: a sentence with one `{}`; the words before `{}` are the tunable context. With several templates, the
      text features are the normalised mean of the features of each, and there is no context to tune
    - context: vectors `(M, W)` or the path of a CoOp checkpoint, in place of the words before `{}`
    - descriptions: sentences about each class, `{name: [sentence, ...]}` or a JSON file of it. Each counts like one
      more template, so there is no context to tune
    - attributes: words for each class, read like descriptions; only `tca` uses them

    >>> import cots
    >>> task = cots.Task(cots.load("mini"), ["tabby cat", "golden_retriever"])
    >>> task.classes, task.text_features.shape
    (('tabby cat', 'golden retriever'), torch.Size([2, 256]))
    """

    @default_modes()
    def __init__(
        self,
        backbone: Backbone,
        classes: Classes,
        template: Template = DEFAULT_TEMPLATE,
        context: Tensor | str | Path | None = None,
        descriptions: Descriptions | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        self.backbone = backbone
        self.classes = read_classes(classes)
        first, *others = template_list(template, context)
        self.descriptions = None if descriptions is None else read_descriptions(descriptions, self.classes)
        self.attributes = None if attributes is None else read_attributes(attributes, self.classes)
        _check_texts(self.descriptions, self.attributes, backbone, context)
        self.template: str | tuple[str, ...] = (first, *others) if others else first
        self._constants: dict[Any, Any] = {}
        self._by_attribute: dict[int, Task] = {}
        self._expected: tuple[int | None, bool, int | None] = (None, False, None)
        if isinstance(backbone.model, FixedText):
            text_KD = backbone.model.rows(self.classes)
            self.tower: TextTower = NoTower(backbone.name, text_KD)
            self.initial_context = text_KD.new_zeros(1, 1)  # nothing reads it
            self._others = []
            return
        texts = itertools.chain([first], others, *(self.descriptions or ()), *(self.attributes or ()))
        if message := untrained_message(backbone, self.classes, " ".join(texts)):
            warnings.warn(message, UntrainedWordWarning, stacklevel=3)  # the caller's line, past the decorator
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainedWordWarning)
            self._others = [Task(backbone, self.classes, one) for one in others]
        given = None if context is None else read_context(context).to(backbone.device, backbone.dtype)
        if given is not None:
            # Placeholder words: only their number matters, because their vectors are replaced.
            first = " ".join(["X"] * len(given)) + " {}" + split_template(first)[1]
        tokens = tokenize_prompts(backbone, self.classes, first)
        words = token_embedding(backbone)(tokens.ids_KL[0, tokens.start : tokens.prefix]).detach().to(backbone.dtype)
        if given is not None and given.shape != words.shape:
            raise InputError(
                f"The context has shape {tuple(given.shape)}, but {backbone.name} needs {tuple(words.shape)}; "
                "use a context that was learned for this backbone."
            )
        self.initial_context = words if given is None else given
        plain = CausalText if CausalText.supports(backbone) else PlainText
        self.tower = accelerator().text_tower(plain)(backbone, tokens, self.initial_context)

    def __repr__(self) -> str:
        return f"Task({self.backbone.name!r}, {len(self.classes)} classes, template={self.template!r})"

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    @property
    def logit_scale(self) -> float:
        return self.backbone.logit_scale

    @cached_property
    @default_modes()
    def text_features(self) -> Tensor:
        """Zero-shot text features `(K, D)`, L2-normalised."""
        with torch.no_grad():
            features = self.tower.features(self.initial_context[None])[0]
            if not self.averaged:
                return features
            several = [features, *(other.text_features for other in self._others)]
            mean = torch.stack(several).mean(0)
            if self.descriptions is not None:
                mean = mean * len(several) + self._sum_of_sentences(self.descriptions)
            return torch.nn.functional.normalize(mean, dim=-1)

    def _sum_of_sentences(self, descriptions: Sentences) -> Tensor:
        """The sum of the features of each class's sentences, `(K, D)`."""
        features_SD, class_S = self._sentences(descriptions)
        total_KD = features_SD.new_zeros(len(descriptions), features_SD.shape[1])
        return total_KD.index_add(0, class_S, features_SD)

    def _sentences(self, descriptions: Sentences) -> tuple[Tensor, Tensor]:
        """Features `(S, D)` of all sentences, and the class `(S,)` of each."""
        owners = [k for k, sentences in enumerate(descriptions) for _ in sentences]
        flat = list(itertools.chain.from_iterable(descriptions))
        size, parts = accelerator().batch_limit("prompts", self.device), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainedWordWarning)
            for first in range(0, len(flat), size):
                parts.append(Task(self.backbone, flat[first : first + size], "{}").text_features)
        return torch.cat(parts), torch.tensor(owners, device=self.device)

    @default_modes()
    def every_text(self) -> tuple[Tensor, Tensor]:
        """Features `(S, D)` of every text by itself, and the class `(S,)` of each: templates, then descriptions."""
        with torch.no_grad():
            features = [self.tower.features(self.initial_context[None])[0]]
            features += [other.text_features for other in self._others]
            classes = [torch.arange(len(self.classes), device=self.device)] * len(features)
            if self.descriptions is not None:
                sentences, owners = self._sentences(self.descriptions)
                features.append(sentences)
                classes.append(owners)
            return torch.cat(features), torch.cat(classes)

    @property
    def descriptions_hash(self) -> str:
        """A hash of the descriptions; empty without any."""
        return hash_of(self.descriptions)

    @property
    def attributes_hash(self) -> str:
        """A hash of the attributes; empty without any."""
        return hash_of(self.attributes)

    @property
    def averaged(self) -> bool:
        """Whether the text features average several texts per class, so that there is no context to tune."""
        return bool(self._others) or self.descriptions is not None

    @property
    def texts(self) -> str:
        """What the text features are made from: `2 templates and descriptions`."""
        templates = "1 template" if not self._others else f"{len(self._others) + 1} templates"
        return templates if self.descriptions is None else f"{templates} and descriptions"

    @cached_property
    def alpha(self) -> float:
        """Weight of the weak view in E-CoTS (Eq. 6): mean off-diagonal cosine of the initial text features."""
        return mean_similarity(self.text_features)

    def _one_context(self) -> None:
        if self.averaged:
            raise InputError(f"This method tunes the words of one template, but the task has {self.texts}; use one.")

    def features_under(self, context_BMW: Tensor) -> Tensor:
        """Text features `(B, K, D)` under contexts `(B, M, W)`, differentiable with respect to the contexts."""
        self._one_context()
        return self.tower.features(context_BMW)

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        """Like `features_under`, without gradients."""
        self._one_context()
        with torch.no_grad():
            return self.tower.tuned_features(context_BMW)

    def expect(self, samples: int | None = None, *, exactly: bool = False, memory: int | None = None) -> None:
        """Announce how many samples will be adapted, which may pay for preparations that take time or memory.

        exactly: no more samples follow, so that results do not depend, by rounding, on what else the task is used for.
        memory: the bytes that preparations may take.
        """
        self._expected = samples, exactly, memory
        for task in (self, *self._by_attribute.values()):
            task.tower.expect(*self._expected)

    def by_attribute(self, count: int) -> "Task":
        """A task whose classes are the first `count` attributes of each class with its name, such as `striped cat`.

        They stand side by side, class by class, under this task's context.
        """
        if self.attributes is None:
            raise InputError("The task has no attributes. Pass attributes, words for each class (--attributes FILE).")
        if count not in self._by_attribute:
            names = []
            for name, words in zip(self.classes, self.attributes, strict=True):
                if len(words) < count:
                    problem = f"{name[:60]!r} has {len(words)} of the {count} attributes that are used"
                    raise InputError(f"{problem}. Add more, or use fewer.")
                names += [f"{word} {name}" for word in words[:count]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UntrainedWordWarning)
                task = Task(self.backbone, names, self.template, self.initial_context)
            task.tower.expect(*self._expected)
            self._by_attribute[count] = task
        return self._by_attribute[count]

    @default_modes()
    def pull_back(self, cotangent_BKD: Tensor) -> Tensor:
        """Gradients `(B, M, W)` at the initial context from gradients `(B, K, D)` at the text features."""
        self._one_context()
        return self.tower.pull_back(cotangent_BKD)

    def constant(self, key: Any, compute: Callable[[], T]) -> T:
        """`compute()`, evaluated once per task: for values that depend only on backbone, classes and context."""
        if key not in self._constants:
            self._constants[key] = compute()
        return self._constants[key]


def _check_texts(
    sentences: Sentences | None, attributes: Sentences | None, backbone: Backbone, context: object
) -> None:
    if attributes is not None and isinstance(backbone.model, FixedText):
        raise InputError(f"{backbone.name} has text features, so attributes have no effect. Omit them.")
    if sentences is None:
        return
    if context is not None:
        raise InputError("A context replaces the words of one template, so it excludes descriptions. Omit one of them.")
    if isinstance(backbone.model, FixedText):
        raise InputError(f"{backbone.name} has text features, so descriptions have no effect. Omit them.")


def untrained_message(backbone: Backbone, classes: Sequence[str], template: str) -> str | None:
    """A warning about words the model was not trained on; only tokenizers of pruned vocabularies know them."""
    tokenizer: Any = backbone.tokenizer
    if not hasattr(tokenizer, "untrained_words"):
        return None
    kinds = {
        "was not trained on": tokenizer.untrained_words([*classes, template.replace("{}", " ")]),
        "knows these words only as part of other names": tokenizer.words_inside_names(classes),
    }
    notes = [
        f"{backbone.name} {kind}: {', '.join(map(repr, words[:8]))}{', ...' if len(words) > 8 else ''}."
        for kind, words in kinds.items()
        if words
    ]
    advice = "Predictions for these names are guesses; use a common synonym, or a larger model such as ViT-B-16/openai."
    return " ".join([*notes, advice]) if notes else None
