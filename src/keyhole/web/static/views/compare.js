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
  const [left, right] = [half("a"), half("b")];
  const terms = h("div", { class: "terms" });
  fill(el, h("div", { class: "compared" }, left.el, right.el, terms));
  /** @type {({ found: any } & ReturnType<typeof sidesOf>) | null} */
  let shown = null;
  const draw = () => {
    const [found, { own }] = [model.get("comparison"), model.get("place")];
    if (found !== shown?.found) {
      shown?.leave();
      shown = found ? { found, ...sidesOf(found) } : null;
      fill(left.host, shown?.parts[0]);
      fill(right.host, shown?.parts[1]);
    }
    const waiting = standing(model, "comparison", "Tracing both");
    if (!found || !shown)
      return void fill(
        terms,
        waiting ??
          h(
            "p",
            { class: "soft" },
            "Compare what is behind the answers of two prompts or two models, or two ways to trace one answer.",
          ),
      );
    const kind = /** @type {"heads" | "edges" | "channels"} */ (
      own.terms in found.comparison.terms ? own.terms : "heads" // channels of two methods are not compared
    );
    const table = termTable({
      kind,
      rows: differences(found, kind),
      sums: sums(found),
      own,
      pick: (change) => model.send({ type: "own", change }),
      notes: found.comparison.notes,
    });
    const before = terms.querySelector(".rows")?.scrollTop ?? 0;
    fill(terms, waiting, ...table);
    const scrolled = terms.querySelector(".rows");
    if (scrolled) scrolled.scrollTop = before;
    shown.show({ show: own.show || "all", term: own.term || null, theme: model.get("theme") ?? "auto" });
  };
  const ends = [
    watch(model, ["place", "hello", "busy", "run", "tokens"], asked(model, left.form, right.form)),
    watch(model, ["comparison", "place", "busy", "errors", "theme"], draw),
  ];
  return () => {
    ends.forEach((end) => end());
    shown?.leave();
  };
}

export default { render };

/** @param {"a" | "b"} side what is asked for, and under it the circuit */
function half(side) {
  const [form, host] = [h("div", { class: "asked-side" }), h("div", { class: "host" })];
  return {
    form,
    host,
    el: h(
      "section",
      {
        class: `abreast ${side === "a" ? "left-half" : "right-half"}`,
        "aria-label": side === "a" ? "Left" : "Right",
        "data-side": side,
      },
      form,
      host,
    ),
  };
}
