// How does the score split over the head's channels? Bars to both sides of nothing, the largest first.
import { h, s } from "../../lib/dom.js";
import { number, signed } from "../../lib/format.js";
import { linear } from "../../lib/scale.js";

const SHOWN = 8;

/** @param {import("../firing.js").Firing} firing @param {Set<string>} opened @param {() => void} draw */
export function channelBars(firing, opened, draw) {
  const split = firing.channels;
  if (!split) return null;
  const terms = /** @type {(number | null)[]} */ (split.relative_terms).map((value, k) => ({ k, value: value ?? 0 }));
  const ranked = terms.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const shown = opened.has("channels") ? ranked : ranked.slice(0, SHOWN);
  const rest = ranked.slice(shown.length).reduce((sum, t) => sum + t.value, 0);
  const longest = Math.max(1e-9, ...ranked.map((t) => Math.abs(t.value)), Math.abs(rest));
  const used = new Set(firing.sides.flatMap((side) => side.signals.flatMap((signal) => signal.channels)));
  const open = () => {
    opened.add("channels");
    draw();
  };
  return h(
    "section",
    { class: "channels", "aria-label": "Channels" },
    h("h4", {}, "Channels"),
    h("p", { class: "soft" }, told(split)),
    ...shown.map((t) => bar(String(t.k), t.value, { longest, used: used.has(t.k), sigma: split.sigma?.[t.k] })),
    shown.length < ranked.length &&
      h(
        "div",
        { class: "more" },
        bar(`${ranked.length - shown.length} others`, rest, { longest, used: false, sigma: null }),
        h("button", { type: "button", class: "plain", onclick: open }, "show all"),
      ),
  );
}

/** @param {any} split */
function told(split) {
  const few = split.n_recon === null || split.n_recon === undefined
    ? ""
    : ` ${split.n_recon} of ${split.relative_terms.length} channels are enough for it.`;
  const score = `Score against the mean of the other keys: ${signed(split.relative_attention)}.`;
  return `${score}${few} S(v) ${number(split.sparsity)}.`;
}

/**
 * @param {string} name @param {number} value
 * @param {{ longest: number, used: boolean, sigma: number | null | undefined }} how
 */
function bar(name, value, { longest, used, sigma }) {
  const x = linear([-longest, longest], [0, 100]);
  const [from, to] = [x(Math.min(0, value)), x(Math.max(0, value))];
  const title = sigma === null || sigma === undefined
    ? name
    : `channel ${name}, singular value ${number(sigma)}${used ? ", in a signal below" : ""}`;
  return h(
    "div",
    { class: `channel${used ? " used" : ""}`, title, "data-channel": name },
    h("span", { class: "name" }, name),
    s(
      "svg",
      { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("line", { x1: 50, x2: 50, y1: 0, y2: 10, class: "zero" }),
      s("rect", { x: from, width: Math.max(0.2, to - from), y: 1.5, height: 7, class: value < 0 ? "minus" : "plus" }),
    ),
    h("span", { class: "number" }, signed(value)),
  );
}
