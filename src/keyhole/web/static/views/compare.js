// What do two circuits share? Both side by side, what only one of them has marked, and all terms by their difference.
import { fill, h } from "../lib/dom.js";
import { standing, watch } from "../lib/controls.js";
import { asked } from "./compare/asked.js";
import { sidesOf } from "./compare/sides.js";
import { differences, sums } from "./compare/terms.js";
import { termTable } from "./compare/table.js";

/** @typedef {import("../lib/model.js").Model} Model */

/**
 * Keys: `comparison`, `place`, `hello`, `busy`, `errors`, `theme`. Sends `{type: "own", change}`, `{type: "ask", slot, change}`,
 * `{type: "cancel", what}`.
 * @param {{ model: Model, el: HTMLElement }} into
 */
function render({ model, el }) {
  const [form, state, body] = [h("div", { class: "asked" }), h("div", { class: "state" }), h("div", { class: "compared" })];
  fill(el, form, state, body);
  /** @type {({ found: any } & ReturnType<typeof sidesOf>) | null} */
  let shown = null;
  const draw = () => {
    const [found, { own }] = [model.get("comparison"), model.get("place")];
    fill(state, standing(model, "comparison", "Tracing both"));
    if (found !== shown?.found) {
      shown?.leave();
      shown = found ? { found, ...sidesOf(found) } : null;
    }
    if (!found || !shown) return void fill(body);
    const kind = /** @type {"heads" | "edges" | "channels"} */ (["heads", "edges", "channels"].includes(own.terms) ? own.terms : "heads");
    const rows = differences(found, kind);
    const table = termTable({ kind, rows, sums: sums(found), own, pick: (change) => model.send({ type: "own", change }), notes: found.comparison.notes });
    const before = body.querySelector(".terms .rows")?.scrollTop ?? 0;
    fill(body, h("div", { class: "pair" }, shown.parts), h("div", { class: "terms" }, table));
    const scrolled = body.querySelector(".terms .rows");
    if (scrolled) scrolled.scrollTop = before;
    shown.show({ show: own.show || "all", term: own.term || null, theme: model.get("theme") ?? "auto" });
  };
  const ends = [watch(model, ["place", "hello", "busy"], asked(model, form)), watch(model, ["comparison", "place", "busy", "errors", "theme"], draw)];
  return () => {
    ends.forEach((end) => end());
    shown?.leave();
  };
}

export default { render };
