// What can be done with the drawing? Search, hide what is weak, fold, fit, save: one line above it.
import { fill, h } from "../../lib/dom.js";
import { count, share } from "../../lib/format.js";
import { themeButton } from "../../lib/theme.js";

const STEPS = 100; // of the slider
const [LEAST, MOST] = [0.0005, 0.5]; // what its ends hide

/** @param {number} step what is hidden below: nothing at 0, then on a logarithmic scale */
export function belowAt(step) {
  return step <= 0 ? 0 : LEAST * (MOST / LEAST) ** ((step - 1) / (STEPS - 1));
}

/** @param {number} below */
export function stepAt(below) {
  return below <= 0
    ? 0
    : Math.round(1 + ((STEPS - 1) * Math.log(Math.max(below, LEAST) / LEAST)) / Math.log(MOST / LEAST));
}

/**
 * @typedef {object} ToolEvents
 * @property {(query: string) => void} search
 * @property {(back: boolean) => void} next
 * @property {(below: number) => void} hide
 * @property {(what: "sinks" | "constants" | "signals") => void} fold
 * @property {() => void} fit
 * @property {(factor: number) => void} zoom
 * @property {(theme: import("../../lib/theme.js").Theme) => void} theme
 * @property {() => void} save
 * @property {() => void} help
 */

/**
 * @param {ToolEvents} on
 * @param {{ theme: import("../../lib/theme.js").Theme, themes: boolean, saves: boolean, sinks: number, constants:
 *   number, attached: number | null, measure: string }} has attached: signals of a circuit that suffices
 */
export function tools(on, has) {
  const found = h("span", { class: "found soft", role: "status" });
  const search = h("input", {
    type: "search",
    class: "search",
    placeholder: "Find 9.6, mlp 3, a word",
    "aria-label": "Find a head, a kind or a word",
    oninput: () => on.search(search.value),
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") on.next(event.shiftKey);
    if (event.key === "Escape") {
      search.value = "";
      on.search("");
      search.blur();
    }
    event.stopPropagation();
  });
  const slider = h("input", {
    type: "range",
    class: "below",
    min: 0,
    max: STEPS,
    step: 1,
    "aria-label": `Hide edges with less ${has.measure} than`,
  });
  slider.addEventListener("input", () => on.hide(belowAt(Number(slider.value))));
  const cut = h("output", { class: "cut" });
  const amount = h("span", { class: "amount soft", role: "status" });
  const fold = (/** @type {"sinks" | "constants" | "signals"} */ what, /** @type {number} */ n, title = `Fold ${what} into one mark`) =>
    h(
      "button",
      {
        type: "button",
        class: `fold ${what}`,
        disabled: n === 0,
        title,
        onclick: () => on.fold(what),
      },
      `${what} ${n}`,
    );
  const folds = {
    sinks: fold("sinks", has.sinks),
    constants: fold("constants", has.constants),
    signals: fold("signals", has.attached ?? 0, "Hide the signals that say why heads look there"),
  };
  const icon = (/** @type {string} */ sign, /** @type {string} */ title, /** @type {() => void} */ act) =>
    h("button", { type: "button", class: "icon", title, "aria-label": title, onclick: act }, sign);
  const el = h(
    "div",
    { class: "tools", role: "toolbar", "aria-label": "The drawing" },
    search,
    found,
    h("label", { class: "slide" }, "hide below", slider, cut),
    amount,
    h("span", { class: "folds" }, h("span", { class: "soft" }, "fold"), folds.sinks, folds.constants, has.attached !== null && folds.signals),
    h(
      "span",
      { class: "right" },
      icon("−", "Smaller (−)", () => on.zoom(1 / 1.25)),
      icon("+", "Larger (+)", () => on.zoom(1.25)),
      icon("Fit", "Fit (0)", on.fit),
      has.themes && themeButton(has.theme, on.theme),
      has.saves &&
        h(
          "button",
          {
            type: "button",
            class: "save",
            title: "Download this page as it is now: groups, names and all",
            onclick: on.save,
          },
          "Save page",
        ),
      icon("?", "Keys (?)", on.help),
    ),
  );

  /** @param {import("./graph.js").Drawn} picture @param {{ nodes: number, edges: number }} all */
  function show(picture, all) {
    slider.value = String(stepAt(picture.below));
    cut.textContent = picture.below > 0 ? share(picture.below) : "nothing";
    const nodes = `${picture.nodes} of ${count(all.nodes, "node")}`;
    amount.textContent = `${nodes}, ${picture.edges} of ${count(all.edges, "edge")}`;
    for (const what of /** @type {const} */ (["sinks", "constants", "signals"]))
      folds[what].setAttribute("aria-pressed", String(picture[what] && !folds[what].disabled));
  }
  return { el, show, search, found: (/** @type {string} */ text) => fill(found, text) };
}
