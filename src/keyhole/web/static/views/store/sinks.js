// Why do heads attend to the first token? What the library found on each side, in its own words, tables and cosines.
import { h } from "../../lib/dom.js";
import { numberField, standing } from "../../lib/controls.js";
import { number, share } from "../../lib/format.js";
import { sortable } from "../../lib/table.js";

/** @typedef {import("../../lib/model.js").Model} Model */

/** @param {Model} model @param {any} _about */
export function sinks(model, _about) {
  const { own } = model.get("place");
  const field = numberField("prompts", own.sinks || "24", { min: 6, max: 500, name: "sinks" });
  const go = () =>
    model.send({ type: "ask", slot: "sinks", change: { sinks: String(field.querySelector("input")?.value || 24) } });
  const button = h("button", { type: "button", class: "go", "data-action": "sinks", onclick: go }, "Study sinks");
  const [found, waiting] = [model.get("sinks"), standing(model, "sinks", "Studying sinks")];
  const hint =
    "Which signals make heads attend to the first token, whether heads share them, and what removing them does, beside random directions.";
  return [
    h("div", { class: "asking" }, field, button, h("span", { class: "soft says" }, hint)),
    waiting,
    found && !waiting ? told(found) : null,
  ];
}

/** @param {any} found */
function told(found) {
  const sides = found.told.sides.map((/** @type {any} */ side, /** @type {number} */ i) =>
    h(
      "section",
      { class: "sink-side", "data-side": side.side },
      h("h3", null, h("span", { class: `side ${side.side}` }, side.side), ` side: ${side.found}`),
      h(
        "ul",
        { class: "told-lines" },
        side.lines.map((/** @type {string} */ line) => h("li", null, line)),
      ),
      h("div", { class: "sink-parts" }, heads(found.sides[i]), cosines(found.sides[i])),
      side.tables.map((/** @type {any} */ one) => plainTable(one)),
    ),
  );
  return h(
    "div",
    { class: "sinks-view" },
    h("p", { class: "verdict-line", "data-share": found.share }, found.told.opening),
    h("div", { class: "sink-sides" }, sides),
    h("pre", { class: "lines" }, found.told.massive.join("\n")),
  );
}

/** @param {any} side */
function heads(side) {
  return sortable({
    label: `Heads, ${side.side}`,
    rows: /** @type {any[]} */ (side.heads),
    most: 12,
    sort: { key: "spread", down: false },
    columns: [
      { key: "head", title: "head", text: true, value: (row) => `${row.layer}.${row.head}` },
      { key: "firings", title: "firings", value: (row) => row.firings },
      {
        key: "spread",
        title: "spread",
        why: "mean cosine distance of its signals: small is one signal",
        value: (row) => row.spread,
        show: (row) => number(row.spread, 2),
      },
      { key: "cluster", title: "cluster", why: "heads of one number share a signal", value: (row) => row.cluster },
      { key: "channels", title: "channels", value: (row) => row.channels, show: (row) => number(row.channels, 1) },
      {
        key: "writers",
        title: "written by",
        text: true,
        value: (row) => row.writers[0]?.[0] ?? null,
        show: (row) =>
          row.writers
            .slice(0, 2)
            .flatMap((/** @type {[string, number]} */ [who, part], /** @type {number} */ i) => [
              i ? ", " : "",
              who,
              h("span", { class: "faint" }, ` ${share(part)}`),
            ]),
      },
    ],
  });
}

/** Heads against heads: the cosine of their signals, blue alike, red opposite. @param {any} side */
function cosines(side) {
  const n = side.cosines.length;
  if (!n) return null;
  const canvas = h("canvas", { class: "cosines", role: "img", "aria-label": `Cosines of the signals of ${n} heads` });
  const cell = Math.max(3, Math.floor(200 / n));
  Object.assign(canvas, { width: cell * n * 2, height: cell * n * 2 });
  canvas.style.width = `${cell * n}px`;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const style = getComputedStyle(document.querySelector(".keyhole") ?? document.body);
  const [ink, red] = ["--head", "--target"].map((name) => style.getPropertyValue(name).trim());
  side.cosines.forEach((/** @type {number[]} */ row, /** @type {number} */ i) =>
    row.forEach((value, j) => {
      pen.globalAlpha = Math.min(1, Math.abs(value ?? 0));
      pen.fillStyle = (value ?? 0) >= 0 ? ink : red;
      pen.fillRect(2 * cell * j, 2 * cell * i, 2 * cell - 1, 2 * cell - 1);
    }),
  );
  return h(
    "figure",
    { class: "cosine-map" },
    canvas,
    h("figcaption", { class: "faint" }, "cosines of heads’ signals: blue alike, red opposite"),
  );
}

/** @param {{ columns: string[], rows: (string | number | null)[][] }} table as the library prints it: > before a column of numbers */
function plainTable({ columns, rows }) {
  const isNumber = columns.map((column) => column.startsWith(">"));
  const show = (/** @type {string | number | null} */ value) =>
    typeof value !== "number" ? (value ?? "") : Number.isInteger(value) ? value : number(value);
  return h(
    "div",
    { class: "rows plain-table" },
    h(
      "table",
      null,
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          columns.map((column, i) =>
            h("th", { class: isNumber[i] ? "number" : null, scope: "col" }, column.replace(/^>/, "")),
          ),
        ),
      ),
      h(
        "tbody",
        null,
        rows.map((row) =>
          h(
            "tr",
            null,
            row.map((value, i) => h("td", { class: isNumber[i] ? "number" : null }, show(value))),
          ),
        ),
      ),
    ),
  );
}
