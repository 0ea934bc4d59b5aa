"""A model-hub space: a photo and class names in, classes with a confidence that can be acted on out."""

from functools import lru_cache

import gradio as gr

import cots

MODEL = "mini"  # small and inside the package; "ViT-B-16/openai" is fetched at the first start
METHODS = ["tpt+ecots", "tpt+cots", "tpt", "zeroshot"]
CLASSES = "cat\ndog\nbird\ncar\nflower\nfruit\nbuilding\nbottle"
backbone = cots.load(MODEL)


@lru_cache(maxsize=8)
def classifier(classes: tuple[str, ...], method: str) -> cots.Classifier:
    return cots.Classifier(backbone, classes=classes, method=method)


def classify(photo, names: str, method: str) -> tuple[dict[str, float], str]:
    """Probabilities by class for the label widget, and what the first of them means."""
    classes = tuple(dict.fromkeys(name.strip() for name in names.splitlines() if name.strip()))
    if photo is None or not classes:
        raise gr.Error("Give a photo and at least one class name, one per line.")
    try:
        found = classifier(classes, method)(photo)
    except cots.CotsError as error:
        raise gr.Error(str(error)) from error
    told = f"Of 100 photos with such a confidence about **{round(100 * found.confidence)}** should be right."
    return dict(found.top(5)), f"{told} Temperature {found.tau:.2f}."


photo = gr.Image(type="pil", label="Photo")
names = gr.Textbox(CLASSES, lines=8, label="Class names, one per line")
method = gr.Radio(METHODS, value=METHODS[0], label="Method")
outputs = [gr.Label(num_top_classes=5, label="Classes"), gr.Markdown()]
demo = gr.Interface(fn=classify, inputs=[photo, names, method], outputs=outputs, title="A confidence to act on")

if __name__ == "__main__":
    demo.launch()
