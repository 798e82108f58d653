// How does an example read? A piece of text with its dest and its src marked.
import { h } from "../../lib/dom.js";
import { number, share } from "../../lib/format.js";
import { visible } from "../../lib/tokens.js";

const AROUND = 16; // tokens shown before the first and after the last marked one

/** @param {{ tokens: string[], dest: number, src: number, value: number, attention: number, pick: string }} shown */
export function example(shown) {
  const [first, last] = [Math.min(shown.dest, shown.src), Math.max(shown.dest, shown.src)];
  const [from, to] = [Math.max(0, first - AROUND), Math.min(shown.tokens.length, last + 6)];
  const words = shown.tokens.slice(from, to).flatMap((token, i) => {
    const at = from + i;
    const mark =
      at === shown.dest && at === shown.src ? "both" : at === shown.dest ? "dest" : at === shown.src ? "src" : null;
    const text = token.trim() ? token : visible(token);
    return [
      mark ? h("mark", { class: mark, title: mark === "both" ? "dest and src" : mark }, text) : text,
      /^\s|\s$/.test(token) ? "" : " ",
    ];
  });
  return h(
    "p",
    { class: "example", "data-pick": shown.pick },
    h("span", { class: "number", title: `strength ${number(shown.value)}` }, share(shown.attention)),
    h("span", null, from > 0 && "… ", ...words, to < shown.tokens.length && "…"),
  );
}
