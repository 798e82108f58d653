// What made an MLP write this? Its causes with their shares, its neurons, and what is left without them.
import { h } from "../../lib/dom.js";
import { number, share } from "../../lib/format.js";
import { tokenLabel } from "../../lib/tokens.js";
import { cross } from "./close.js";

const NEURONS = 6;

/** @param {import("../../lib/model.js").Model} model @param {import("../firing.js").Firing} firing */
export function mlpCard(model, firing) {
  const [mlp, error, busy] = [model.get("mlp"), model.get("errors")?.mlp, model.get("busy")?.mlp];
  if (!mlp && !error && !busy) return null;
  const close = cross(model, { type: "close", what: "mlp" });
  const title = mlp
    ? `Why mlp ${mlp.layer} at ${tokenLabel(firing.tokens, mlp.pos)} writes this`
    : "Why the MLP writes this";
  const body = error
    ? [h("p", { class: "error", role: "alert" }, error)]
    : mlp
    ? causes(model, mlp)
    : [h("p", { class: "faint" }, "Taking it apart …")];
  return h("section", { class: "mlp", "aria-label": "Causes of an MLP" }, h("h4", {}, title, close), ...body);
}

/** @param {import("../../lib/model.js").Model} model @param {any} mlp */
function causes(model, mlp) {
  const longest = Math.max(1e-9, ...mlp.causes.map((/** @type {any} */ c) => Math.abs(c.part)));
  const toward = mlp.toward ? ` along ${mlp.toward}` : "";
  const removed = mlp.removed;
  const random = removed?.control_left?.length
    ? ` (without as many others: ${removed.control_left.map((/** @type {number} */ x) => share(x)).join(", ")})`
    : "";
  return [
    h(
      "p",
      { class: "soft" },
      `It writes ${number(mlp.value)}${toward}. Parts are exact shares of that. Without these causes `,
      `${share(removed?.left ?? mlp.left)} is left${random}; they alone keep ${share(mlp.kept)}.`,
    ),
    mlp.cancels && h(
      "p",
      { class: "soft" },
      `Large parts cancel (${number(mlp.cancellation, 1)} times the sum): these causes are not stable.`,
    ),
    ...mlp.causes.map((/** @type {any} */ cause) => part(model, cause, longest)),
    h(
      "p",
      { class: "neurons" },
      h("span", { class: "faint" }, "Neurons "),
      ...mlp.neurons.slice(0, NEURONS).map(
        (/** @type {[number, number]} */ [n, own]) =>
          h(
            "span",
            { class: "chip", title: `share of what is written: ${share(own)}` },
            `${n} `,
            h("span", { class: "faint" }, share(own)),
          ),
      ),
    ),
  ];
}

/** @param {import("../../lib/model.js").Model} model @param {any} cause @param {number} longest */
function part(model, cause, longest) {
  const writer = cause.writer;
  const open =
    writer?.kind === "head"
      ? () =>
        model.send({ type: "open-firing", layer: writer.layer, head: writer.head, dest: writer.dest, src: writer.src })
      : writer?.kind === "mlp"
        ? () => model.send({ type: "explain-mlp", layer: writer.layer, pos: writer.dest, side: null, signal: null })
        : null;
  const name = open
    ? h("button", { type: "button", class: "plain", onclick: open }, cause.label)
    : h("span", {}, cause.label);
  return h(
    "div",
    { class: "cause" },
    h("span", { class: "writer" }, h("i", { class: `kind ${writer?.kind ?? "bias"}` }), name),
    h("span", { class: "bar" }, h("i", { style: { width: `${(100 * Math.abs(cause.part)) / longest}%` } })),
    h("span", { class: "number", title: `alone ${share(cause.alone)}` }, share(cause.part)),
  );
}
