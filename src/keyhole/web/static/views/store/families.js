// Do circuits come in families? The map, what each family is, and what speaks for and against them.
import { h } from "../../lib/dom.js";
import { segments, select, standing } from "../../lib/controls.js";
import { count, number, share } from "../../lib/format.js";
import { colour, distinct } from "../../lib/palette.js";
import { sortable } from "../../lib/table.js";
import { clusterMap } from "./clusters.js";
import { evidence } from "./evidence.js";
import { filters } from "./outcomes.js";

/** @typedef {import("../../lib/model.js").Model} Model */

/** @type {[string, string][]} */
const GRAINS = [
  ["heads", "Heads, MLPs"],
  ["edges", "Edges"],
  ["channels", "Channels"],
];
const MANY = 40; // values of a label that is no use as colours

/** @param {Model} model @param {any} about */
export function familiesOf(model, about) {
  const found = model.get("families");
  const waiting = standing(model, "families", "Comparing circuits");
  return [...asked(model, about, found), waiting, found && !waiting ? told(model, about, found) : null];
}

/** @param {Model} model @param {any} about @param {any} found */
function asked(model, about, found) {
  const { own } = model.get("place");
  const pick = (/** @type {string} */ key) => (/** @type {string} */ value) =>
    model.send({ type: "own", change: { [key]: value } });
  /** @type {[string, string][]} */
  const cuts = [
    ["", "as found"],
    .../** @type {[string, string][]} */ ([2, 3, 4, 5, 6, 7, 8].map((k) => [String(k), String(k)])),
  ];
  const labels = Object.entries(found?.values ?? {})
    .filter(([, values]) => distinct(values).length <= MANY)
    .map(([name]) => name);
  return [
    h(
      "div",
      { class: "asking" },
      segments("What circuits are compared by", GRAINS, own.grain || "channels", pick("grain")),
      select(
        "tokens",
        [
          ["", "left out"],
          ["1", "by role"],
        ],
        own.role ?? "",
        pick("role"),
      ),
      select("families", cuts, own.k ?? "", pick("k")),
      select(
        "colours",
        [["", "families"], .../** @type {[string, string][]} */ (labels.map((name) => [name, name]))],
        own.colour ?? "",
        pick("colour"),
      ),
    ),
    filters(model, about, false),
  ];
}

/** @param {Model} model @param {any} about @param {any} found */
function told(model, about, found) {
  const { own } = model.get("place");
  const open = (/** @type {number} */ index) =>
    model.send({ type: "open-stored", store: about.id, row: { index, prompt: null } });
  const host = /** @type {HTMLElement} */ (document.querySelector(".keyhole.page") ?? document.body);
  const verdict = h("p", { class: "verdict-line", "data-families": found.families.length }, found.verdict);
  const map = clusterMap(found, own.colour ?? "", { open, host });
  const colours = own.colour && found.values[own.colour] ? legend(own.colour, found.values[own.colour]) : null;
  return h(
    "div",
    { class: "family-view" },
    h("div", { class: "family-map" }, verdict, map, colours),
    h("div", { class: "family-list" }, cards(found, open), evidence(found), representatives(found, open)),
  );
}

/** @param {string} name @param {string[]} values */
function legend(name, values) {
  return h(
    "ul",
    { class: "key inline" },
    h("li", null, name),
    distinct(values)
      .slice(0, 13)
      .map((value, i) => h("li", null, h("i", { class: "chip-of", style: { background: colour(i) } }), value)),
  );
}

/** @param {any} found @param {(index: number) => void} open */
function cards(found, open) {
  const all = found.families.map((/** @type {any} */ one) =>
    h(
      "section",
      { class: "family", "data-family": one.number, "aria-label": `Family ${one.number}` },
      h(
        "h4",
        null,
        h(
          "span",
          null,
          h("i", { class: "chip-of", style: { background: colour(one.number - 1) } }),
          `Family ${one.number}`,
        ),
        h("span", { class: "soft number" }, count(one.size, "circuit")),
      ),
      h(
        "dl",
        { class: "facts" },
        fact("stability", number(one.stability, 2)),
        fact("silhouette", number(one.silhouette, 2)),
        fact("mean distance", number(one.mean_distance, 2)),
        fact("terms", number(one.mean_size, 1)),
      ),
      h("p", { class: "common" }, commonest(one.common)),
      h(
        "button",
        {
          type: "button",
          class: "small",
          "data-representative": one.representative,
          onclick: () => open(one.representative),
        },
        `Representative: prompt ${one.representative}`,
      ),
    ),
  );
  const outside = found.outside.length
    ? h("p", { class: "soft" }, `${count(found.outside.length, "circuit")} in no family.`)
    : null;
  return h("div", { class: "families" }, all, outside);
}

/** @param {string} what @param {string} value */
function fact(what, value) {
  return value ? h("div", null, h("dt", null, what), h("dd", null, value)) : null;
}

/** @param {Record<string, [string, number]>} common what most of its prompts have in common @returns {import("../../lib/dom.js").Leaf[]} */
function commonest(common) {
  const all = Object.entries(common).sort((a, b) => b[1][1] - a[1][1]);
  return all
    .slice(0, 4)
    .flatMap(([label, [value, part]], i) => [
      i ? " · " : "",
      h("span", { class: "soft" }, `${label} `),
      value,
      h("span", { class: "faint" }, ` ${share(part)}`),
    ]);
}

/** @param {any} found @param {(index: number) => void} open */
function representatives(found, open) {
  if (!found.representatives.length) return null;
  const table = sortable({
    label: "Representatives",
    rows: /** @type {any[]} */ (found.representatives),
    most: 12,
    row: (row) => ({ class: "opens", onclick: () => open(row.prompt) }),
    columns: [
      { key: "group", title: "representative of", text: true, value: (row) => row.group },
      { key: "circuits", title: "circuits", value: (row) => row.circuits },
      {
        key: "mean",
        title: "mean distance",
        value: (row) => row.mean_distance,
        show: (row) => number(row.mean_distance, 2),
      },
      {
        key: "prompt",
        title: "prompt",
        value: (row) => row.prompt,
        show: (row) =>
          h(
            "button",
            {
              type: "button",
              class: "plain",
              "data-representative": row.prompt,
              onclick: (/** @type {Event} */ event) => [event.stopPropagation(), open(row.prompt)],
            },
            row.prompt,
          ),
      },
    ],
    sort: { key: "circuits", down: true },
  });
  return h("section", null, h("h4", null, "Representatives"), table);
}
