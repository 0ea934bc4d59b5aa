"""Convert the weights of a transformers `CLIPModel` or `SiglipModel` to open_clip's architecture."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import open_clip
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from .._errors import BackboneError

CONFIG = "config.json"


class QuickGELU(nn.Module):
    """The activation of OpenAI's models."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS = {"quick_gelu": QuickGELU, "gelu": nn.GELU, "gelu_pytorch_tanh": partial(nn.GELU, approximate="tanh")}
# Values that a config may omit; sizes are read from the weights.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "clip": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "image_size": 224, "eos_token_id": 49407},
    "siglip": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "image_size": 224},
}
_HEADS = {"clip": {"text": 8, "vision": 12}, "siglip": {"text": 12, "vision": 12}}
State = dict[str, Tensor]

_PATCHES = "vision_model.embeddings.patch_embedding.weight"
_TEXT = {
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.encoder.layers": "transformer.resblocks",
    "text_model.final_layer_norm": "ln_final",
    "text_model.head": "text_projection",
}
_CLIP = {
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding": "visual.conv1",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.encoder.layers": "visual.transformer.resblocks",
    "vision_model.pre_layrnorm": "visual.ln_pre",
    "vision_model.post_layernorm": "visual.ln_post",
    "text_projection.weight": "text_projection",
    "visual_projection.weight": "visual.proj",
}
_SIGLIP = {
    "vision_model.embeddings.patch_embedding": "visual.trunk.patch_embed.proj",
    "vision_model.embeddings.position_embedding.weight": "visual.trunk.pos_embed",
    "vision_model.encoder.layers": "visual.trunk.blocks",
    "vision_model.post_layernorm": "visual.trunk.norm",
    "vision_model.head.probe": "visual.trunk.attn_pool.latent",
    "vision_model.head.attention.out_proj": "visual.trunk.attn_pool.proj",
    "vision_model.head.attention.": "visual.trunk.attn_pool.",
    "vision_model.head.layernorm": "visual.trunk.attn_pool.norm",
    "vision_model.head.mlp": "visual.trunk.attn_pool.mlp",
}
# Names inside a block: open_clip's, and timm's for the image tower of SigLIP.
_BLOCK = {
    "resblocks": {
        "layer_norm": "ln_", "self_attn.qkv.": "attn.in_proj_", "self_attn.out_proj": "attn.out_proj",
        "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj",
    },
    "trunk.blocks": {"layer_norm": "norm", "self_attn.qkv": "attn.qkv", "self_attn.out_proj": "attn.proj"},
}  # fmt: skip


def convert(config: Mapping[str, Any], state: State, name: str, quick_gelu: bool | None = None) -> nn.Module:
    """open_clip's model with the weights of a transformers `state` dict, in float32, or float64 if they are."""
    kind = config.get("model_type")
    if kind not in _DEFAULTS:
        raise BackboneError(
            f"{name} has model_type {kind!r}; cots loads CLIPModel ('clip') and SiglipModel ('siglip')."
        )
    text, vision = (_tower(config, side, quick_gelu) for side in ("text", "vision"))
    try:
        with torch.random.fork_rng(devices=[]):
            model, converted = (_clip if kind == "clip" else _siglip)(text, vision, state)
        dtype = torch.promote_types(state["logit_scale"].dtype, torch.float32)
        converted["logit_scale"] = state["logit_scale"].reshape(())
        model.to(dtype).load_state_dict({key: value.to(dtype) for key, value in converted.items()})
    except (KeyError, RuntimeError, ValueError) as error:
        raise BackboneError(
            f"Could not load {name}: its weights do not match its {CONFIG} ({error}). Download both from one source."
        ) from error
    return model


def _tower(config: Mapping[str, Any], side: str, quick_gelu: bool | None) -> dict[str, Any]:
    """A tower's config with defaults; `act` is the class of its activation."""
    kind = config["model_type"]
    # Early configs have a second entry, which wins.
    given = config.get(f"{side}_config_dict") or config.get(f"{side}_config") or {}
    tower = {**_DEFAULTS[kind], "num_attention_heads": _HEADS[kind][side]}
    for key, value in given.items():
        if value is not None:
            tower[key] = value
    activation = tower["hidden_act"]
    if quick_gelu is not None:
        activation = "quick_gelu" if quick_gelu else "gelu"
    if activation not in _ACTIVATIONS:
        raise BackboneError(f"The {side} tower uses {activation!r}; cots supports {', '.join(_ACTIVATIONS)}.")
    return {**tower, "act": _ACTIVATIONS[activation]}


def _clip(text: Mapping[str, Any], vision: Mapping[str, Any], state: State) -> tuple[nn.Module, State]:
    vision_cfg = {
        "image_size": vision["image_size"],
        "patch_size": state[_PATCHES].shape[-1],
        "head_width": len(state[_PATCHES]) // vision["num_attention_heads"],
        **_sizes(vision, state, "vision"),
    }
    text_cfg: Any = _text_cfg(text, state)
    # Configs from before 2023 always say 2; the end token is then the highest id.
    if text["eos_token_id"] == 2:
        text_cfg["pool_type"] = "argmax"
    else:
        text_cfg |= {"pool_type": "eos", "eos_id": text["eos_token_id"]}
    model: Any = open_clip.CLIP(len(state["text_projection.weight"]), vision_cfg, text_cfg)  # type: ignore[arg-type]
    for blocks, tower in ((model.transformer.resblocks, text), (model.visual.transformer.resblocks, vision)):
        for block in blocks:
            block.mlp.gelu = tower["act"]()
    converted = _renamed(state, {**_TEXT, **_CLIP, **_BLOCK})
    for name in ("text_projection", "visual.proj"):
        converted[name] = converted[name].T
    return model, converted


def _siglip(text: Mapping[str, Any], vision: Mapping[str, Any], state: State) -> tuple[nn.Module, State]:
    width = len(state[_PATCHES])
    text_cfg: Any = {**_text_cfg(text, state), "no_causal_mask": True, "pool_type": "last", "proj_bias": True}
    placeholder: Any = {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "none"}
    D = len(state["text_model.head.weight"])
    model: Any = open_clip.CustomTextCLIP(D, placeholder, text_cfg, init_logit_bias=0.0)
    for block in model.text.transformer.resblocks:
        block.mlp.gelu = text["act"]()
    sizes = _sizes(vision, state, "vision")
    model.visual.image_size = (vision["image_size"],) * 2
    model.visual.trunk = VisionTransformer(
        img_size=vision["image_size"], patch_size=state[_PATCHES].shape[-1], embed_dim=width, depth=sizes["layers"],
        num_heads=vision["num_attention_heads"], mlp_ratio=sizes["mlp_ratio"], num_classes=0, class_token=False,
        global_pool="map", act_layer=vision["act"], norm_layer=partial(nn.LayerNorm, **sizes["norm_kwargs"]),
    )  # fmt: skip
    converted = _renamed(state, {**{key: f"text.{value}" for key, value in _TEXT.items()}, **_SIGLIP, **_BLOCK})
    converted["visual.trunk.pos_embed"] = converted["visual.trunk.pos_embed"][None]
    for kind in ("weight", "bias"):
        q, kv = converted.pop(f"visual.trunk.attn_pool.in_proj_{kind}").split([width, 2 * width])
        converted |= {f"visual.trunk.attn_pool.q.{kind}": q, f"visual.trunk.attn_pool.kv.{kind}": kv}
    converted["logit_bias"] = converted["logit_bias"].reshape(())
    return model, converted


def _renamed(state: State, names: Mapping[str, Any]) -> State:
    """The weights under open_clip's names, with queries, keys and values of a block in one matrix."""
    renamed: State = {}
    for key, value in state.items():
        if key.endswith("position_ids") or ".k_proj." in key or ".v_proj." in key:
            continue
        if ".q_proj." in key:
            parts = [key, key.replace(".q_proj.", ".k_proj."), key.replace(".q_proj.", ".v_proj.")]
            value = torch.cat([state[part] for part in parts])
            key = key.replace(".q_proj.", ".qkv.")
        for old, new in names.items():
            if isinstance(new, str) and key.startswith(old):
                key = new + key.removeprefix(old)
            elif not isinstance(new, str) and old in key:
                for inner, name in new.items():
                    key = key.replace(inner, name)
        renamed[key] = value
    return renamed


def _text_cfg(tower: Mapping[str, Any], state: State) -> dict[str, Any]:
    return {
        "context_length": len(state["text_model.embeddings.position_embedding.weight"]),
        "vocab_size": len(state["text_model.embeddings.token_embedding.weight"]),
        "heads": tower["num_attention_heads"],
        **_sizes(tower, state, "text"),
    }


def _sizes(tower: Mapping[str, Any], state: State, side: str) -> dict[str, Any]:
    hidden, width = state[f"{side}_model.encoder.layers.0.mlp.fc1.weight"].shape
    layers = {key.split(".")[3] for key in state if key.startswith(f"{side}_model.encoder.layers.")}
    ratio = (hidden + 0.5) / width  # the towers round width * ratio down
    return {"width": width, "layers": len(layers), "mlp_ratio": ratio, "norm_kwargs": {"eps": tower["layer_norm_eps"]}}
