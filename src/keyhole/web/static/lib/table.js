// Which rows are there, in which order? A table that sorts by a click on a column.
import { fill, h } from "./dom.js";

/**
 * @template R
 * @typedef {object} Column
 * @property {string} key @property {string} title @property {string} [why]
 * @property {boolean} [text] letters, not a number
 * @property {(row: R) => string | number | null} value by which it is sorted
 * @property {(row: R) => import("./dom.js").Child} [show] what stands there
 */
/** @typedef {{ key: string, down: boolean }} Sort */

/**
 * @template R
 * @param {{ label: string, columns: Column<R>[], rows: R[], sort?: Sort, row?: (row: R) => Record<string, any>, most?: number }} about
 */
export function sortable(about) {
  const el = h("div", { class: "rows" });
  let sort = about.sort ?? null;
  let most = about.most ?? 200;
  const draw = () => {
    const column = about.columns.find((one) => one.key === sort?.key);
    const rows = column && sort ? ordered(about.rows, column, sort.down) : about.rows;
    const heads = about.columns.map((one) =>
      heading(one, sort, (next) => {
        sort = next;
        draw();
      }),
    );
    const more =
      rows.length > most &&
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            most = Infinity;
            draw();
          },
        },
        `Show all ${rows.length.toLocaleString("en")}`,
      );
    const body = rows.slice(0, most).map((row) =>
      h(
        "tr",
        about.row?.(row) ?? null,
        about.columns.map((one) =>
          h("td", { class: one.text ? null : "number" }, one.show ? one.show(row) : one.value(row)),
        ),
      ),
    );
    fill(
      el,
      h("table", { "aria-label": about.label }, h("thead", null, h("tr", null, heads)), h("tbody", null, body)),
      more,
    );
  };
  draw();
  return el;
}

/**
 * @template R
 * @param {R[]} rows @param {Column<R>} column @param {boolean} down what has no value comes last
 */
function ordered(rows, column, down) {
  const sign = down ? -1 : 1;
  return rows
    .map((row) => ({ row, value: column.value(row) }))
    .sort((a, b) => {
      if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null);
      return (
        sign *
        (typeof a.value === "number" && typeof b.value === "number"
          ? a.value - b.value
          : String(a.value).localeCompare(String(b.value), "en", { numeric: true }))
      );
    })
    .map(({ row }) => row);
}

/** @param {Column<any>} column @param {Sort | null} sort @param {(sort: Sort) => void} ask */
function heading(column, sort, ask) {
  const mine = sort?.key === column.key;
  const order = mine ? (sort.down ? "descending" : "ascending") : "none";
  const click = () => ask({ key: column.key, down: mine ? !sort.down : !column.text });
  return h(
    "th",
    { class: column.text ? null : "number", scope: "col", "aria-sort": order, title: column.why },
    h(
      "button",
      { type: "button", onclick: click },
      column.title,
      h("span", { "aria-hidden": "true" }, mine ? (sort.down ? " ↓" : " ↑") : ""),
    ),
  );
}
