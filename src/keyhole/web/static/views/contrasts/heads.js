// Through which heads does the contrast pass? A bar per head: what of its gap in logits passes through the feature.
import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { clamp } from "../../lib/scale.js";

const MOST = 14; // heads that have a bar
const FULL = 1.2; // a share that fills the bar; more than 1 is possible on held-out samples

/**
 * @param {any} found @param {string} name of the feature @param {{ head: string, feature: string }} seen
 * @param {(head: string, feature: string) => void} see
 */
export function headBars(found, name, seen, see) {
  const rank = (/** @type {any} */ row) => row.features[name];
  const rows = [...found.heads]
    .filter((row) => rank(row))
    .sort(
      (a, b) =>
        Number(b.selected) - Number(a.selected) ||
        (a.selected ? 0 : rank(a).p_corrected - rank(b).p_corrected) ||
        rank(b).share - rank(a).share,
    )
    .slice(0, MOST);
  const row = (/** @type {any} */ one) => {
    const { share, rank: dimensions, p_corrected: p } = rank(one);
    const mine = seen.head === one.head && seen.feature === name;
    const label = one.selected
      ? h("button", { type: "button", class: "plain", onclick: () => see(one.head, name) }, one.head)
      : one.head;
    return h(
      "tr",
      {
        class: mine ? "picked" : one.selected ? "opens" : "faint",
        "data-head": one.head,
        onclick: () => one.selected && see(one.head, name),
      },
      h("td", null, label),
      h(
        "td",
        { class: "bar-cell" },
        h(
          "span",
          { class: "share-bar" },
          h("i", {
            class: one.selected ? null : "dim",
            style: { width: `${(100 * clamp(share / FULL, 0, 1)).toFixed(1)}%` },
          }),
          h("b", { style: { left: `${100 / FULL}%` } }),
        ),
      ),
      h("td", { class: "number" }, dimensions ? number(share, 2) : "–"),
      h("td", { class: "number" }, dimensions),
      h("td", { class: "number" }, dimensions ? h("span", { class: p <= 0.05 ? "met" : null }, number(p)) : "–"),
      h("td", { class: "number" }, number(one.positive, 2)),
    );
  };
  const head = [
    ["head", ""],
    ["share of gap", "number"],
    ["", "number"],
    ["rank", "number"],
    ["p", "number"],
    ["right", "number"],
  ].map(([text, kind]) => h("th", { class: kind || null, scope: "col", title: WHY[text] ?? null }, text));
  return h(
    "section",
    { class: "head-bars", "data-feature": name },
    h(
      "h4",
      null,
      name,
      h("span", { class: "faint" }, `${found.selected.length} of ${found.heads.length} heads selected`),
    ),
    h(
      "table",
      { "aria-label": `Heads by share of ${name}` },
      h("thead", null, h("tr", null, head)),
      h("tbody", null, rows.map(row)),
    ),
  );
}

/** @type {Record<string, string>} */
const WHY = {
  "share of gap": "what of the held-out gap in logits passes through the feature; the line is all of it",
  rank: "dimensions of the feature; 0: there is none, and nothing to test",
  p: "corrected over all heads",
  right: "attention on the right keys",
};
