// Does a circuit hold, removal by removal? What was predicted against what was measured, and every row as a table.
import { h } from "../lib/dom.js";
import { number, signed } from "../lib/format.js";
import { scatter, summary } from "./verified.js";

/** @typedef {import("../lib/model.js").Model} Model */
const MOST = 300; // rows

/** Key: `verification`. @param {{ model: Model, el: HTMLElement }} where */
function render({ model, el }) {
  const found = model.get("verification");
  const note = found.note ? h("p", { class: "faint" }, found.note) : null;
  el.append(h("section", { class: "verification" }, summary(found), note, scatter(found, model), table(found)));
}

export default { render };

/** @param {any} found the largest drops first */
function table(found) {
  const rows = [...found.rows].sort((a, b) => (b.drop ?? 0) - (a.drop ?? 0));
  const columns = ["node", "side", "what", "before", "measured", "predicted", "random drop", "answer"];
  const head = h("tr", {}, columns.map((name, i) => h("th", { class: i > 2 ? "number" : null, scope: "col" }, name)), h("th", { scope: "col" }, ""));
  const left = rows.length - MOST;
  return h("div", { class: "rows", tabindex: 0 }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows.slice(0, MOST).map(line))), left > 0 && h("p", { class: "faint" }, `and ${left} with smaller drops`));
}

/** @param {any} row */
function line(row) {
  const what = row.edge === null ? row.what : `${row.what} ${row.edge}`;
  const answer = row.metric_before === null || row.metric_after === null ? "" : signed(row.metric_after - row.metric_before);
  const numbers = [number(row.before), number(row.after), number(row.predicted), number(row.control), answer];
  const said = row.agrees === null ? "no promise" : row.agrees ? "as predicted" : "differs";
  return h("tr", { "data-agrees": String(row.agrees) }, [row.node, row.side, what].map((text) => h("td", {}, text)), numbers.map((text) => h("td", { class: "number" }, text)), h("td", { class: row.agrees === false ? "missed" : "soft" }, said));
}
