"""A model-hub space: classify a photo into your own classes, with a confidence you can act on."""

from functools import lru_cache

import gradio as gr

import cots

MODEL = "mini"  # small, ships with cots; "ViT-B-16/openai" is downloaded at the first start
METHODS = ["tpt+ecots", "tpt+cots", "tpt", "zeroshot"]
CLASSES = "cat\ndog\nbird\ncar\nflower\nfruit\nbuilding\nbottle"
backbone = cots.load(MODEL)


@lru_cache(maxsize=8)
def classifier(classes: tuple[str, ...], method: str) -> cots.Classifier:
    return cots.Classifier(backbone, classes=classes, method=method)


def classify(photo, names: str, method: str) -> tuple[dict[str, float], str]:
    """Probabilities by class for the label widget, and a sentence on what the confidence means."""
    classes = tuple(dict.fromkeys(name.strip() for name in names.splitlines() if name.strip()))
    if photo is None or not classes:
        raise gr.Error("Give a photo and at least one class name, one per line.")
    try:
        found = classifier(classes, method)(photo)
    except cots.CotsError as error:
        raise gr.Error(str(error)) from error
    meaning = f"Of 100 photos with this confidence, about **{round(100 * found.confidence)}** should be correct."
    return dict(found.top(5)), f"{meaning} Temperature {found.tau:.2f}."


photo = gr.Image(type="pil", label="Photo")
names = gr.Textbox(CLASSES, lines=8, label="Class names, one per line")
method = gr.Radio(METHODS, value=METHODS[0], label="Method")
outputs = [gr.Label(num_top_classes=5, label="Classes"), gr.Markdown()]
demo = gr.Interface(
    fn=classify, inputs=[photo, names, method], outputs=outputs, title="What's in this photo, and how sure can we be?"
)

if __name__ == "__main__":
    demo.launch()
