// Which words decide? A bar for each, by what the answer loses without it; below 0 the word holds the answer back.
import { h } from "../../../lib/dom.js";
import { share } from "../../../lib/format.js";
import { amount } from "../../../lib/measured.js";

/**
 * @typedef {{ text: string, word: string, effect: number, flips: number | null, minor: boolean, tokens: number[], nodes:
 *   number[] }} StoryWord flips: share of copies with another word that have another answer; minor: a function word
 */

/**
 * @param {StoryWord[]} words
 * @param {{ word: (word: StoryWord | null) => void, keep: (word: StoryWord) => void, kept: StoryWord | null }} on pointed
 *   at, clicked, and which one was
 */
export function wordBars(words, on) {
  const low = Math.min(0, ...words.map(({ effect }) => effect));
  const wide = Math.max(0, ...words.map(({ effect }) => effect)) - low || 1;
  const item = (/** @type {StoryWord} */ word) => {
    const from = (100 * (Math.min(0, word.effect) - low)) / wide;
    const style = { left: `${from}%`, width: `${(100 * Math.abs(word.effect)) / wide}%` };
    const flips = word.flips ? `another answer in ${share(word.flips)} of the copies` : "";
    return h(
      "li",
      null,
      h(
        "button",
        {
          type: "button",
          class: "word",
          title: [word.text, word.effect < 0 ? "it holds the answer back" : ""].filter(Boolean).join(": "),
          "data-token": word.tokens[0],
          "aria-pressed": String(on.kept?.tokens[0] === word.tokens[0]),
          onpointerenter: () => on.word(word),
          onpointerleave: () => on.word(null),
          onfocus: () => on.word(word),
          onblur: () => on.word(null),
          onclick: () => on.keep(word),
        },
        h("span", { class: "what" }, word.word),
        !word.minor && h(
          "span",
          { class: "bar" },
          h("span", { class: word.effect < 0 ? "fill less" : "fill", style }),
          low < 0 && h("span", { class: "zero", style: { left: `${(-100 * low) / wide}%` } }),
        ),
        h("span", { class: "number" }, amount(word.effect)),
        (word.flips || !word.minor) && h("span", { class: "flips soft", title: flips || null }, word.flips ? `${share(word.flips)} other answer` : ""),
      ),
    );
  };
  const list = (/** @type {StoryWord[]} */ some, /** @type {string} */ label) =>
    h("ul", { class: some[0].minor ? "words minor" : "words", "aria-label": label }, some[0].minor && h("li", { class: "faint" }, label), some.map(item));
  const [major, minor] = [words.filter((word) => !word.minor), words.filter((word) => word.minor)];
  return h(
    "div",
    { class: "deciding" },
    major.length > 0 && list(major, "Words that decide"),
    minor.length > 0 && list(minor, "Function words and marks"),
  );
}
