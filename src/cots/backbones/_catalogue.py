"""The models that people use most, with their size, pretraining data and the licence of their weights."""

from collections.abc import Iterator

UNKNOWN = "unknown"
# name; parameters of both towers in millions; pretraining data; licence under which its authors publish the weights
_TABLE = """
mini; 8; ImageNet (image tower), Pets, Caltech-101, Flowers; Apache-2.0
RN50/openai; 102; WIT-400M; MIT
RN101/openai; 120; WIT-400M; MIT
ViT-B-32/openai; 151; WIT-400M; MIT
ViT-B-16/openai; 150; WIT-400M; MIT
ViT-L-14/openai; 428; WIT-400M; MIT
ViT-L-14-336/openai; 428; WIT-400M; MIT
ViT-B-32/laion2b_s34b_b79k; 151; LAION-2B; MIT
ViT-B-16/laion2b_s34b_b88k; 150; LAION-2B; MIT
ViT-L-14/laion2b_s32b_b82k; 428; LAION-2B; MIT
ViT-H-14/laion2b_s32b_b79k; 986; LAION-2B; MIT
convnext_base_w/laion2b_s13b_b82k; 179; LAION-2B; MIT
ViT-B-32/datacomp_xl_s13b_b90k; 151; DataComp-1B; MIT
ViT-B-16/datacomp_xl_s13b_b90k; 150; DataComp-1B; MIT
ViT-L-14/datacomp_xl_s13b_b90k; 428; DataComp-1B; MIT
ViT-B-16/metaclip_400m; 150; MetaCLIP-400M; CC-BY-NC-4.0
ViT-B-16/metaclip_fullcc; 150; MetaCLIP-2.5B; CC-BY-NC-4.0
ViT-B-16/dfn2b; 150; DFN-2B; Apple's own
EVA02-B-16/merged2b_s8b_b131k; 150; LAION-2B, COYO-700M; MIT
EVA02-L-14/merged2b_s4b_b131k; 428; LAION-2B, COYO-700M; MIT
ViT-B-16-SigLIP/webli; 203; WebLI; Apache-2.0
ViT-L-16-SigLIP-256/webli; 652; WebLI; Apache-2.0
ViT-SO400M-14-SigLIP/webli; 877; WebLI; Apache-2.0
ViT-B-16-SigLIP2/webli; 375; WebLI; Apache-2.0
ViT-L-16-SigLIP2-256/webli; 882; WebLI; Apache-2.0
"""
_FORMS = ("ORG/NAME on the Hugging Face Hub", "local-dir:DIR", "ARCH//FILE", "random:ARCH")


def known_models(everything: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """(name, parameters, data, licence) of each model; with `everything`, of every tag of open_clip."""
    rows = {row[0]: row for row in (tuple(line.split("; ")) for line in _TABLE.strip().splitlines())}
    for name, millions, data, licence in rows.values():
        yield name, f"{millions} M", data, licence
    if everything:
        import open_clip

        for arch, tag in open_clip.list_pretrained():
            if (name := f"{arch}/{tag}") not in rows:
                yield name, UNKNOWN, UNKNOWN, UNKNOWN
    for form in _FORMS:
        yield form, "", "", ""
