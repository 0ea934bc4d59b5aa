"""The embedded model, built without open_clip, because importing open_clip takes seconds; fixed text features.

The modules are named as in open_clip and timm, so the same weights load into both; tests compare the features.
"""

import copy
import importlib.util
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import BackboneError

# tf_efficientnet_lite0 after its stem: blocks, kernel, stride, expansion and channels of each stage.
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
           (1, 3, 1, 6, 320))  # fmt: skip
_STEM, _HEAD = 32, 1280
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


def mini_parts(folder: Path) -> "tuple[nn.Module, PrunedTokenizer, Mapping[str, Any]]":
    """Model, tokenizer and preprocessing in the embedded folder."""
    config = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))
    described = config["model_cfg"]
    with torch.random.fork_rng(devices=[]):
        model = Mini(embed_dim=described["embed_dim"], **described["text_cfg"])
    weights = load_file(folder / "open_clip_model.safetensors")
    model.load_state_dict(weights)
    preprocess = {"size": (described["vision_cfg"]["image_size"],) * 2, "mode": "RGB", "fill_color": 0}
    tokenizer = PrunedTokenizer.from_file(_clip_tokenizer(model.context_length), folder / "vocabulary.json")
    return model.eval(), tokenizer, preprocess | config["preprocess_cfg"]


def _clip_tokenizer(context_length: int) -> Any:
    """open_clip's tokenizer, imported from its file without the rest of open_clip."""
    file = Path(str(importlib.util.find_spec("open_clip").origin)).with_name("tokenizer.py")  # pyright: ignore[reportOptionalMemberAccess]
    spec: Any = importlib.util.spec_from_file_location("cots.backbones._clip_tokenizer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tokenizer = copy.copy(module._tokenizer)
    tokenizer.context_length = context_length
    return tokenizer


class Mini(nn.Module):
    """CLIP's causal text transformer and an EfficientNet-Lite0 with a linear projection."""

    def __init__(
        self, *, embed_dim: int, context_length: int, vocab_size: int, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.context_length = context_length
        self.visual = MiniImages(embed_dim)
        self.transformer: Any = nn.Module()
        self.transformer.resblocks = nn.ModuleList(TextBlock(width, heads) for _ in range(layers))
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))
        later = torch.full((context_length, context_length), float("-inf")).triu(1)
        self.attn_mask: Tensor
        self.register_buffer("attn_mask", later, persistent=False)

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        features = self.visual(image)
        return F.normalize(features, dim=-1) if normalize else features

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        x = self.token_embedding(text) + self.positional_embedding[: text.shape[1]]
        mask = self.attn_mask[: text.shape[1], : text.shape[1]]
        for block in self.transformer.resblocks:
            x = block(x, mask)
        features = self.ln_final(x)[torch.arange(len(text)), text.argmax(dim=-1)] @ self.text_projection
        return F.normalize(features, dim=-1) if normalize else features


class TextBlock(nn.Module):
    """open_clip's ResidualAttentionBlock."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ls_1 = self.ls_2 = nn.Identity()
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(c_fc=up, gelu=nn.GELU(), c_proj=down))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class MiniImages(nn.Module):
    """An EfficientNet-Lite0 and a linear projection."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.trunk: nn.Module = _Trunk()
        self.head = nn.Sequential(OrderedDict(proj=nn.Linear(_HEAD, embed_dim, bias=False)))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.trunk(pixels))


class _Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = _SameConv(3, _STEM, 3, stride=2), BatchNormAct2d(_STEM)
        stages, width = [], _STEM
        for count, kernel, stride, expansion, channels in _STAGES:
            blocks = []
            for i in range(count):
                blocks.append(_Inverted(width, channels, kernel, stride if i == 0 else 1, expansion))
                width = channels
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _SameConv(width, _HEAD, 1), BatchNormAct2d(_HEAD)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.bn1(self.conv_stem(x)))
        return self.bn2(self.conv_head(x)).mean((2, 3))


class _Inverted(nn.Module):
    """Expand, filter each channel, project; the first stage does not expand."""

    def __init__(self, width: int, channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = width * expansion
        self.skips = stride == 1 and width == channels
        depthwise = _SameConv(inner, inner, kernel, stride=stride, groups=inner)
        if expansion == 1:
            self.conv_dw, self.bn1 = depthwise, BatchNormAct2d(inner)
            self.conv_pw, self.bn2 = _SameConv(inner, channels, 1), _norm(channels)
        else:
            self.conv_pw, self.bn1 = _SameConv(width, inner, 1), BatchNormAct2d(inner)
            self.conv_dw, self.bn2 = depthwise, BatchNormAct2d(inner)
            self.conv_pwl, self.bn3 = _SameConv(inner, channels, 1), _norm(channels)
        self.expands = expansion > 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.expands:  # nor does it skip
            return self.bn2(self.conv_pw(self.bn1(self.conv_dw(x))))
        y = self.bn2(self.conv_dw(self.bn1(self.conv_pw(x))))
        y = self.bn3(self.conv_pwl(y))
        return y + x if self.skips else y


class _SameConv(nn.Conv2d):
    """TensorFlow's "same" padding: with stride 2 and an even size, one pixel wider on the right and at the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.padding = ((kernel - 1) // 2,) * 2 if stride == 1 else (0, 0)

    def reset_parameters(self) -> None:
        """Nothing: the weights are loaded, and drawing others first takes a while."""

    def forward(self, input: Tensor) -> Tensor:
        if self.stride[0] > 1:
            (k, _), (s, _) = self.kernel_size, self.stride
            need = [max(0, (-(-n // s) - 1) * s + k - n) for n in input.shape[-2:]]
            input = F.pad(input, [side for n in reversed(need) for side in (n // 2, n - n // 2)])
        return super().forward(input)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class BatchNormAct2d(nn.BatchNorm2d):
    """timm's batch norm with its activation."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3)
        self.drop, self.act = nn.Identity(), nn.ReLU6(inplace=True)

    def forward(self, input: Tensor) -> Tensor:
        return self.act(super().forward(input))


class FixedText(nn.Module):
    """Text features (K,D) of `classes` and a logit scale in place of a model; it encodes nothing."""

    def __init__(self, classes: Sequence[str], features: Tensor, logit_scale: float) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.register_buffer("features", F.normalize(features.float(), dim=-1))

    def rows(self, names: Sequence[str]) -> Tensor:
        """The features of the classes `names`."""
        features = self.get_buffer("features")
        if tuple(names) == self.classes:
            return features
        return features[[self.classes.index(name) for name in names]]


class PrunedTokenizer:
    """Maps the ids of a full tokenizer to the rows of a token table that has only trained rows.

    `tokens`: the kept ids in ascending order; an id's position is its new id, so the end-of-text token keeps the
    highest one and pooling at the arg max still works. All other ids become `unknown`. `words`: the words seen in
    training; a word can be untrained although its pieces are known. `heads`: the last words of trained names, such as
    "penguin" but not "king" in "king penguin". A Task warns of words in neither.
    """

    def __init__(
        self, base: Any, tokens: Sequence[int], unknown: int, words: Sequence[str] = (), heads: Sequence[str] = ()
    ) -> None:
        self.base = base
        self.context_length = base.context_length
        self.unknown = unknown
        self.words, self.heads = frozenset(words), frozenset(heads)
        table = torch.full((base.vocab_size,), unknown, dtype=torch.long)
        table[torch.as_tensor(tokens, dtype=torch.long)] = torch.arange(len(tokens))
        self._table = table

    @classmethod
    def from_file(cls, base: Any, file: Path) -> Self:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            return cls(base, data["tokens"], data["unknown"], data.get("words", ()), data.get("heads", ()))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise BackboneError(f"{file} is not a token list with keys tokens and unknown: {error!r}") from None

    def __call__(self, texts: Sequence[str] | str, context_length: int | None = None) -> Tensor:
        texts = [texts] if isinstance(texts, str) else list(texts)
        full = self.base(texts, context_length=context_length)
        new = self._table[full]
        # Id 0 is padding, which a causal tower never reads; any valid row will do.
        new[full == 0] = 0
        return new

    def untrained_words(self, texts: Sequence[str]) -> list[str]:
        """Words of `texts` not seen in training, in order of appearance."""
        untrained: dict[str, None] = {}  # ordered
        for text in texts:
            words = WORD.findall(text.lower())
            # A name may have no word, only a sign such as an emoji.
            for word in words or text.split():
                known = word in self.words if words and self.words else self._pieces_known(word)
                if not known:
                    untrained[word] = None
        return list(untrained)

    def words_inside_names(self, names: Sequence[str]) -> list[str]:
        """Last words of `names` that were trained only inside other names, in order of appearance."""
        inside: dict[str, None] = {}  # ordered
        for name in names:
            *_, last = WORD.findall(name.lower()) or [""]
            if self.heads and last in self.words and last not in self.heads:
                inside[last] = None
        return list(inside)

    def _pieces_known(self, word: str) -> bool:
        ids = torch.as_tensor(self.base.encode(word), dtype=torch.long)
        return bool((self._table[ids] != self.unknown).all())
