// Elements are built without markup strings, so text can never become markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** h("p", {class: "soft"}, "text", h("b", null, "more")) */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

export const $ = (id) => document.getElementById(id);

/** Replace the contents of `node`. */
export const put = (node, ...children) => node.replaceChildren(...children.flat(Infinity).filter(Boolean));

/** Show `text` in the element, or hide it when there is none. */
export function tell(node, text) {
  node.textContent = text ?? "";
  node.hidden = !text;
}

/** A fraction in percent; values near 1 are never shown as 100%, nor values near 0 as 0%. */
export function percent(fraction, digits = 1) {
  if (fraction === null || fraction === undefined || Number.isNaN(fraction)) return "–";
  const value = 100 * fraction;
  if (value < 100 && Number(value.toFixed(digits)) >= 100) return `>${(100 - 10 ** -digits).toFixed(digits)}%`;
  if (value > 0 && value < 10 ** -digits / 2) return `<${(10 ** -digits).toFixed(digits)}%`;
  return `${value.toFixed(digits)}%`;
}

/** A number with `digits` decimals, or a dash. */
export const number = (value, digits) =>
  value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits);

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** "a, b and c" */
export const listed = (names) =>
  names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
