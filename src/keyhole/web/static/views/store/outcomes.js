// What became of each prompt? A page of them at a time, by label, status and whether the answer was right.
import { h } from "../../lib/dom.js";
import { select, standing } from "../../lib/controls.js";
import { number, share, signed } from "../../lib/format.js";
import { sortable } from "../../lib/table.js";
import { visible } from "../../lib/tokens.js";
import { filterOf } from "../../own.js";

/** @typedef {import("../../lib/model.js").Model} Model */

const ROWS = 50;
const STATUS = ["circuit", "headless", "empty", "failed", "skipped"];
const FEW = 2; // a label has a list if it has at least so many values

/** @param {Model} model @param {any} about */
export function outcomes(model, about) {
  const found = model.get("outcomes");
  return [
    filters(model, about, true),
    standing(model, "outcomes", "Reading"),
    found ? pages(model, found) : null,
    found ? table(model, about, found) : null,
  ];
}

/** @param {Model} model @param {any} about @param {boolean} all also what families never look at */
export function filters(model, about, all) {
  const filter = filterOf(model.get("place").own.where);
  const pick = (/** @type {string} */ name) => (/** @type {string} */ value) => {
    const { [name]: _, ...rest } = filter;
    const next = value ? { ...rest, [name]: value } : rest;
    model.send({ type: "own", change: { where: Object.keys(next).length ? JSON.stringify(next) : "", page: "" } });
  };
  /** @type {(values: string[]) => [string, string][]} */
  const choices = (values) => [
    ["", "all"],
    .../** @type {[string, string][]} */ (values.map((value) => [value, value])),
  ];
  const labels = Object.entries(about?.labels ?? {}).filter(
    ([, values]) => /** @type {string[]} */ (values).length >= FEW,
  );
  return h(
    "div",
    { class: "asking filters", role: "group", "aria-label": "Filters" },
    labels.map(([name, values]) =>
      select(name, choices(/** @type {string[]} */ (values)), filter[name] ?? "", pick(name)),
    ),
    all && select("status", choices(STATUS), filter.status ?? "", pick("status")),
    all &&
      select(
        "answer",
        [
          ["", "all"],
          ["true", "right"],
          ["false", "wrong"],
        ],
        filter.correct ?? "",
        pick("correct"),
      ),
  );
}

/** @param {Model} model @param {any} found */
function pages(model, found) {
  const page = Math.floor(found.offset / ROWS);
  const last = Math.max(0, Math.ceil(found.total / ROWS) - 1);
  const turn = (/** @type {number} */ to, /** @type {string} */ text, /** @type {boolean} */ off) =>
    h(
      "button",
      {
        type: "button",
        class: "icon",
        disabled: off,
        "aria-label": text === "‹" ? "Earlier" : "Later",
        onclick: () => model.send({ type: "own", change: { page: to ? String(to) : "" } }),
      },
      text,
    );
  const told = found.total
    ? `${(found.offset + 1).toLocaleString("en")} to ${(found.offset + found.rows.length).toLocaleString("en")} of ${found.total.toLocaleString("en")}`
    : "No prompt is like that.";
  return h(
    "div",
    { class: "asking pages" },
    h("span", { class: "soft", "data-total": found.total }, told),
    last > 0 && turn(page - 1, "‹", page === 0),
    last > 0 && turn(page + 1, "›", page >= last),
  );
}

/** @param {Model} model @param {any} about @param {any} found */
function table(model, about, found) {
  const labels = Object.keys(about?.labels ?? {}).filter(
    (name) => found.rows.some((/** @type {any} */ row) => row.labels[name]) && about.labels[name].length >= FEW,
  );
  const open = (/** @type {any} */ row) =>
    row.status === "circuit" && model.send({ type: "open-stored", store: about.id, row });
  return sortable({
    label: "Prompts",
    rows: /** @type {any[]} */ (found.rows),
    most: ROWS,
    row: (row) => ({
      "data-index": row.index,
      class: row.status === "circuit" ? "opens" : null,
      onclick: () => open(row),
    }),
    columns: [
      { key: "index", title: "#", value: (row) => row.index },
      {
        key: "prompt",
        title: "prompt",
        text: true,
        value: (row) => row.prompt,
        show: (row) =>
          row.status === "circuit"
            ? h(
                "button",
                {
                  type: "button",
                  class: "plain prompt-text",
                  title: row.prompt,
                  onclick: (/** @type {Event} */ event) => [event.stopPropagation(), open(row)],
                },
                row.prompt,
              )
            : h("span", { title: row.error ?? row.prompt }, row.prompt),
      },
      {
        key: "answer",
        title: "answer",
        text: true,
        value: (row) => row.answer,
        show: (row) => (row.answer === null ? "" : visible(row.answer)),
      },
      {
        key: "predicted",
        title: "predicted",
        text: true,
        value: (row) => row.predicted,
        show: (row) =>
          row.predicted !== null &&
          h("span", { class: row.correct === false ? "missed" : null }, visible(row.predicted)),
      },
      {
        key: "probability",
        title: "probability",
        value: (row) => row.probability,
        show: (row) => share(row.probability),
      },
      {
        key: "difference",
        title: "difference",
        why: "of the answer’s logit and the wrong one’s",
        value: (row) => row.difference,
        show: (row) => signed(row.difference, 2) || number(row.difference),
      },
      {
        key: "status",
        title: "status",
        text: true,
        value: (row) => row.status,
        show: (row) => h("span", { class: row.status === "failed" ? "missed" : "soft", title: row.error }, row.status),
      },
      ...labels.map((name) => ({
        key: `label ${name}`,
        title: name,
        text: true,
        value: (/** @type {any} */ row) => row.labels[name] ?? null,
      })),
      {
        key: "compare",
        title: "",
        text: true,
        value: () => null,
        show: (row) =>
          row.status === "circuit" &&
          h(
            "button",
            {
              type: "button",
              class: "small",
              title: "Put it to the right, beside the page’s circuit",
              onclick: (/** @type {Event} */ event) => [
                event.stopPropagation(),
                model.send({ type: "compare-stored", store: about.id, row }),
              ],
            },
            "compare",
          ),
      },
    ],
  });
}
