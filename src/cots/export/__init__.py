"""A classifier with fixed classes as one ONNX file, and as a program of `torch.export`.

    classifier = cots.Classifier("ViT-B-16/openai", ["tabby cat", "golden retriever"], "zeroshot")
    cots.export.export_classifier(classifier, "folder", photos)

The command is `cots export`. Both need the extra `export`.
"""

from ._check import Agreement
from ._export import Exported, export_classifier
from ._frozen import INPUT, OUTPUTS, FrozenClassifier, exact_temperature
from ._graph import require_packages
from ._temperature import Distance, match_confidence

__all__ = [
    "INPUT", "OUTPUTS", "Agreement", "Distance", "Exported", "FrozenClassifier", "exact_temperature",
    "export_classifier", "match_confidence", "require_packages",
]  # fmt: skip
