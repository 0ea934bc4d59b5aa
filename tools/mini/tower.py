"""The open_clip model `mini`: configuration, a text forward trimmed to the captions, the scale of its stream."""

from copy import deepcopy

import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from trunk import MEAN, NAME, STD

EMBED, CONTEXT = 256, 40
SCALES = torch.logspace(1, 2.3, 131).tolist()  # among which the logit scale is chosen


def config(vocab_size: int) -> dict[str, dict]:
    vision = {
        "timm_model_name": NAME,
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "image_size": 224,
    }
    text = {"context_length": CONTEXT, "vocab_size": vocab_size, "width": 256, "heads": 4, "layers": 4}
    return {
        "model_cfg": {"embed_dim": EMBED, "quick_gelu": False, "vision_cfg": vision, "text_cfg": text},
        "preprocess_cfg": {"mean": [MEAN] * 3, "std": [STD] * 3, "interpolation": "bicubic", "resize_mode": "shortest"},
    }


def build(vocab_size: int) -> CLIP:
    return CLIP(**config(vocab_size)["model_cfg"])


def run_text(model: CLIP, x: Tensor, end: Tensor) -> Tensor:
    """Token embeddings (N, L, width) without positions, and where each text ends -> normalised features."""
    length = x.shape[1]
    x = x + model.positional_embedding[:length].to(x.dtype)
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length].to(x.dtype))
    x = model.ln_final(x)[torch.arange(len(x), device=x.device), end]
    return normalize((x @ model.text_projection).float(), dim=-1)


def encode_tokens(model: CLIP, tokens: Tensor) -> Tensor:
    return run_text(model, model.token_embedding(tokens.long()), tokens.argmax(-1))


def see(model: CLIP, rows: Tensor) -> Tensor:
    """A bank's rows -> trunk features: the rows themselves, or what the stages that are trained make of them."""
    return model.visual.trunk(rows).float()


def project(model: CLIP, features: Tensor) -> Tensor:
    """Trunk features -> normalised image features."""
    return normalize(model.visual.head(features).float(), dim=-1)


def rescaled(model: CLIP, factor: float) -> CLIP:
    """The same function with a residual stream `factor` times as large.

    Every block reads the stream through a layer norm, so the size of embeddings and block outputs cancels (up to the
    norm's epsilon), while a step of fixed size on the context embeddings acts 1/factor times as strongly.
    """
    model = deepcopy(model)
    with torch.no_grad():
        model.token_embedding.weight *= factor
        model.positional_embedding *= factor
        for block in model.transformer.resblocks:
            for layer in (block.attn.out_proj, block.mlp.c_proj):
                layer.weight *= factor
                layer.bias *= factor
    return model


def fit_scale(images: list[Tensor], texts: list[Tensor], targets: list[Tensor]) -> float:
    """The one logit scale with the least mean negative log-likelihood over all lists together (targets are labels or
    distributions).
    """
    cosines = [x @ t.T for x, t in zip(images, texts, strict=True)]
    losses = torch.stack([sum(cross_entropy(s * c, y) for c, y in zip(cosines, targets, strict=True)) for s in SCALES])
    return SCALES[int(losses.argmin())]
