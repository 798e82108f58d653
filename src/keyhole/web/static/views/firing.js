// Why does this head attend here? One firing: its channels, the signals of both sides, and what happens without them.
import { fill, h, keepingFocus } from "../lib/dom.js";
import { changes, failure } from "../lib/edits.js";
import { count, number, share } from "../lib/format.js";
import { whenBusy } from "../lib/progress.js";
import { tokenMark } from "../lib/tokens.js";
import { channelBars } from "./firing/channels.js";
import { mlpCard } from "./firing/mlp.js";
import { sideList } from "./firing/sides.js";
import { places } from "./firing/where.js";

/** @typedef {import("../lib/model.js").Model} Model */
/** @typedef {{ kind: string, layer: number, head: number | null, dest: number, src: number }} Writer */
/** @typedef {"dest" | "src"} SideName */
/**
 * @typedef {object} Signal
 * @property {Writer} writer @property {string} label @property {SideName} side @property {number[]} channels
 * @property {number} weight @property {number} ig @property {number} alone @property {number} predicted
 */
/**
 * @typedef {object} Side
 * @property {SideName} side @property {number} after @property {boolean} reached
 * @property {Signal[]} signals @property {{ channel: number, after: number }[]} removed
 */
/**
 * @typedef {object} Firing
 * @property {number} layer @property {number} head @property {number} dest @property {number} src
 * @property {number} attention @property {number} tau @property {number} visible
 * @property {"here" | "not"} why @property {boolean} fires @property {string | null} note
 * @property {string[]} tokens @property {Side[]} sides @property {any} channels
 */
/**
 * @typedef {object} Effect
 * @property {number} id @property {"remove" | "boost" | "random"} type @property {SideName} side
 * @property {number | null} signal null: the whole side
 * @property {string} mode @property {any} outcome @property {string | null} error
 */

const MODES = [
  ["exact", "only this row of this head's scores changes: the predicted value must be met"],
  ["local", "this head's query or keys change; other heads keep theirs"],
  ["global", "the writers themselves write less: everything downstream feels it, nothing is promised"],
];

/**
 * Keys: `firing`, `effects`, and where the host has them `mlp`, `where`, `errors`, `busy`, `mode`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const box = h("div", { class: "why" });
  el.append(box);
  const opened = new Set(/** @type {string[]} */ ([])); // lists that are shown whole
  const asked = { mlp: "", where: "" }; // beside which signal an MLP's causes and other places stand
  const draw = () => {
    const firing = /** @type {Firing | null} */ (model.get("firing"));
    const kept = el.scrollTop;
    keepingFocus(() => fill(box, firing ? whole({ model, firing, opened, asked, draw }) : nothing(model)));
    el.scrollTop = kept;
    box.classList.toggle("late", Boolean(firing && model.get("busy")?.firing));
  };
  const anew = () => {
    opened.clear();
    Object.assign(asked, { mlp: "", where: "" });
    draw();
  };
  /** @type {[string, () => void][]} */
  const heard = [
    ...["effects", "mlp", "where", "errors", "mode"].map((key) => /** @type {[string, () => void]} */ ([key, draw])),
    ["firing", anew],
    ["heads", draw],
    ["busy", whenBusy(model, ["firing", "mlp", "where"], draw)],
  ];
  for (const [key, does] of heard) model.on(`change:${key}`, does);
  draw();
  return () => {
    for (const [key, does] of heard) model.off(`change:${key}`, does);
  };
}

export default { render };

/** @param {Model} model */
function nothing(model) {
  const error = model.get("errors")?.firing;
  if (error) return h("p", { class: "error", role: "alert" }, error);
  const idle = model.get("heads") ? "Pick a head, then a cell of its attention." : ""; // there is none to pick from yet
  return h("p", { class: "faint" }, model.get("busy")?.firing ? "Searching …" : idle);
}

/**
 * @typedef {object} Shown
 * @property {Model} model @property {Firing} firing @property {Set<string>} opened
 * @property {{ mlp: string, where: string }} asked @property {() => void} draw
 */

/** @param {Shown} shown */
function whole(shown) {
  const { model, firing, opened, draw } = shown;
  return [
    heading(firing),
    gauge(firing),
    h("p", { class: "sentence" }, sentence(firing)),
    firing.note && h("p", { class: "soft" }, firing.note),
    actions(shown),
    shown.asked.where === "" && places(model),
    model.get("edits") === true && firing.sides.some((side) => side.signals.length) && whatIf(model, firing),
    ...firing.sides.map((side) => sideList({ ...shown, side })),
    shown.asked.mlp === "" && mlpCard(model, firing),
    channelBars(firing, opened, draw),
  ];
}

/** @param {Firing} firing */
function heading(firing) {
  return h(
    "h3",
    { class: "which" },
    h("span", { class: "headname" }, `${firing.layer}.${firing.head}`),
    tokenMark(firing.tokens, firing.dest),
    h("span", { class: "arrow", title: "attends to" }, "←"),
    tokenMark(firing.tokens, firing.src),
  );
}

/** Attention against tau, between nothing and all. @param {Firing} firing */
function gauge(firing) {
  const bar = h("div", { class: "fillbar", style: { width: `${100 * firing.attention}%` } });
  const mark = h(
    "div",
    { class: "taumark", style: { left: `${100 * firing.tau}%` }, title: `tau ${number(firing.tau)}` },
  );
  return h(
    "div",
    { class: "gauge" },
    h("div", { class: "track" }, bar, mark),
    h("span", { class: "number", "data-attention": firing.attention }, number(firing.attention)),
    h("span", { class: "faint" }, `tau ${number(firing.tau)}, ${firing.visible} keys in sight`),
  );
}

/** @param {Firing} firing the answer in a sentence or two */
function sentence(firing) {
  const who = (/** @type {Side} */ side) => {
    const [first, ...others] = side.signals;
    return first
      ? `${first.label}${others.length ? ` and ${count(others.length, "other")}` : ""}`
      : "no writer that was found";
  };
  const [dest, src] = ["dest", "src"].map((name) => firing.sides.find((side) => side.side === name));
  const given = share(firing.attention);
  const begin = firing.fires || firing.why === "here" // of few keys each may have much, and none fire
    ? `The head gives ${given} of its attention here.`
    : `The head hardly attends here (${given}).`;
  if (!dest || !src) return begin;
  if (firing.fires) return `${begin} What it looks for was written by ${who(dest)}; what it finds, by ${who(src)}.`;
  return `${begin} What holds it off: in the query ${who(dest)}, in the key ${who(src)}.`;
}

/** @param {Shown} shown */
function actions({ model, firing, asked }) {
  const where = () => {
    asked.where = "";
    model.send({ type: "where", side: null, signal: null });
  };
  const mode = model.get("mode") ?? "exact";
  const choose = h(
    "select",
    {
      "aria-label": "How signals are removed",
      title: MODES.find(([m]) => m === mode)?.[1],
      onchange: (/** @type {Event} */ e) => picked(model, e),
    },
    ...MODES.map(([m, says]) => h("option", { value: m, title: says, selected: m === mode }, m)),
  );
  return h(
    "div",
    { class: "actions" },
    h(
      "button",
      { type: "button", "data-action": "trace-from", onclick: () => model.send({ type: "trace-from" }) },
      "Trace from here",
    ),
    h(
      "button",
      { type: "button", "data-action": "where", onclick: where },
      `Where else does ${firing.layer}.${firing.head} fire?`,
    ),
    h("label", { class: "soft" }, "removal ", choose),
  );
}

/** @param {Model} model @param {Firing} firing the answer without its signals */
function whatIf(model, { layer, head, dest, src }) {
  const part = { firing: { layer, head, dest, src } };
  return changes(part, (wish) => model.send(wish), failure(model)(part), "its signals");
}

/** @param {Model} model @param {Event} event */
function picked(model, event) {
  if (event.target instanceof HTMLSelectElement) model.set("mode", event.target.value);
}
