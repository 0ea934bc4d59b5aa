"""The open_clip model `mini`: configuration, text forward over trimmed captions, rescaling, logit scale."""

from copy import deepcopy
from pathlib import Path

import torch
from open_clip.model import CLIP
from photos import require
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from trunk import MEAN, NAME, PREFIX, STD

EMBED, CONTEXT = 256, 40
SCALES = torch.logspace(1, 2.3, 131).tolist()  # candidates for the logit scale


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
    """A new model without its trunk: everything here runs on cached trunk features."""
    model = CLIP(**config(vocab_size)["model_cfg"])
    model.visual.trunk = nn.Identity()
    return model


def load_checkpoint(path: Path, vocab_size: int, device: str) -> CLIP:
    """The text tower and projection of a checkpoint of train.py or of an exported model."""
    tensors = load_file(require(path, "make a checkpoint with train.py or a model folder with export.py"))
    model = build(vocab_size)
    model.load_state_dict({k: v.float() for k, v in tensors.items() if not k.startswith(PREFIX)})
    return model.to(device).eval().requires_grad_(False)


def run_text(model: CLIP, x: Tensor, end: Tensor) -> Tensor:
    """Normalised features from token embeddings (N, L, width) without positions and the index of each text's end."""
    length = x.shape[1]
    x = x + model.positional_embedding[:length].to(x.dtype)
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length].to(x.dtype))
    x = model.ln_final(x)[torch.arange(len(x), device=x.device), end]
    return normalize((x @ model.text_projection).float(), dim=-1)


def encode_tokens(model: CLIP, tokens: Tensor) -> Tensor:
    return run_text(model, model.token_embedding(tokens.long()), tokens.argmax(-1))


def project(model: CLIP, features: Tensor) -> Tensor:
    """Normalised image features from trunk features."""
    return normalize(model.visual.head(features).float(), dim=-1)


def rescaled(model: CLIP, factor: float) -> CLIP:
    """The same function with a residual stream scaled by `factor`.

    Every block reads the stream through a layer norm, so the scale of embeddings and block outputs cancels (up to the
    norm's epsilon), while a fixed-size step on the context embeddings acts 1/factor times as strongly.
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
    """The logit scale that minimises the mean NLL over all lists; targets are labels or distributions."""
    cosines = [x @ t.T for x, t in zip(images, texts, strict=True)]
    losses = torch.stack([sum(cross_entropy(s * c, y) for c, y in zip(cosines, targets, strict=True)) for s in SCALES])
    return SCALES[int(losses.argmin())]
