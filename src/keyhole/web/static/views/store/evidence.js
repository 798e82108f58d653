// What speaks for families, and what against? Each granularity's best cut beside what chance makes; labels beside families.
import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { sortable } from "../../lib/table.js";

/** @param {any} found */
export function evidence(found) {
  return h(
    "section",
    { class: "evidence" },
    h("h4", null, "Beside chance"),
    levels(found),
    h("h4", null, "Labels"),
    labels(found),
  );
}

/** @param {any} found a value, the range that a null makes, and p: as the library tells them */
function levels(found) {
  const rows = found.levels.flatMap((/** @type {any} */ level) =>
    level.nulls.map((/** @type {any} */ one) => ({ ...one, level })),
  );
  return sortable({
    label: "Families beside chance",
    rows: /** @type {any[]} */ (rows),
    row: (row) => ({ class: row.level.granularity === found.granularity ? "own-level" : "soft" }),
    columns: [
      { key: "grain", title: "by", text: true, value: (row) => row.level.granularity },
      { key: "k", title: "cut", why: "families of the best cut", value: (row) => row.level.families },
      {
        key: "null",
        title: "null",
        why: "shuffled: terms at random; one cloud: no groups at all",
        text: true,
        value: (row) => row.name,
      },
      { key: "measure", title: "measure", text: true, value: (row) => row.measure },
      { key: "value", title: "found", value: (row) => row.value, show: (row) => number(row.value) },
      { key: "high", title: "chance, up to", value: (row) => row.high, show: (row) => number(row.high) },
      {
        key: "p",
        title: "p",
        value: (row) => row.p,
        show: (row) => h("span", { class: row.p <= 0.05 ? "met" : null }, number(row.p)),
      },
      {
        key: "believed",
        title: "believed",
        why: "yes: both nulls are beaten by both measures; a split: they are not, yet circuits heap up in two places",
        text: true,
        value: (row) => (row.level.separate ? "yes" : row.level.split ? "no, a split" : "no"),
      },
    ],
  });
}

/** @param {any} found */
function labels(found) {
  const level = found.levels.find((/** @type {any} */ one) => one.granularity === found.granularity) ?? found.levels[0];
  const beside = (/** @type {string} */ key, /** @type {string} */ title, /** @type {string} */ why) => [
    {
      key,
      title,
      why: `${why}; after it, what chance reaches`,
      value: (/** @type {any} */ row) => row[key]?.value ?? null,
      show: (/** @type {any} */ row) => [
        number(row[key]?.value),
        h("span", { class: "faint" }, ` / ${number(row[key]?.high)}`),
      ],
    },
    {
      key: `${key} p`,
      title: "p",
      value: (/** @type {any} */ row) => row[key]?.p ?? null,
      show: (/** @type {any} */ row) =>
        h("span", { class: (row[key]?.p ?? 1) <= 0.05 ? "met" : null }, number(row[key]?.p)),
    },
  ];
  return sortable({
    label: "Labels",
    rows: /** @type {any[]} */ (level?.labels ?? []),
    columns: [
      { key: "label", title: "label", text: true, value: (row) => row.label },
      { key: "values", title: "values", value: (row) => row.values },
      ...beside("ari", "ARI", "agreement of families and label"),
      ...beside("explained", "explained", "share of the distances’ variance that the label explains"),
      ...beside("nearest", "nearest", "how often the nearest circuit has the same value"),
    ],
  });
}
