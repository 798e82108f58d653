// What is changed in the model? Edits as the library's own plain records, how they read, and buttons that make them.
import { h } from "./dom.js";
import { channelsLabel, number } from "./format.js";
import { tokenLabel } from "./tokens.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{ tokens: number[] | null, start: number }} At */
/** @typedef {{ kind: string, layer: number, head: number | null, src: At }} Source */
/** @typedef {{ kind: string, factor: number, dest: At, src: At, [field: string]: any }} Edit */

export const WRITERS = new Set(["head", "mlp", "mixer", "embedding"]); // nodes of which all that they write can be edited
/** @type {[number, string, string][]} */
const FACTORS = [
  [0, "removed", "Take it away"],
  [0.5, "halved", "Half of it"],
  [2, "doubled", "Twice as much"],
];
/** @type {[string, string][]} */
const SCOPES = [
  ["here", "at its tokens"],
  ["on", "from here on"],
  ["everywhere", "everywhere"],
];

/** @param {string | undefined} text the list in an address, which may come from anywhere @returns {Edit[]} */
export function editsOf(text) {
  try {
    const found = JSON.parse(text || "[]");
    return Array.isArray(found) ? found.filter((one) => one && typeof one === "object" && !Array.isArray(one)) : [];
  } catch {
    return [];
  }
}

/** @param {Edit[]} edits @returns {string} */
export function editsText(edits) {
  return edits.length ? JSON.stringify(edits) : "";
}

/** @param {string | undefined} text the edits that name no tokens: they mean the same in another prompt */
export function anywhere(text) {
  const named = /"(tokens":\[|start":[1-9])/;
  return editsText(editsOf(text).filter((one) => !named.test(JSON.stringify(one))));
}

/** @param {Edit[]} edits @param {Edit[]} more a part that is edited already has the new factor */
export function withMore(edits, more) {
  const part = (/** @type {Edit} */ { factor: _, ...rest }) => JSON.stringify(rest);
  const changed = new Set(more.map(part));
  return [...edits.filter((one) => !changed.has(part(one))), ...more];
}

/** @param {Edit} edit @param {string[]} tokens what is edited, without by how much */
export function editLabel(edit, tokens) {
  const at = (/** @type {At | undefined} */ where) => places(where, tokens);
  const source = (/** @type {Source} */ one) => {
    const name = one?.head !== null && one?.head !== undefined ? `head ${one.layer}.${one.head}` : one?.kind === "embedding" ? "embedding" : `${one?.kind} ${one?.layer}`;
    const from = at(one?.src);
    return from ? `${name} from ${from}` : name;
  };
  const head = `head ${(edit.head ?? []).join(".")}`;
  const dest = at(edit.dest) ? ` at ${at(edit.dest)}` : "";
  const channels = `channels ${channelsLabel(edit.channels ?? [])}`;
  /** @type {Record<string, () => string>} */
  const kinds = {
    channels: () => `${channels} of ${head}${dest}`,
    signal: () => `${source(edit.writer)} → ${channels} of ${head}, ${edit.side} side${dest}`,
    feature: () => `feature ${edit.name} of ${head}${dest}`,
    bias: () => `scores of ${head} ${number(edit.amount)}${dest}`,
    write: () => `all that ${source(edit.writer)} writes${dest}`,
    causes: () => `${(edit.writers ?? []).map(source).join(", ")} → mlp ${edit.layer}${dest}`,
  };
  return kinds[edit.kind]?.() ?? "an edit of no known kind";
}

/** @param {At | undefined} where @param {string[]} tokens nothing where it is everywhere */
function places(where, tokens) {
  if (!where) return "";
  if (where.tokens) {
    const [first, ...more] = where.tokens;
    return more.length ? `${where.tokens.length} tokens` : tokenLabel(tokens, first, 12);
  }
  return where.start ? `${tokenLabel(tokens, where.start, 12)} and after` : "";
}

/** @param {Edit} edit @param {(factor: number) => void} pick by how much */
export function factorChoice(edit, pick) {
  if (typeof edit.factor !== "number") return null;
  const usual = FACTORS.some(([factor]) => factor === edit.factor);
  const all = usual ? FACTORS : [...FACTORS, /** @type {[number, string, string]} */ ([edit.factor, `× ${edit.factor}`, ""])];
  const list = h(
    "select",
    { "aria-label": "By how much" },
    all.map(([factor, text]) => h("option", { value: factor, selected: factor === edit.factor }, text)),
  );
  list.addEventListener("change", () => pick(Number(list.value)));
  return list;
}

let scope = "here"; // as it was chosen last

/**
 * Buttons that ask what the model would say without a part, or with more or less of it.
 * @param {object} part @param {(wish: any) => void} send @param {string | null} failed @param {string} [name]
 */
export function changes(part, send, failed, name = "it") {
  const where = h(
    "select",
    { "aria-label": "At which tokens" },
    SCOPES.map(([value, text]) => h("option", { value, selected: value === scope }, text)),
  );
  where.addEventListener("change", () => {
    scope = where.value;
  });
  const button = (/** @type {[number, string, string]} */ [factor, text, title]) =>
    h("button", { type: "button", "data-factor": factor, title, onclick: () => send({ type: "edit", part, factor, scope }) }, text);
  return h(
    "div",
    { class: "what-if", role: "group", "aria-label": "What would it say?" },
    h("span", { class: "soft" }, `What would it say with ${name}`),
    FACTORS.map(button),
    where,
    failed && h("p", { class: "error", role: "alert" }, failed),
  );
}

/** @param {Model} model @returns {(part: object) => string | null} why a part could not be edited */
export function failure(model) {
  const same = (/** @type {object} */ part) => model.get("editing") === JSON.stringify(part);
  return (part) => (same(part) ? (model.get("errors")?.edit ?? null) : null);
}
