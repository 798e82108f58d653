// Does a circuit hold, removal by removal? Arithmetic and causes in a sentence each, a plot, and every row as a table.
import { h } from "../lib/dom.js";
import { number, signed } from "../lib/format.js";
import { kinds, largestControl, ranked, verdict } from "./verification/causes.js";
import { scatter, summary } from "./verified.js";

/** @typedef {import("../lib/model.js").Model} Model */
const MOST = 300; // rows

/** Key: `verification`. @param {{ model: Model, el: HTMLElement }} where */
function render({ model, el }) {
  const found = model.get("verification");
  const note = found.note ? h("p", { class: "faint" }, found.note) : null;
  el.append(h("section", { class: "verification" }, summary(found), note, scatter(found, model), kinds(found), table(found)));
}

export default { render };

/** @param {any} found the largest effects on the answer first */
function table(found) {
  const rows = ranked(found);
  const columns = ["node", "side", "what", "effect", "control", "before", "after", "predicted"];
  const head = h("tr", {}, columns.map((name, i) => h("th", { class: i > 2 ? "number" : null, scope: "col" }, name)), ["the answer", "arithmetic"].map((name) => h("th", { scope: "col" }, name)));
  const left = rows.length - MOST;
  return h("div", { class: "rows", tabindex: 0 }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows.slice(0, MOST).map(line))), left > 0 && h("p", { class: "faint" }, `and ${left} with smaller effects`));
}

/** @param {any} row */
function line(row) {
  const what = row.edge === null ? row.what : `${row.what} ${row.edge}`;
  const numbers = [signed(row.effect), signed(largestControl(row)), number(row.before), number(row.after), number(row.predicted)];
  const claim = row.agrees === null ? "no promise" : row.agrees ? "as predicted" : "differs";
  return h("tr", { "data-agrees": String(row.agrees) }, [row.node, row.side, what].map((text) => h("td", {}, text)), numbers.map((text) => h("td", { class: "number" }, text)), h("td", { class: row.matters ? null : "faint" }, verdict(row)), h("td", { class: row.agrees === false ? "missed" : "soft" }, claim));
}
