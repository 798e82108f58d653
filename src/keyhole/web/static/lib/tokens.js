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

/** @param {string} text @param {number} [most] cut at its end; whoever cuts shows the whole in a title */
export function short(text, most = 14) {
  const signs = [...text];
  return signs.length <= most ? text : signs.slice(0, most - 1).join("") + "…";
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif'; // as in style.css
const pen = document.createElement("canvas").getContext("2d");

/** @param {string} text @param {number} size @param {number} [weight] how wide it is drawn, in pixels */
export function textWidth(text, size, weight = 400) {
  if (!pen) return 0.6 * size * [...text].length;
  pen.font = `${weight} ${size}px ${FONT}`;
  return pen.measureText(text).width;
}

/** @param {string} text @param {number} room @param {number} size as much of it as fits into so many pixels */
export function fitted(text, room, size) {
  if (textWidth(text, size) <= room) return text;
  let most = [...text].length - 1;
  while (most > 1 && textWidth(short(text, most), size) > room) most -= 1;
  return most > 1 ? short(text, most) : "";
}

/** @param {string[]} tokens the text that they are: those with spaces of their own stand side by side, others apart */
export function joined(tokens) {
  return tokens.join(tokens.some((token) => /^\s\S/.test(token)) ? "" : " ").trim();
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
