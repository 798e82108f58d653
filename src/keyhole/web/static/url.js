// Where is the user? All of it is in the address, so that a reload, a bookmark and the back button lead there.

import { anywhere } from "./lib/edits.js";
import { ownFrom, ownInto } from "./own.js";

/**
 * @typedef {object} Place
 * @property {string | null} model  a name that the server loads; null: its own choice
 * @property {string} prompt
 * @property {number[]} ids  its tokens, where they are not those of the text: what the model wrote, cut before one of its tokens
 * @property {string} chat  "1": the prompt is a user's message in the model's chat template
 * @property {Tab} tab
 * @property {string} measure  what the layer x head map shows
 * @property {number | null} layer
 * @property {number | null} head
 * @property {number | null} dest
 * @property {number | null} src
 * @property {number[]} target  token ids of the answer
 * @property {number[]} against  and of the other one
 * @property {string} traced  which circuit has been asked for: none, that of the `answer`, the smallest that is `sufficient` for it, that of a firing `3.6.14.11`
 * @property {import("./own.js").Own} own  parameters of the further views
 * @property {string} view  what was done to the circuit's view, as JSON
 */

/** @typedef {"pattern" | "circuit" | "verification" | "compare" | "edits" | "store" | "contrasts"} Tab */

/** @type {[Tab, string][]} */
export const TABS = [["pattern", "Attention"], ["circuit", "Circuit"], ["verification", "Verification"], ["compare", "Compare"], ["edits", "Edits"], ["store", "Stores"], ["contrasts", "Contrasts"]];

/** @type {Place} */
export const NOWHERE = {
  model: null,
  prompt: "",
  ids: [],
  chat: "",
  tab: "pattern",
  measure: "attention",
  layer: null,
  head: null,
  dest: null,
  src: null,
  target: [],
  against: [],
  traced: "",
  view: "",
  own: {},
};

/**
 * A place out of an address's query. What is not understood is left out: an address may come from anywhere.
 * @param {string} query
 * @returns {Place}
 */
export function fromQuery(query) {
  const given = new URLSearchParams(query);
  const traced = given.get("traced") ?? "";
  const [layer, head] = pair(given.get("head"));
  return {
    model: given.get("model") || null,
    prompt: given.get("prompt") ?? "",
    ids: integers(given.get("ids")),
    chat: given.get("chat") === "1" ? "1" : "",
    tab: TABS.find(([tab]) => tab === given.get("tab"))?.[0] ?? "pattern",
    measure: given.get("map") || NOWHERE.measure,
    layer,
    head,
    dest: integer(given.get("dest")),
    src: integer(given.get("src")),
    target: integers(given.get("target")),
    against: integers(given.get("against")),
    traced: /^(answer|stored|sufficient|\d{1,6}(\.\d{1,6}){3})$/.test(traced) ? traced : "",
    view: given.get("view") ?? "",
    own: ownFrom(given),
  };
}

/**
 * The query of a place; what is as it is at the start is left out.
 * @param {Place} place
 * @returns {string}
 */
export function toQuery(place) {
  const kept = new URLSearchParams();
  if (place.model) kept.set("model", place.model);
  if (place.prompt) kept.set("prompt", place.prompt);
  if (place.ids.length) kept.set("ids", place.ids.join(","));
  if (place.chat) kept.set("chat", place.chat);
  if (place.tab !== "pattern") kept.set("tab", place.tab);
  if (place.measure !== NOWHERE.measure) kept.set("map", place.measure);
  if (place.layer !== null && place.head !== null) kept.set("head", `${place.layer}.${place.head}`);
  if (place.dest !== null) kept.set("dest", String(place.dest));
  if (place.src !== null) kept.set("src", String(place.src));
  if (place.target.length) kept.set("target", place.target.join(","));
  if (place.against.length) kept.set("against", place.against.join(","));
  if (place.traced) kept.set("traced", place.traced);
  if (place.view) kept.set("view", place.view);
  ownInto(kept, place.own);
  const text = kept.toString();
  return text ? `?${text}` : "";
}

/** @param {Place} place which circuit is meant */
function circuitOf({ model, prompt, ids, chat, target, against, traced, own }) {
  const searched = traced === "sufficient" ? [own.baseline, own.like, own.counterfactual, own.signs] : [];
  return JSON.stringify([model, prompt, ids, chat, target, against, traced, traced === "stored" ? [own.store, own.index] : [], searched]);
}

/**
 * The place after a change. What was pinned, picked and verified in one circuit means nothing in another: nodes and
 * edges are numbers there, too.
 * @param {Place} from @param {Partial<Place>} change
 * @returns {Place}
 */
export function moved(from, change) {
  const another = "prompt" in change || "chat" in change; // its own tokens, unless they are given, too
  const to = { ...from, ...(another ? { ids: [] } : {}), ...change };
  if (circuitOf(to) === circuitOf(from)) return to;
  /** @type {import("./own.js").Own} */
  const elsewhere = to.prompt === from.prompt ? {} : { baseline: "", like: "", counterfactual: "" }; // of that prompt
  if (!to.prompt.startsWith(from.prompt)) elsewhere.edits = anywhere(to.own.edits); // tokens have other places there
  return { ...to, view: "", own: { ...to.own, verify: "", term: "", effects: "", ...elsewhere } };
}

/**
 * @param {string | null} text
 * @returns {number | null}
 */
function integer(text) {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

/**
 * @param {string | null} text
 * @returns {number[]}
 */
function integers(text) {
  return (text ?? "").split(",").map(integer).filter((n) => n !== null);
}

/**
 * @param {string | null} text
 * @returns {[number | null, number | null]}
 */
function pair(text) {
  const found = /^(\d{1,6})\.(\d{1,6})$/.exec(text ?? "");
  return found ? [Number(found[1]), Number(found[2])] : [null, null];
}
