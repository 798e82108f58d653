// Why has a head no feature? What the library says of it, and what other settings give there beside their controls.
import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";

/** @type {[string, string][]} */
const COLUMNS = [
  ["settings", "ask for these to have the feature"],
  ["rank", "dimensions of the feature"],
  ["share of gap", "what of the held-out gap in logits passes through the feature"],
  ["p", "of the share, corrected over all heads and these settings"],
  ["moved", "attention that a swap of the feature moves from right to target keys"],
  ["permuted", "the same with features of permuted labels, their mean"],
  ["random", "the same with random subspaces of its rank"],
  ["whole", "the same with whole keys"],
  ["result", "the first control that it does not exceed"],
];

const SAYS = "What other settings give there. The verdict stays; ask for them at the command line or in Python.";

/** @param {any} found @param {string} head */
export function withoutFeature(found, head) {
  return found.no_feature.filter((/** @type {any} */ one) => one.head === head).map(section);
}

/** @param {any} one */
function section(one) {
  const row = (/** @type {any} */ other) => {
    const swap = other.swap ?? {};
    const numbers = [other.rank && other.share, other.rank && other.p, swap.shift, other.permuted, swap.random, swap.full];
    return h(
      "tr",
      { "data-options": other.options },
      h("td", null, other.options),
      h("td", { class: "number" }, other.rank),
      numbers.map((x, i) => h("td", { class: "number" }, other.rank ? number(x, i ? 3 : 2) : "")),
      h("td", null, other.result),
    );
  };
  return h(
    "section",
    { class: "no-feature", "data-empty": `${one.head}:${one.feature}` },
    h("h4", null, `No feature of ${one.feature} in ${one.head}`),
    h(
      "ul",
      { class: "small-text" },
      one.why.map((/** @type {string} */ text) => h("li", null, text)),
    ),
    h("p", { class: "faint small-text" }, SAYS),
    h(
      "table",
      { "aria-label": `Other settings for ${one.feature} in ${one.head}` },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          COLUMNS.map(([text, title], i) =>
            h("th", { class: i && i < COLUMNS.length - 1 ? "number" : null, scope: "col", title }, text),
          ),
        ),
      ),
      h("tbody", null, one.alternatives.map(row)),
    ),
  );
}
