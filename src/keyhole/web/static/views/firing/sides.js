// Who made the query, who made the key? The signals of one side, each a step on the way down to tau, and its buttons.
import { h, s } from "../../lib/dom.js";
import { channelsLabel, number, signed } from "../../lib/format.js";
import { linear } from "../../lib/scale.js";
import { tokenLabel } from "../../lib/tokens.js";
import { effectCard } from "./effects.js";
import { mlpCard } from "./mlp.js";
import { places } from "./where.js";

const SHOWN = 6;
const DOES = /** @type {const} */ ([
  ["remove", "Remove", "take it away and run the model"],
  ["boost", "Boost", "double it and run the model"],
  ["random", "Random", "control: take as many other channels of the same writer away"],
]);

/** @typedef {import("../firing.js").Firing} Firing */
/** @typedef {import("../firing.js").Signal} Signal */
/** @typedef {import("../firing.js").Side} Side */
/** @typedef {import("../firing.js").Shown & { side: Side }} Half */

/** @param {Half} half */
export function sideList(half) {
  const { firing, side, opened, draw } = half;
  const steps = stairs(firing, side);
  const most = opened.has(side.side) ? side.signals.length : SHOWN;
  const left = side.signals.length - most;
  const open = () => {
    opened.add(side.side);
    draw();
  };
  return h(
    "section",
    { class: `half ${side.side}`, "aria-label": `${side.side} side` },
    h("h4", {}, title(firing, side), h("span", { class: "count" }, side.side)),
    h("p", { class: "soft" }, ...told(firing, side)),
    alone(side) ? null : row(half, null, steps.all),
    ...side.signals.slice(0, most).map((_, i) => row(half, i, steps.each[i])),
    left > 0 && h("button", { type: "button", class: "plain", onclick: open }, `${left} more`),
  );
}

/** @param {Side} side is its one signal all that was removed? */
function alone(side) {
  return side.signals.length === 1 && side.removed.length === side.signals[0].channels.length;
}

/** @param {Firing} firing @param {Side} side */
function title(firing, side) {
  const at = tokenLabel(firing.tokens, side.side === "dest" ? firing.dest : firing.src);
  if (firing.why === "not") return side.side === "dest"
    ? `Why ${at} does not ask for it`
    : `Why ${at} does not offer it`;
  return side.side === "dest" ? `What ${at} asks for` : `What ${at} offers`;
}

/** @param {Firing} firing @param {Side} side */
function told(firing, side) {
  const beyond = firing.why === "here" ? "below tau" : "above tau";
  const end = side.reached ? "" : `, not ${beyond}: nothing else pushes that way`;
  const these = side.signals.length === 1 ? "this signal" : `these ${side.signals.length} signals`;
  return [
    `Without ${these}, attention ${number(firing.attention)} → `,
    h("b", {}, number(side.after)),
    ` is predicted${end}.`,
  ];
}

/**
 * From where to where each signal takes the attention, in the order of removal.
 * @param {Firing} firing @param {Side} side
 */
function stairs(firing, side) {
  const sign = firing.why === "here" ? -1 : 1;
  let now = firing.attention;
  const each = side.signals.map((signal) => {
    const from = now;
    now += sign * signal.weight;
    return /** @type {[number, number]} */ ([from, now]);
  });
  return { each, all: /** @type {[number, number]} */ ([firing.attention, side.after]) };
}

/** @param {Half} half @param {number | null} index @param {[number, number]} step */
function row(half, index, step) {
  const { model, firing, side } = half;
  const signal = index === null ? null : side.signals[index];
  const effects = /** @type {import("../firing.js").Effect[]} */ (model.get("effects") ?? []);
  const own = effects.filter((e) => e.side === side.side && e.signal === index);
  const drop = step[1] - step[0];
  return h(
    "div",
    { class: `signal${signal ? "" : " all"}`, "data-side": side.side, "data-signal": index === null ? "all" : index },
    h(
      "div",
      { class: "across" },
      signal ? writer(half, signal, index) : h("span", { class: "writer soft" }, "the whole side"),
      h("span", { class: "number" }, signed(drop)),
    ),
    h("div", { class: "across" }, stair(firing, side, step), buttons(model, side, index)),
    ...own.map((effect) => effectCard(model, firing, effect)),
    signal && half.asked.mlp === `${side.side}.${index}` && mlpCard(model, firing),
    signal && half.asked.where === `${side.side}.${index}` && places(model),
  );
}

/**
 * A step as a piece of the way from attention to what is left.
 * @param {Firing} firing @param {Side} side @param {[number, number]} step
 */
function stair(firing, side, [from, to]) {
  const x = linear([0, Math.max(firing.attention, side.after, firing.tau) * 1.04], [0, 100]);
  const [low, high] = [x(Math.max(0, Math.min(from, to))), x(Math.max(from, to))];
  return s(
    "svg",
    { class: "stair", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { x: 0, y: 3.5, width: low, height: 3, class: "rest" }),
    s("rect", { x: low, y: 1, width: Math.max(0.4, high - low), height: 8, class: "gone" }),
    s("line", { x1: x(firing.tau), x2: x(firing.tau), y1: 0, y2: 10, class: "tau" }),
  );
}

/**
 * Who wrote: a head leads to its firing, an MLP to its causes.
 * @param {Half} half @param {Signal} signal @param {number | null} index
 */
function writer({ model, side, asked }, signal, index) {
  const { kind, layer, head, dest, src } = signal.writer;
  const ask = (/** @type {"mlp" | "where"} */ what, /** @type {object} */ wish) => () => {
    asked[what] = `${side.side}.${index}`;
    model.send({ ...wish, side: side.side, signal: index });
  };
  const open = {
    head: () => model.send({ type: "open-firing", layer, head, dest, src }),
    mlp: ask("mlp", { type: "explain-mlp", layer, pos: dest }),
  }[kind];
  const title = { head: "why does it attend there?", mlp: "what made it write this?" }[kind] ?? kind;
  const name = open
    ? h("button", { type: "button", class: "plain", title, onclick: open }, signal.label)
    : h("span", {}, signal.label);
  const seek = h(
    "button",
    {
      type: "button",
      class: "plain seek",
      title: "Where else is this signal read?",
      onclick: ask("where", { type: "where" }),
    },
    "where?",
  );
  const read = h(
    "span",
    { class: "faint", title: `channels ${signal.channels.join(", ")}` },
    `ch ${channelsLabel(signal.channels, 4)}`,
  );
  return h("span", { class: "writer" }, h("i", { class: `kind ${kind}`, title: kind }), name, read, seek);
}

/** @param {import("../../lib/model.js").Model} model @param {Side} side @param {number | null} index */
function buttons(model, side, index) {
  const left = index === null ? side.after : side.signals[index].predicted;
  const button = (/** @type {string} */ type, /** @type {string} */ text, /** @type {string} */ says) => {
    const title = type === "remove" ? `${says}: ${number(left)} is predicted` : says;
    const does = () => model.send({ type, side: side.side, signal: index });
    return h("button", { type: "button", class: "small", title, "data-does": type, onclick: does }, text);
  };
  return h("span", { class: "does", role: "group" }, ...DOES.map(([type, text, says]) => button(type, text, says)));
}
