// How does a token read? Spaces and line breaks can be seen, long ones are cut; always as text.
import { h } from "./dom.js";

const SIGNS = new Map([
  ["\n", "⏎"],
  ["\r", "␍"],
  ["\t", "⇥"],
  [" ", "␣"],
  ["\u00a0", "⍽"],
  ["\u200b", "∅"],
]);

/** @param {string} token what is there, even where it is blank: Mary, ⏎, ␣␣ */
export function visible(token) {
  const text = token.trim() ? token.trim() : token;
  if (text === "") return "∅";
  return text.replace(/[\n\r\t\u200b]/g, (sign) => SIGNS.get(sign) ?? sign).replace(/^\s+$/, blanks);
}

/** @param {string} text */
function blanks(text) {
  return [...text].map((sign) => SIGNS.get(sign) ?? "␣").join("");
}

/** @param {string} text @param {number} [most] cut in its middle: its end may matter as much as its beginning */
export function short(text, most = 14) {
  const signs = [...text];
  if (signs.length <= most) return text;
  const left = Math.ceil((most - 1) / 2);
  return signs.slice(0, left).join("") + "…" + signs.slice(signs.length - (most - 1 - left)).join("");
}

/** @param {string[]} tokens @param {number} pos @param {number} [most] 14:to, as everywhere in Keyhole */
export function tokenLabel(tokens, pos, most = 24) {
  return `${pos}:${short(visible(tokens[pos] ?? ""), most)}`;
}

/**
 * @param {string[]} tokens
 * @param {number} pos
 * @param {number} [most] an element for it, the whole token in its title
 */
export function tokenMark(tokens, pos, most = 24) {
  const place = h("span", { class: "place" }, pos);
  const text = h("span", { class: "text" }, short(visible(tokens[pos] ?? ""), most));
  return h("span", { class: "token", title: `token ${pos}: ${JSON.stringify(tokens[pos] ?? "")}` }, place, text);
}
