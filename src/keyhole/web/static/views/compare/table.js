// In what do they differ? Every term with how much of the answer goes through it, left and right; the largest difference first.
import { h } from "../../lib/dom.js";
import { segments } from "../../lib/controls.js";
import { number, share } from "../../lib/format.js";
import { sortable } from "../../lib/table.js";

/** @typedef {import("./terms.js").TermRow} TermRow */
/** @typedef {{ left: number, both: number, right: number, likeness: number | null }} Sum */

/** @type {[string, string][]} */
const GRAINS = [
  ["heads", "Heads, MLPs"],
  ["edges", "Edges"],
  ["channels", "Channels"],
];
/** @type {[string, string][]} */
const SHOWN = [
  ["all", "All"],
  ["difference", "Difference"],
  ["left", "Left"],
  ["right", "Right"],
  ["shared", "Shared"],
];

/** @param {{ kind: import("./terms.js").Grain, rows: TermRow[], sums: Record<string, Sum>, own: Record<string, string>, pick: (change: Record<string, string>) => void, notes: string[] }} about */
export function termTable({ kind, rows, sums, own, pick, notes }) {
  const show = own.show || "all";
  const kept = rows.filter(
    (row) =>
      ({
        all: true,
        difference: !row.a || !row.b,
        left: row.a && !row.b,
        right: row.b && !row.a,
        shared: row.a && row.b,
      })[show] ?? true,
  );
  const most = Math.max(1e-9, ...rows.map((row) => Math.abs(row.difference ?? 0)));
  const table = sortable({
    label: "Terms by difference",
    rows: kept,
    row: (row) => ({
      "data-term": row.term,
      class: own.term === row.term ? "picked" : null,
      "aria-selected": own.term === row.term ? "true" : null,
      onclick: () => pick({ term: own.term === row.term ? "" : row.term }),
    }),
    columns: [
      {
        key: "term",
        title: "term",
        text: true,
        value: (row) => row.term,
        show: (row) => [h("span", { class: `dot ${belongs(row)}`, title: belongs(row).replace("-", " ") }), row.term],
      },
      {
        key: "a",
        title: "left",
        why: "influence on the answer in the left circuit; – where it has no such term",
        value: (row) => row.left ?? (row.a || null),
        show: (row) => cell(row.a, row.left),
      },
      {
        key: "b",
        title: "right",
        why: "in the right circuit",
        value: (row) => row.right ?? (row.b || null),
        show: (row) => cell(row.b, row.right),
      },
      {
        key: "difference",
        title: "difference",
        why: "left less right",
        value: (row) => Math.abs(row.a - row.b) * 10 + Math.abs(row.difference ?? 0),
        show: (row) => bar(row, most),
      },
    ],
    sort: { key: "difference", down: true },
  });
  return [
    ...notes.map((note) => h("p", { class: "soft note" }, sentence(note))),
    venn(sums[kind]),
    h(
      "div",
      { class: "line-of" },
      segments("Terms", GRAINS.filter(([grain]) => grain in sums), kind, (terms) => pick({ terms, term: "" })),
      segments("Which are shown", SHOWN, show, (next) => pick({ show: next })),
    ),
    table,
  ];
}

/** @param {string} note the library's notes begin with a small letter */
function sentence(note) {
  return `${note[0].toUpperCase()}${note.slice(1)}.`;
}

/** @param {TermRow} row */
function belongs(row) {
  return row.a && row.b ? "shared" : row.a ? "left-only" : "right-only";
}

/** @param {number} there @param {number | null} influence */
function cell(there, influence) {
  if (!there) return h("span", { class: "faint" }, "–");
  return influence === null ? "✓" : share(influence);
}

/** @param {TermRow} row @param {number} most to the left what is more left, to the right what is more right */
function bar(row, most) {
  if (row.difference === null) return "";
  const left = row.difference >= 0;
  const fill = h("i", {
    class: left ? "left-only" : "right-only",
    style: { width: `${(36 * Math.min(1, Math.abs(row.difference) / most)).toFixed(1)}px` },
  });
  return [h("span", { class: `balance${left ? " to-left" : ""}` }, fill), h("em", null, share(row.difference))];
}

/** @param {Sum} sum */
function venn(sum) {
  const all = Math.max(1, sum.left + sum.both + sum.right);
  const part = (/** @type {string} */ name, /** @type {number} */ n, /** @type {string} */ says) =>
    h(
      "span",
      { class: `part ${name}`, style: { "flex-grow": String(Math.max(0.14, n / all)) }, "data-count": n },
      h("b", null, n),
      ` ${says}`,
    );
  return h(
    "div",
    { class: "venn", "aria-label": "How many terms each has" },
    part("left-only", sum.left, "left only"),
    part("shared", sum.both, "shared"),
    part("right-only", sum.right, "right only"),
    h("span", { class: "faint likeness", title: "Jaccard: shared of all" }, `likeness ${number(sum.likeness, 2)}`),
  );
}
