// How do parts of a detail read? Facts, bars of channels, lists of edges, and a field for a name.
import { isAttached, isSufficient, nodeLabel } from "../../../lib/circuit.js";
import { h } from "../../../lib/dom.js";
import { count, number, share } from "../../../lib/format.js";

/** @typedef {import("./detail.js").About} About */

const MOST = 12; // edges in a list

/** @param {{ channel: number, ig: number, drop: number }[]} parts @param {boolean} open @param {() => void} toggle */
export function channelBars(parts, open, toggle) {
  const most = Math.max(...parts.map((part) => Math.abs(part.ig)), 1e-9);
  const row = (/** @type {typeof parts[0]} */ part) =>
    h(
      "li",
      null,
      h("span", { class: "number" }, part.channel),
      h(
        "span",
        { class: "bar" },
        h("span", {
          class: part.ig < 0 ? "fill less" : "fill",
          style: { width: `${(100 * Math.abs(part.ig)) / most}%` },
        }),
      ),
      h("span", { class: "number" }, number(part.ig)),
      h("span", { class: "number soft" }, `−${number(part.drop)}`.replace("−−", "+")),
    );
  return h(
    "div",
    null,
    h(
      "h2",
      null,
      count(parts.length, "channel"),
      h(
        "button",
        { type: "button", class: "plain", "aria-pressed": String(open), onclick: toggle },
        open ? "draw as one" : "draw apart",
      ),
    ),
    h(
      "ul",
      { class: "bars", "aria-label": "Channels: attribution, and change of attention in the order of removal" },
      parts.map(row),
    ),
  );
}

/** @param {[string, string][]} facts */
export function factList(facts) {
  return h(
    "dl",
    { class: "facts" },
    facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** @param {About} about @param {string} title @param {number[]} edges @param {"from" | "to"} end */
export function edgeList({ graph, names, does }, title, edges, end) {
  const { doc, strength } = graph;
  if (!edges.length) return null;
  const ranked = [...edges].sort((a, b) => strength[b] - strength[a]);
  const row = (/** @type {number} */ index) => {
    const edge = doc.edges[index];
    const whole = isSufficient(doc) && !isAttached(doc, index);
    const value = whole ? share(edge.weight) : edge.influence === undefined ? number(edge.weight) : share(edge.influence);
    return h(
      "li",
      null,
      h(
        "button",
        { type: "button", class: "line", onclick: () => does.pick(index) },
        h("span", { class: `side ${edge.side}` }, edge.side),
        h(
          "span",
          { class: "who" },
          nodeLabel(doc.nodes[edge[end]], doc.tokens),
          names[index] && h("em", null, names[index].text),
        ),
        h("span", { class: "number" }, value),
      ),
    );
  };
  const rest =
    ranked.length > MOST &&
    h(
      "details",
      null,
      h("summary", null, `${ranked.length - MOST} weaker`),
      h("ul", { class: "lines" }, ranked.slice(MOST).map(row)),
    );
  return h("div", null, h("h2", null, title), h("ul", { class: "lines" }, ranked.slice(0, MOST).map(row)), rest);
}

/** @param {string} before @param {(name: string) => void} done */
export function renamer(before, done) {
  const field = h("input", { type: "text", value: before, "aria-label": "Name", maxlength: 60 });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    done(field.value.trim());
  };
  const form = h(
    "form",
    { class: "rename", hidden: true, onsubmit: submit },
    field,
    h("button", { type: "submit" }, "Keep"),
  );
  const open = () => {
    form.hidden = !form.hidden;
    if (!form.hidden) field.select();
  };
  return [h("button", { type: "button", onclick: open }, "Rename"), form];
}
