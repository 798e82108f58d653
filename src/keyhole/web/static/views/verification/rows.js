// What did each removal do? A table: its effect on the answer and its controls’; attention before, after and predicted.
import { nodeLabel } from "../../lib/circuit.js";
import { h } from "../../lib/dom.js";
import { number, signed } from "../../lib/format.js";
import { sortable } from "../../lib/table.js";
import { largestControl, ranked, verdict } from "./causes.js";

/** @typedef {import("../../lib/circuit.js").CircuitDocument} CircuitDocument */

/** @param {any} row @param {CircuitDocument} circuit whose attention or write is looked at, and what is removed */
export function removalLabel(row, circuit) {
  const node = circuit.nodes[row.node];
  const reader = node ? nodeLabel(node, circuit.tokens) : `node ${row.node}`;
  const edge = row.edge === null ? null : circuit.edges[row.edge];
  const from = edge
    ? nodeLabel(circuit.nodes[edge.from], circuit.tokens)
    : row.what === "side"
      ? "the whole side"
      : row.what === "causes"
        ? "its causes"
        : row.what;
  return { reader, from };
}

/** @param {any} found @param {CircuitDocument} circuit @param {(row: any) => void} light points at a row's point */
export function removals(found, circuit, light) {
  const label = (/** @type {any} */ row) => removalLabel(row, circuit);
  const plain = (/** @type {string} */ key, /** @type {string} */ title, /** @type {string} */ why) => ({
    key,
    title,
    why,
    value: (/** @type {any} */ row) => row[key],
    show: (/** @type {any} */ row) => number(row[key]),
  });
  const el = sortable({
    label: "Removals",
    rows: ranked(found),
    sort: { key: found.causes.order.length ? "effect" : "drop", down: true },
    row: (row) => ({ "data-row": found.rows.indexOf(row), class: row.agrees === false ? "off" : null }),
    columns: [
      {
        key: "reader",
        title: "reader",
        why: "whose attention, or whose write",
        text: true,
        value: (row) => label(row).reader,
      },
      {
        key: "side",
        title: "side",
        text: true,
        value: (row) => row.side,
        show: (row) => h("span", { class: `side ${row.side}` }, row.side),
      },
      { key: "from", title: "without", why: "what is removed", text: true, value: (row) => label(row).from },
      {
        key: "effect",
        title: "effect",
        why: "what the answer loses without it, of its logit difference or log-probability; sorted by size",
        value: (row) => (row.effect === null ? null : Math.abs(row.effect)),
        show: (row) => signed(row.effect),
      },
      {
        key: "control_effect",
        title: "control",
        why: "the same for its controls: the largest of them",
        value: (row) => Math.abs(largestControl(row) ?? 0),
        show: (row) => signed(largestControl(row)),
      },
      {
        key: "verdict",
        title: "the answer",
        why: "is the effect larger than those of controls, and with which sign?",
        text: true,
        value: (row) => verdict(row),
        show: (row) => h("span", { class: row.matters ? (row.effect > 0 ? "met" : "missed") : "faint" }, verdict(row)),
      },
      plain("before", "before", "attention, or share of the write, before"),
      plain("after", "after", "measured in the model’s own forward pass"),
      plain("predicted", "predicted", "after the removal, as predicted"),
      plain("drop", "drop", "before less after"),
      {
        key: "agrees",
        title: "",
        why: "did it do what was predicted?",
        text: true,
        value: (row) => (row.agrees === null ? null : row.agrees ? "yes" : "no"),
        show: (row) =>
          row.agrees === null ? "" : h("span", { class: row.agrees ? "met" : "missed" }, row.agrees ? "✓" : "✗"),
      },
    ],
  });
  const at = (/** @type {Event} */ event) =>
    /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("tr[data-row]"));
  el.addEventListener("pointerover", (event) => light(at(event) ? found.rows[Number(at(event)?.dataset.row)] : null));
  el.addEventListener("pointerleave", () => light(null));
  return el;
}
