// Where do queries and keys lie? Their first principal components: queries as outlines, keys filled, colours by label.
import { h, s } from "../../lib/dom.js";
import { segments } from "../../lib/controls.js";
import { share } from "../../lib/format.js";
import { colour, COLOURS, distinct } from "../../lib/palette.js";
import { linear } from "../../lib/scale.js";
import { short } from "../../lib/tokens.js";

const SIDE = 420;
const EDGE = 26;

/** @param {any} found @param {{ head: string, feature: string }} seen @param {(head: string, feature: string) => void} see */
export function cloudOf(found, { head, feature }, see) {
  const own = found.clouds[head] ?? {};
  const cloud = own[feature];
  const which = segments(
    "Head",
    found.selected
      .filter((/** @type {string} */ one) => found.clouds[one])
      .map((/** @type {string} */ one) => [one, one]),
    head,
    (next) => see(next, feature),
  );
  const of = segments(
    "Feature",
    Object.keys(own).map((name) => [name, name]),
    feature,
    (next) => see(head, next),
  );
  const body = !cloud
    ? h("p", { class: "soft" }, "This head has no picture.")
    : cloud.error
      ? h("p", { class: "soft" }, cloud.error)
      : [picture(cloud, head), key(cloud.labels)];
  return h(
    "section",
    { class: "cloud" },
    h("h4", null, `Queries and keys of ${head}`),
    h("div", { class: "line-of" }, which, of),
    body,
  );
}

/** @param {any} cloud @param {string} head */
function picture(cloud, head) {
  const all = [...cloud.queries, ...cloud.keys];
  const range = (/** @type {number} */ axis) => [
    Math.min(...all.map((p) => p[axis])),
    Math.max(...all.map((p) => p[axis])),
  ];
  const [[a, b], [c, d]] = [range(0), range(1)];
  const span = Math.max(b - a, d - c, 1e-9) / 2; // the same scale along both
  const [x, y] = [
    linear([(a + b) / 2 - span, (a + b) / 2 + span], [EDGE, SIDE - EDGE]),
    linear([(c + d) / 2 - span, (c + d) / 2 + span], [SIDE - EDGE, EDGE]),
  ];
  const values = distinct(cloud.labels);
  const of = (/** @type {number} */ i) => colour(values.indexOf(String(cloud.labels[i])));
  const keys = cloud.keys.map((/** @type {number[]} */ p, /** @type {number} */ i) =>
    s(
      "circle",
      { cx: x(p[0]), cy: y(p[1]), r: 3.6, class: "key-point", style: { fill: of(i) } },
      s("title", null, `key, ${cloud.labels[i]}`),
    ),
  );
  const queries = cloud.queries.map((/** @type {number[]} */ p, /** @type {number} */ i) =>
    s(
      "circle",
      { cx: x(p[0]), cy: y(p[1]), r: 5.4, class: "query-point", style: { stroke: of(i) } },
      s("title", null, `query, ${cloud.labels[i]}`),
    ),
  );
  const says = `Queries and keys of head ${head}, ${cloud.queries.length} of each, in two principal components`;
  return s(
    "svg",
    { class: "cloud-plot", viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": says },
    s("rect", { x: 8, y: 4, width: SIDE - 12, height: SIDE - 22, class: "frame" }),
    keys,
    queries,
    s(
      "text",
      { x: SIDE / 2, y: SIDE - 4, "text-anchor": "middle", class: "tick name" },
      `first component (${share(cloud.shares[0])})`,
    ),
    s(
      "text",
      { transform: `translate(4 ${SIDE / 2}) rotate(-90)`, "text-anchor": "middle", class: "tick name", dy: -2 },
      "",
    ),
    s("text", { x: 14, y: 18, class: "tick name" }, `second component upwards (${share(cloud.shares[1])})`),
  );
}

/** @param {(string | number)[]} labels */
function key(labels) {
  const values = distinct(labels);
  return h(
    "ul",
    { class: "key inline" },
    h(
      "li",
      null,
      s(
        "svg",
        { width: 14, height: 14, viewBox: "0 0 14 14" },
        s("circle", { cx: 7, cy: 7, r: 5, class: "query-point", style: { stroke: "var(--soft)" } }),
      ),
      "query",
    ),
    h(
      "li",
      null,
      s(
        "svg",
        { width: 14, height: 14, viewBox: "0 0 14 14" },
        s("circle", { cx: 7, cy: 7, r: 4, class: "key-point", style: { fill: "var(--soft)" } }),
      ),
      "key",
    ),
    values
      .slice(0, COLOURS)
      .map((value, i) =>
        h("li", null, h("i", { class: "chip-of", style: { background: colour(i) } }), short(value, 24)),
      ),
    values.length > COLOURS && h("li", { class: "faint" }, `and ${values.length - COLOURS} more`),
  );
}
