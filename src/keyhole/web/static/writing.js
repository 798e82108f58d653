// What does the model write, and what with edits? Wishes of the answer's view, and of buttons that edit what was traced.
import { job } from "./api.js";
import { placeOf, traceOf } from "./flow.js";
import { editsOf, editsText, withMore } from "./lib/edits.js";

/** @typedef {import("./lib/model.js").Model} Model */
/** @typedef {import("./url.js").Place} Place */
/** @typedef {ReturnType<typeof import("./flow.js").slotsOf>} Slots */
/** @typedef {(change: Partial<Place>, how?: { replace?: boolean }) => void} Go */
/** @typedef {{ id: number, text: string, piece: string, probability: number }} Token */
/**
 * @typedef {object} Written an answer: after which prompt, and what it is
 * @property {Pick<Place, "model" | "prompt" | "ids" | "chat">} from @property {number[]} prompt_ids
 * @property {Token[]} tokens @property {string} text @property {string} stopped @property {string} reason
 */

export const LENGTH = 40; // tokens, unless something else is asked for

/**
 * @param {Model} model @param {Slots} slots @param {Go} go
 * @returns {Record<string, (wish: any) => void>}
 */
export function writing(model, slots, go) {
  const place = () => /** @type {Place} */ (model.get("place"));
  const nowhere = { dest: null, src: null, against: [] };
  return {
    continue: () => write(model, slots),
    "close-answer": () => slots.drop("written"),
    chat: ({ chat }) => go({ chat, ...nowhere, target: [], traced: "" }),
    "ask-token": ({ index }) => {
      const { from, prompt_ids: before, tokens } = /** @type {Written} */ (model.get("written"));
      const written = tokens.slice(0, index);
      const cut = {
        prompt: from.chat ? from.prompt : from.prompt + written.map((one) => one.piece).join(""),
        ids: index ? [...before, ...written.map((one) => one.id)] : from.ids,
      };
      go({ ...from, ...cut, ...nowhere, target: [tokens[index].id], traced: "answer", tab: "circuit" });
    },
    edit: async (wish) => {
      model.set("editing", JSON.stringify(wish.part));
      const found = await slots.fill("edit", (signal) => job("edit", partOf(place(), wish), { signal }));
      if (found) go({ tab: "edits", own: edited(place(), withMore(editsOf(place().own.edits), found.edits)) });
    },
    edits: ({ edits }) => go({ own: edited(place(), edits) }),
  };
}

/** @param {Place} place @param {import("./lib/edits.js").Edit[]} edits */
function edited(place, edits) {
  return { ...place.own, edits: editsText(edits) };
}

/** @param {Place} place @param {any} wish what names a part, with the circuit or the prompt that it is of */
function partOf(place, { part, factor, scope }) {
  if (part.typed !== undefined) return part;
  return part.firing
    ? { ...placeOf(place), ...part.firing, factor, scope }
    : { ...traceOf(place), ...part, factor, scope };
}

/** @param {Place} place the prompt, and how the model writes on */
export function writingOf(place) {
  const { length, temperature, seed } = place.own;
  const free = Number(temperature) > 0 ? { temperature: Number(temperature), seed: Number(seed) || 0 } : {};
  return { ...placeOf(place), max_new_tokens: Number(length) || LENGTH, ...free };
}

/** @param {Model} model @param {Slots} slots */
async function write(model, slots) {
  const place = /** @type {Place} */ (model.get("place"));
  const { model: name, prompt, ids, chat } = place;
  const from = { model: name, prompt, ids, chat };
  model.set("written", null);
  model.set("writes", from);
  const progress = slots.progress("written");
  await slots.fill("written", async (signal) => {
    const answer = await job("generate", writingOf(place), { progress, signal, keeps: true });
    return { from, ...answer };
  });
}

/** @param {Place} place @param {Written} written does the answer belong here: to this prompt, or one cut before its tokens? */
export function belongs(place, written) {
  if (follows(place, written.from)) return true;
  const all = [...written.prompt_ids, ...written.tokens.map((one) => one.id)];
  const cut = place.ids.length >= written.prompt_ids.length && place.ids.every((id, i) => id === all[i]);
  return cut && place.model === written.from.model;
}

/** @param {Place} place @param {Written["from"]} from is it the same prompt? */
export function follows(place, from) {
  return JSON.stringify(placeOf(place)) === JSON.stringify(placeOf(from));
}

/** @param {Place} place @param {Written} written the index of the token that is asked for its reasons */
export function askedToken(place, { from, prompt_ids: before, tokens }) {
  const index = follows(place, from) ? 0 : place.ids.length - before.length;
  return place.target.length === 1 && tokens[index]?.id === place.target[0] ? index : null;
}
