"""Random small models of the three kinds, and a stand-in for tokenizers that are downloads."""

from __future__ import annotations

import functools
import json
import math
import zlib

import open_clip
import torch
from open_clip.model import CLIP, CustomTextCLIP

import cots

CLASSES = ["tabby cat", "golden_retriever", "car", "snow-covered mountain peak", "tree"]
KINDS = ("vit", "resnet", "siglip")
PREPROCESS = {
    "size": 32,
    "mode": "RGB",
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
    "fill_color": 0,
}
CLIP_TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}

CLIP_CFG = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 16, "patch_size": 16, "head_width": 8},
    "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}

CONTEXT_TUNERS = {
    "tpt": None, "ctpt": 50.0, "otpt": 18.0, "atpt": 100.0, "soc": 30.0, "dtpt": 10.0, "penalty": 10.0, "zsnorm": None,
}  # fmt: skip
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}  # float32 rounds before a sign step
EPISODIC = [*CONTEXT_TUNERS, "rtpt", "mta", "tps", "sts", "zeroshot"]


def add_architecture(config, folder, monkeypatch):
    """Make `config` known to open_clip as tiny-clip."""
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIG_PATHS", list(open_clip.factory._MODEL_CONFIG_PATHS))
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", dict(open_clip.factory._MODEL_CONFIGS))
    file = folder / "tiny-clip.json"
    file.write_text(json.dumps(config))
    open_clip.add_model_config(file)


THREE = ["a photo of a {}.", "art of {}", "this is {}, seen from afar"]  # templates
WORDS = {
    "tabby cat": ["soft", "striped", "small"],
    "golden retriever": ["large", "friendly", "golden"],
    "car": ["shiny", "red", "parked"],
    "snow-covered mountain peak": ["white", "steep", "distant"],
    "tree": ["green", "old", "tall"],
}
NEEDS = {"reta": {"template": THREE}, "tca": {"attributes": WORDS}}  # what a task must have for a method


class WordTokenizer:
    """A word an id, no start token, padded with the end token: the shape of SigLIP's tokenizer."""

    context_length = 16
    vocab_size = 512

    def __call__(self, texts, context_length=None):
        length = context_length or self.context_length
        rows = []
        for text in texts:
            words = text.lower().replace(".", " .").split()
            ids = [2 + zlib.crc32(word.encode()) % (self.vocab_size - 2) for word in words][:length]
            rows.append(ids + [1] * (length - len(ids)))
        return torch.tensor(rows)


@functools.cache
def mini() -> cots.Backbone:
    """The embedded model, loaded and folded once for all tests of a process."""
    return cots.load("mini", device="cpu")


@functools.cache
def tiny(kind: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> cots.Backbone:
    """A backbone that takes milliseconds: kind 'vit', 'resnet' or 'siglip'."""
    # Cosines of 12 dimensions spread far more than those of 512: a CLIP-like 100 would saturate every prediction.
    scale = {"init_logit_scale": math.log(10.0)}
    preprocess = dict(PREPROCESS)
    tokenizer = open_clip.tokenizer._tokenizer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "vit":
            vision = {"image_size": 32, "layers": 4, "width": 32, "patch_size": 8, "head_width": 8}
            model = CLIP(12, vision, CLIP_TEXT, quick_gelu=True, **scale)
        elif kind == "resnet":
            preprocess["size"] = 64
            vision = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
            model = CLIP(12, vision, CLIP_TEXT, quick_gelu=True, **scale)
        else:
            preprocess |= {"size": 160, "mean": (0.5,) * 3, "std": (0.5,) * 3, "resize_mode": "squash"}
            vision = {
                "image_size": 160,
                "timm_model_name": "test_vit",
                "timm_model_pretrained": False,
                "timm_pool": "",
                "timm_proj": "linear",
            }
            text = {
                "context_length": 16,
                "vocab_size": 512,
                "width": 16,
                "heads": 2,
                "layers": 2,
                "no_causal_mask": True,
                "pool_type": "last",
                "proj_bias": True,
            }
            model = CustomTextCLIP(12, vision, text, init_logit_bias=-10.0, **scale)
            tokenizer = WordTokenizer()
        # Random towers of this size are nearly constant in their context; larger token vectors make it matter.
        tower = getattr(model, "text", model)
        torch.nn.init.normal_(tower.token_embedding.weight, std=0.1)
    return cots.Backbone(name=f"tiny-{kind}", model=model.to(dtype), tokenizer=tokenizer, preprocess=preprocess)


@functools.cache
def tiny_task(
    kind: str, dtype: torch.dtype = torch.float32, classes: tuple[str, ...] = tuple(CLASSES), method: str = ""
) -> cots.Task:
    """A task, with what `method` needs."""
    return cots.Task(tiny(kind, dtype), classes, **NEEDS.get(method, {}))


def random_views(task: cots.Task, samples: int = 3, views: int = 32, seed: int = 0) -> torch.Tensor:
    """View features near the text features, so that predictions are neither uniform nor saturated."""
    generator = torch.Generator().manual_seed(seed)
    D = task.text_features.shape[1]
    centre = torch.randn(samples, 1, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, views, D, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(centre + 0.5 * noise, dim=-1).to(task.dtype)


def random_pixels(backbone: cots.Backbone) -> torch.Tensor:
    return torch.randn(2, 4, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
