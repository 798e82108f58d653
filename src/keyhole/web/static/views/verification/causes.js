// Does the answer need what was removed? Effects on it, beside those of controls: as sentences, and by kind as a table.
import { h } from "../../lib/dom.js";
import { count, number } from "../../lib/format.js";

/** @param {any} found all removals with an effect, the largest first; where a circuit has no answer, the largest drops */
export function ranked(found) {
  const order = found.causes.order.map((/** @type {number} */ i) => found.rows[i]);
  return order.length ? order : [...found.rows].sort((a, b) => (b.drop ?? 0) - (a.drop ?? 0));
}

/** @param {any} row @returns {number | null} the effect of its own control that moves the answer most */
export function largestControl(row) {
  return row.control_effects.reduce(
    (/** @type {number | null} */ most, /** @type {number} */ one) => (Math.abs(one) > Math.abs(most ?? 0) ? one : most ?? one),
    null,
  );
}

/** @param {any} row what it does to the answer, as the library's report says it */
export function verdict(row) {
  if (row.effect === null) return "";
  if (row.matters === null) return "too few controls";
  return !row.matters ? "like controls" : row.effect > 0 ? "supports" : "holds back";
}

/** @param {any} found how many of all matter */
export function said(found) {
  const { groups, order } = found.causes;
  if (!order.length) return "This circuit has no answer, so there are no effects on it.";
  const total = (/** @type {string} */ key) => groups.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one[key], 0);
  const [support, against] = [total("supporting"), total("holding_back")];
  if (!groups.some((/** @type {any} */ one) => one.bar !== null)) return "There are too few controls to say which removals matter.";
  return `${support + against} of ${count(order.length, "removal")} matter to the answer by more than controls: ${support} support it, ${against} hold it back.`;
}

/** @param {any} found a row per kind of removal; effects and those of controls are sizes in the answer's unit */
export function kinds(found) {
  const heads = ["removed", "number", "support", "hold back", "by chance", "median effect", "controls"];
  const line = (/** @type {any} */ one) => {
    const known = one.bar !== null;
    const cells = [
      one.removals,
      known ? one.supporting : "–",
      known ? one.holding_back : "–",
      known ? `≤ ${number(one.by_chance, 1)}` : "–",
      number(one.median_effect),
      number(one.median_control),
    ];
    return h("tr", { "data-kind": one.kind }, h("td", null, one.kind), cells.map((text) => h("td", { class: "number" }, text)));
  };
  return h(
    "div",
    { class: "rows" },
    h(
      "table",
      { "aria-label": "Effects by kind of removal", class: "kinds" },
      h("thead", null, h("tr", null, heads.map((name, i) => h("th", { class: i ? "number" : null, scope: "col" }, name)))),
      h("tbody", null, found.causes.groups.map(line)),
    ),
  );
}
