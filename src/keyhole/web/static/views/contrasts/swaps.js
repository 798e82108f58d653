// What does a swapped feature move? Attention on the right key and on the target after it, beside random subspaces.
import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { clamp } from "../../lib/scale.js";

const NOTHING = 0.01; // whole keys that move less than this move nothing

/** @param {any} found @param {string} head */
export function swapsOf(found, head) {
  const row = found.heads.find((/** @type {any} */ one) => one.head === head);
  if (!row) return null;
  return [
    section(`Swaps in ${head}: its attention`, row.swaps, "attention on the right key, and on the target"),
    ...answers(found, head),
  ];
}

/** @param {any} found @param {string} head */
function answers(found, head) {
  const { [head]: own = [], all = [] } = found.answers?.heads ?? {};
  const says = "probability of the right answer, and of the target";
  return [
    own.length ? section(`Swaps in ${head}: the answer`, own, says) : null,
    all.length ? section("In all selected heads: the answer", all, says) : null,
  ];
}

/** @param {string} title @param {any[]} swaps @param {string} says */
function section(title, swaps, says) {
  return h(
    "section",
    { class: "swaps" },
    h("h4", null, title),
    h("p", { class: "faint small-text" }, says),
    h("div", { class: "swap-list" }, swaps.map(swap)),
    h(
      "ul",
      { class: "key inline" },
      h("li", null, h("i", { class: "chip-of right-key" }), "right"),
      h("li", null, h("i", { class: "chip-of target-key" }), "target"),
      h("li", null, h("i", { class: "chip-of random-key" }), "moved by random subspaces"),
    ),
  );
}

/** @param {any} one */
function swap(one) {
  const bar = (/** @type {string} */ name, /** @type {number | null} */ value) =>
    h(
      "span",
      { class: "swap-bar" },
      h("i", { class: name, style: { width: `${(100 * clamp(value ?? 0, 0, 1)).toFixed(1)}%` } }),
      h("em", null, number(value, 2)),
    );
  const told = one.name === "none" ? "as it is" : one.name === "full" ? "whole keys swapped" : `${one.name} swapped`;
  const effect =
    one.random === null
      ? ""
      : still(one)
        ? "moves nothing"
        : one.normalised === null || (one.rank === 0 && one.shift === 0)
          ? "–"
          : `${number(one.normalised, 2)} [${number(one.interval[0], 2)}, ${number(one.interval[1], 2)}]`;
  return h(
    "div",
    { class: "swap", "data-swap": one.name },
    h(
      "div",
      { class: "swap-name" },
      h(
        "span",
        null,
        told,
        one.rank && !["none", "full"].includes(one.name) ? h("span", { class: "faint" }, ` rank ${one.rank}`) : null,
      ),
      effect &&
        h(
          "span",
          {
            class: "number",
            title: "normalised effect: 0 is random subspaces of its rank, 1 is whole keys (95 % interval)",
          },
          effect,
        ),
    ),
    bar("right-key", one.orig),
    bar("target-key", one.target),
    one.random !== null && bar("random-key", one.random),
  );
}

/** @param {any} one */
function still(one) {
  return one.full !== null && Math.abs(one.full) < NOTHING;
}
