// /openapi.json as a page.

import { get } from "./api.js";
import { $, h, put } from "./dom.js";

const VERBS = ["get", "post", "put", "patch", "delete"];
const LIMITS = ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"];

async function start() {
  let api;
  try {
    api = await get("/openapi.json");
  } catch (error) {
    put($("error"), error.message);
    $("error").hidden = false;
    return;
  }
  $("title").textContent = `${api.info.title} HTTP API ${api.info.version}`;
  put($("about"), paragraphs(api.info.description));
  const operations = Object.entries(api.paths).flatMap(([path, item]) =>
    VERBS.filter((verb) => item[verb]).map((verb) => operation(api, path, verb, item)),
  );
  put($("operations"), operations);
}

function operation(api, path, verb, item) {
  const { summary, description, parameters = [], requestBody, responses = {} } = item[verb];
  const rows = [...(item.parameters ?? []), ...parameters].map((one) => deref(api, one));
  const bodies = Object.entries(deref(api, requestBody)?.content ?? {});
  const id = `${verb}-${path.replace(/[^a-z0-9]+/gi, "-")}`;
  return h(
    "section",
    { class: "operation", "aria-labelledby": id },
    h("h3", { id }, h("span", { class: `verb ${verb}` }, verb.toUpperCase()), h("code", null, path)),
    paragraphs(description ?? summary),
    rows.length ? [h("h4", null, "Parameters"), parameterTable(api, rows)] : null,
    bodies.map(([kind, { schema, example }]) => [
      h("h4", null, "Body, ", h("code", null, kind)),
      fields(api, schema),
      sample(example),
    ]),
    h("h4", null, "Responses"),
    Object.entries(responses).map(([status, given]) => answer(api, status, deref(api, given))),
  );
}

function parameterTable(api, parameters) {
  const line = ({ name, required, in: place, schema, description }) =>
    [label(name, required), place, type(api, schema), words(description, schema)];
  return table(["name", "in", "type", "description"], parameters.map(line));
}

function answer(api, status, { description, content = {} }) {
  const kinds = Object.entries(content);
  const head = [h("code", null, status), " ", marked(description ?? "")];
  const shapes = kinds.filter(([, { schema }]) => schema && Object.keys(schema).length);
  if (!shapes.length) return h("p", null, head, kinds.length ? h("span", { class: "soft" }, ` ${kinds[0][0]}`) : null);
  const shape = ([kind, { schema, example }]) => [h("p", { class: "soft" }, kind), fields(api, schema), example ? h("pre", null, JSON.stringify(example, null, 2)) : null];
  return h("details", null, h("summary", null, head), shapes.map(shape));
}

const sample = (example) =>
  example
    ? h("details", { class: "example" }, h("summary", null, "Example"), h("pre", null, JSON.stringify(example, null, 2)))
    : null;

/** A schema with properties as a table, nested ones with dotted names; anything else as its type. */
function fields(api, schema) {
  const rows = flatten(api, schema);
  if (!rows.length) return h("p", null, h("code", null, type(api, schema)));
  return table(["field", "type", "description"], rows);
}

function flatten(api, given, before = "", depth = 0) {
  const schema = resolve(api, given);
  if (depth > 4) return [];
  if (schema?.items) return flatten(api, schema.items, `${before}[]`, depth + 1);
  return Object.entries(schema?.properties ?? {}).flatMap(([name, one]) => {
    const full = before ? `${before}.${name}` : name;
    const required = (schema.required ?? []).includes(name);
    const description = resolve(api, one)?.description ?? one.description;
    return [[label(full, required), type(api, one), words(description, one)], ...flatten(api, one, full, depth + 1)];
  });
}

const label = (name, required) => [h("code", null, name), required ? h("span", { class: "soft" }, " required") : null];

function words(description, schema = {}) {
  const limits = LIMITS.filter((key) => schema[key] !== undefined).map((key) => `${key} ${limit(schema[key])}`);
  const fallback = (schema.default ?? null) === null ? [] : [`default ${JSON.stringify(schema.default)}`];
  const extra = [...limits, ...fallback].join(", ");
  return [marked(description ?? ""), extra ? h("span", { class: "soft" }, `${description ? " " : ""}${extra}`) : null];
}

// JSON numbers beyond 2^53 are rounded when parsed.
const limit = (value) => (Math.abs(value) >= 2 ** 53 ? value.toExponential(1) : value);

function type(api, given) {
  const schema = resolve(api, given) ?? {};
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return [...new Set(either.map((one) => type(api, one)))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.items) return `list of ${type(api, schema.items)}`;
  if (schema.format === "binary" || schema.contentMediaType) return "file";
  return Array.isArray(schema.type) ? schema.type.join(" or ") : (schema.type ?? "anything");
}

/** Follow a reference, also through "this or null". */
function resolve(api, schema) {
  const found = deref(api, schema);
  const some = (found?.anyOf ?? []).filter((one) => one.type !== "null");
  return some.length === 1 && (some[0].$ref || some[0].properties) ? deref(api, some[0]) : found;
}

function deref(api, one) {
  if (!one?.$ref) return one;
  return one.$ref.replace("#/", "").split("/").reduce((at, key) => at?.[key], api);
}

const paragraphs = (text) => (text ?? "").split(/\n\s*\n/).filter(Boolean).map((part) => h("p", null, marked(part)));

/** `words` between back quotes as code. */
const marked = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", null, part) : part));

function table(heads, rows) {
  const head = h("thead", null, h("tr", null, heads.map((one) => h("th", { scope: "col" }, one))));
  const line = ([first, ...rest]) =>
    h("tr", null, h("th", { scope: "row" }, first), rest.map((one) => h("td", null, one)));
  const whole = h("table", null, head, h("tbody", null, rows.map(line)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heads.join(", ") }, whole);
}

start();
