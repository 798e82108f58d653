// Where else does it fire? Lines of text with the attending and the attended token marked.
import { h } from "../../lib/dom.js";
import { count, number, share } from "../../lib/format.js";
import { progressBar } from "../../lib/progress.js";
import { visible } from "../../lib/tokens.js";
import { cross } from "./close.js";

const AROUND = 14; // tokens shown before the first and after the last marked one

/** @param {import("../../lib/model.js").Model} model */
export function places(model) {
  const [found, error, busy] = [model.get("where"), model.get("errors")?.where, model.get("busy")?.where];
  if (!found && !error && !busy) return null;
  const close = cross(model, { type: "close", what: "where" });
  const wrong = error && [h("p", { class: "error", role: "alert" }, error)];
  const body = wrong || (found ? lines(found) : [progressBar(model, "where", "Reading texts")]);
  return h(
    "section",
    { class: "elsewhere", "aria-label": "Where else it fires" },
    h("h4", {}, found ? `Where else ${found.id} fires` : "Where else it fires", close),
    ...body,
  );
}

/** @param {any} found */
function lines(found) {
  const told = `The strongest of ${count(found.tokens, "token")} read.`;
  return [
    h("p", { class: "soft" }, found.shown.length ? told : `Nowhere in ${count(found.tokens, "token")} read.`),
    ...found.shown.map(line),
  ];
}

/** @param {{ tokens: string[], dest: number, src: number, value: number, attention: number }} shown */
function line(shown) {
  const [first, last] = [Math.min(shown.dest, shown.src), Math.max(shown.dest, shown.src)];
  const [from, to] = [Math.max(0, first - AROUND), Math.min(shown.tokens.length, last + 5)];
  const words = shown.tokens.slice(from, to).map((token, i) => {
    const at = from + i;
    const mark = at === shown.dest && at === shown.src
      ? "both"
      : at === shown.dest
      ? "dest"
      : at === shown.src
      ? "src"
      : null;
    const text = token.trim() ? token : visible(token);
    return [
      mark ? h("mark", { class: mark, title: mark === "both" ? "attends to itself" : mark }, text) : text,
      /^\s|\s$/.test(token) ? "" : " ",
    ];
  });
  return h(
    "p",
    { class: "spot", title: `strength ${number(shown.value)}` },
    h("span", { class: "number" }, share(shown.attention)),
    from > 0 && "… ",
    ...words.flat(),
    to < shown.tokens.length && "…",
  );
}
