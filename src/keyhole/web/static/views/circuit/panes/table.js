// Which edges are there, in numbers? A table to sort: logits, drops of attention, contributions and shares of writes
// are different things.
import { channelParts, isAttached, isSufficient, isSvt, tightLabel } from "../../../lib/circuit.js";
import { fill, h } from "../../../lib/dom.js";
import { channelsLabel, count, number, share, signed } from "../../../lib/format.js";
import { amount, effectOf, shareOf } from "../../../lib/measured.js";

/** @typedef {import("../graph.js").Indexed} Indexed */
/**
 * @typedef {{ key: string, title: string, why: string, text?: boolean, value: (edge: number) => number | string |
 *   null, show?: (value: any) => string }} TableColumn
 */
/** @typedef {Record<string, { text: string }>} Names */

const ROWS = 150; // at first; the rest on request

/** @param {Indexed} graph @param {Names} names @returns {TableColumn[]} those that have something to say */
export function tableColumns(graph, names) {
  const { doc, measured } = graph;
  const [svt, given] = [isSvt(doc), doc.parameters.seeds === "given"];
  const label = (/** @type {number} */ node) => tightLabel(doc.nodes[node], doc.tokens);
  const searched = (/** @type {number} */ edge) => isSufficient(doc) && !isAttached(doc, edge); // its weight is a share
  const weight = (/** @type {string[]} */ sides) => (/** @type {number} */ edge) =>
    sides.includes(doc.edges[edge].side) && !searched(edge) ? doc.edges[edge].weight : null;
  const against = measured ? `, against ${measured.baseline}` : "";
  /** @type {TableColumn[]} */
  const all = [
    // first, so that it is in sight however narrow the table is
    {
      key: "influence",
      title: "influence",
      why: "share of the answer that is handed on here",
      value: (edge) => doc.edges[edge].influence ?? null,
      show: share,
    },
    {
      key: "effect",
      title: "effect",
      why: `what the answer loses without it, measured${against}; below 0 it holds the answer back`,
      value: (edge) => effectOf(measured, "edges", edge),
      show: amount,
    },
    {
      key: "share",
      title: "share",
      why: `its part of the answer’s gap to the baseline, by integration${against}`,
      value: (edge) => (searched(edge) ? doc.edges[edge].weight : shareOf(measured, "edges", edge)),
      show: share,
    },
    {
      key: "part",
      title: "part",
      why: "edges that suffice, and signals attached to their heads, which say why these look there",
      text: true,
      value: (edge) => (!isSufficient(doc) ? null : searched(edge) ? "suffices" : "why it looks there"),
    },
    { key: "writer", title: "writer", why: "who writes", text: true, value: (edge) => label(doc.edges[edge].from) },
    { key: "causes", title: "causes", why: "what it causes", text: true, value: (edge) => label(doc.edges[edge].to) },
    { key: "side", title: "side", why: "what it is for its reader", text: true, value: (edge) => doc.edges[edge].side },
    {
      key: "logits",
      title: given ? "start" : "logits",
      why: given ? "attention of a firing that the trace began with" : "what it adds to the answer's logit (or log-likelihood)",
      value: weight(["target"]),
      show: signed,
    },
    {
      key: "attention",
      title: svt ? "contribution" : "attention",
      why: svt
        ? "what the head contributes to the firing's score through this token (equation 8)"
        : "by how much the attention weight falls without it, in the order of removal",
      value: weight(["dest", "src"]),
      show: number,
    },
    {
      key: "write",
      title: "write",
      why: "share of what the MLP or the head writes",
      value: weight(["mlp", "value"]),
      show: share,
    },
    { key: "ig", title: "ig", why: "integrated gradients", value: (edge) => (searched(edge) ? null : doc.edges[edge].ig), show: number },
    {
      key: "alone",
      title: "alone",
      why: "the effect when it alone is removed",
      value: (edge) => (searched(edge) ? null : doc.edges[edge].alone),
      show: number,
    },
    {
      key: "channels",
      title: "channels",
      why: svt ? "those that make up the firing's score, the largest part first" : "in the order of their removal",
      value: (edge) => (searched(edge) ? null : doc.edges[edge].channels.length || null),
    },
    {
      key: "name",
      title: "name",
      why: "what the signal means, as far as it was tested",
      text: true,
      value: (edge) => names[edge]?.text ?? null,
    },
  ];
  const removed = svt ? all.filter(({ key }) => key !== "ig" && key !== "alone") : all; // by svt nothing is removed
  return removed.filter((column) => doc.edges.some((_, edge) => column.value(edge) !== null));
}

/**
 * @param {{ hover: (edge: number | null) => void, pick: (edge: number) => void, sort: (sort: { key: string, down:
 *   boolean }) => void, expand: (edge: number) => void }} on
 */
export function edgeTable(on) {
  const el = h("div", { class: "edges" });
  let most = ROWS;

  /**
   * @param {Indexed} graph @param {Names} names @param {number[]} edges those shown
   * @param {{ sort: { key: string, down: boolean } | null, edge: number | null, expanded: Set<number> }} view
   */
  function draw(graph, names, edges, view) {
    const columns = tableColumns(graph, names);
    const usual = ["influence", "effect", "attention"].find((key) => columns.some((column) => column.key === key)) ?? "";
    const sort = view.sort ?? { key: usual, down: true };
    const rows = sorted(graph, edges, columns.find((column) => column.key === sort.key) ?? columns[0], sort.down);
    const head = columns.map((column) => heading(column, sort, on.sort));
    const body = rows.slice(0, most).flatMap((edge) => {
      const open = view.expanded.has(edge);
      return [row(graph, columns, edge, view.edge === edge, open), ...(open ? channelRows(graph, columns, edge) : [])];
    });
    const more = () => {
      most = Infinity;
      draw(graph, names, edges, view);
    };
    const focus = focused(el);
    fill(
      el,
      h("table", { "aria-label": "Edges" }, h("thead", null, h("tr", null, head)), h("tbody", null, body)),
      rows.length > most && h("button", { type: "button", onclick: more }, `Show all ${count(rows.length, "edge")}`),
    );
    if (focus) /** @type {HTMLElement | null} */ (el.querySelector(focus))?.focus({ preventScroll: true });
    else bringPicked(el);
  }

  const at = (/** @type {Event} */ event) =>
    /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("tr[data-edge]"));
  el.addEventListener("pointerover", (event) => on.hover(at(event) ? Number(at(event)?.dataset.edge) : null));
  el.addEventListener("pointerleave", () => on.hover(null));
  el.addEventListener("click", (event) => {
    const edge = at(event) ? Number(at(event)?.dataset.edge) : null;
    if (edge === null) return;
    if (/** @type {Element} */ (event.target).closest(".expand")) on.expand(edge);
    else on.pick(edge);
  });
  el.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(/** @type {Element} */ (event.target).matches("tr[data-edge]"))) return;
    on.pick(Number(at(event)?.dataset.edge));
    event.stopPropagation();
  });
  return { el, draw };
}

/** @param {HTMLElement} el a selector for what has the focus: it has it again when the table was drawn anew */
function focused(el) {
  const own = document.activeElement;
  if (!own || !el.contains(own)) return null;
  const [edge, key] = [own.closest("tr")?.dataset.edge, own.closest("th")?.dataset.key];
  if (key) return `th[data-key="${key}"] button`;
  return edge ? `tr[data-edge="${edge}"]${own.matches(".expand") ? " .expand" : ""}` : null;
}

/** @param {HTMLElement} el what was picked in the drawing is seen in the table */
function bringPicked(el) {
  const row = /** @type {HTMLElement | null} */ (el.querySelector("tr.picked"));
  const body = el.closest(".body");
  if (row && body && !el.matches(":hover")) body.scrollTop = row.offsetTop - body.clientHeight / 2;
}

/**
 * @param {Indexed} graph
 * @param {number[]} edges
 * @param {TableColumn} column
 * @param {boolean} down what has no value comes last
 */
function sorted(graph, edges, column, down) {
  const sign = down ? -1 : 1;
  return edges
    .map((edge) => ({ edge, value: column.value(edge) }))
    .sort((a, b) => {
      if (a.value === null || b.value === null)
        return Number(a.value === null) - Number(b.value === null) || graph.strength[b.edge] - graph.strength[a.edge];
      const order = column.text
        ? String(a.value).localeCompare(String(b.value), "en", { numeric: true })
        : Number(a.value) - Number(b.value);
      return sign * order || graph.strength[b.edge] - graph.strength[a.edge];
    })
    .map(({ edge }) => edge);
}

/**
 * @param {TableColumn} column
 * @param {{ key: string, down: boolean }} sort
 * @param {(sort: { key: string, down: boolean }) => void} ask
 */
function heading(column, sort, ask) {
  const mine = sort.key === column.key;
  const click = () => ask({ key: column.key, down: mine ? !sort.down : !column.text });
  const order = mine ? (sort.down ? "descending" : "ascending") : "none";
  return h(
    "th",
    {
      class: column.text ? null : "number",
      scope: "col",
      "aria-sort": order,
      title: column.why,
      "data-key": column.key,
    },
    h(
      "button",
      { type: "button", onclick: click },
      column.title,
      h("span", { class: "order", "aria-hidden": "true" }, mine ? (sort.down ? " ↓" : " ↑") : ""),
    ),
  );
}

/**
 * @param {Indexed} graph
 * @param {TableColumn[]} columns
 * @param {number} edge
 * @param {boolean} picked
 * @param {boolean} open
 */
function row(graph, columns, edge, picked, open) {
  const { channels, side } = graph.doc.edges[edge];
  const cells = columns.map((column) => {
    const value = column.value(edge);
    if (column.key === "side") return h("td", null, h("span", { class: `side ${side}` }, side));
    if (column.key === "channels")
      return h("td", { class: "number" }, value ? expander(channels, open) : null);
    if (column.text) return h("td", { class: column.key === "name" ? "name" : null }, value ?? "");
    return h("td", { class: "number" }, value === null ? "" : (column.show ?? String)(value));
  });
  return h(
    "tr",
    { "data-edge": edge, tabindex: 0, "aria-current": picked ? "true" : null, class: picked ? "picked" : null },
    cells,
  );
}

/** @param {number[]} channels @param {boolean} open */
export function expander(channels, open) {
  const label = open ? "Hide the channels" : `Show ${count(channels.length, "channel")}`;
  return h(
    "button",
    { type: "button", class: "plain expand", "aria-expanded": String(open), title: label },
    `${channelsLabel(channels, 4)} ${open ? "▾" : "▸"}`,
  );
}

/**
 * @param {Indexed} graph
 * @param {TableColumn[]} columns
 * @param {number} edge a row for each channel, under the columns that it has a value of
 */
function channelRows(graph, columns, edge) {
  return channelParts(graph.doc, graph.doc.edges[edge]).map((part) =>
    h(
      "tr",
      { class: "channel", "data-edge": edge },
      columns.map((column) => {
        if (column.key === "writer") return h("td", { class: "soft part" }, `channel ${part.channel}`);
        if (column.key === "attention") return h("td", { class: "number" }, number(part.drop));
        return h("td", { class: "number" }, column.key === "ig" ? number(part.ig) : "");
      }),
    ),
  );
}
