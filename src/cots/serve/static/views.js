// The views of a photo that the methods selected.

import { h, listed } from "./dom.js";
import { plainName } from "./methods.js";

/** Methods that selected the same views share a row. */
export function views({ results, thumbnails }) {
  const pictures = new Map(thumbnails.map(({ view, src }) => [view, src]));
  if (!pictures.size) return null;
  const groups = new Map();
  for (const result of results) {
    if (!result.views.length) continue;
    const key = [...result.views].sort((a, b) => a - b).join(" ");
    groups.set(key, { views: result.views, methods: [...(groups.get(key)?.methods ?? []), plainName(result.method)] });
  }
  const picture = (view) => {
    const words = view === 0 ? "whole photo" : `view ${view}`;
    const image = h("img", { src: pictures.get(view), alt: words, width: 80, height: 80 });
    return h("figure", null, image, h("figcaption", null, words));
  };
  const row = (title, some) => [
    h("p", { class: "soft small wide" }, title),
    h("div", { class: "thumbs" }, some.filter((view) => pictures.has(view)).map(picture)),
  ];
  const selected = (n) => (n === 1 ? "the view" : `the ${n} views`);
  return h(
    "section",
    { class: "views", "aria-labelledby": "views-title" },
    h("h3", { id: "views-title" }, "Selected views"),
    groups.size
      ? [...groups.values()].map(({ views: some, methods }) =>
          row(`The whole photo, then ${selected(some.length)} selected by ${listed(methods)}`, [0, ...some]),
        )
      : row("The whole photo; none of these methods selects views", [0]),
  );
}
