// Which words decide the answer, and by which paths? Words as bars by measured effect, then paths under their headings.
import { h } from "../../../lib/dom.js";
import { share } from "../../../lib/format.js";
import { amount } from "../../../lib/measured.js";
import { wordBars } from "./words.js";

/** @typedef {import("./words.js").StoryWord} StoryWord */
/** @typedef {{ text: string, numbers?: string, nodes?: number[] }} StoryStep numbers: influence and measured effect */
/** @typedef {{ text: string, share: number, effect: number | null, nodes: number[], steps?: StoryStep[] }} StoryPath */
/**
 * @typedef {{ text: string, heading?: boolean, about?: string, legend?: boolean }} StoryText a heading, a sentence, or
 *   what numbers and words mean
 */
/** @typedef {StoryWord | StoryPath | StoryText} StoryLine */
/**
 * @typedef {{ hover: (nodes: number[] | null) => void, pin: (nodes: number[]) => void, word: (word: StoryWord | null) =>
 *   void, keep: (word: StoryWord) => void, kept: StoryWord | null }} StoryEvents
 */

/** @param {StoryLine[]} story @param {StoryEvents} on */
export function storyList(story, on) {
  const legends = story.filter((line) => "legend" in line && line.legend);
  return h(
    "div",
    { class: "telling" },
    runs(story.filter((line) => !legends.includes(line))).map((lines) => part(lines, on)),
    legends.length > 0 &&
      h(
        "details",
        { class: "meaning" },
        h("summary", null, "What the numbers mean"),
        legends.map(({ text }) => h("p", { class: "soft" }, text)),
      ),
  );
}

/** @param {StoryLine} line */
function kind(line) {
  return "word" in line ? "word" : "share" in line ? "path" : "text";
}

/** @param {StoryLine[]} story neighbours of one kind, together @returns {StoryLine[][]} */
function runs(story) {
  /** @type {StoryLine[][]} */
  const found = [];
  for (const line of story) {
    const last = found.at(-1);
    if (last && kind(last[0]) === kind(line) && kind(line) !== "text") last.push(line);
    else found.push([line]);
  }
  return found;
}

/** @param {StoryLine[]} lines @param {StoryEvents} on */
function part(lines, on) {
  if (kind(lines[0]) === "word") return wordBars(/** @type {StoryWord[]} */ (lines), on);
  if (kind(lines[0]) === "path")
    return h("ol", { class: "story" }, lines.map((line) => pathItem(/** @type {StoryPath} */ (line), on)));
  const { text, heading, about } = /** @type {StoryText} */ (lines[0]);
  if (!heading) return h("p", { class: "soft" }, text);
  return h("div", { class: "heading" }, h("h3", null, text), about && h("p", { class: "faint" }, about));
}

/** @param {StoryPath} path @param {StoryEvents} on */
function pathItem(path, on) {
  const steps = (path.steps ?? []).flatMap((step, index) => [
    index > 0 && h("span", { class: "faint" }, " → "),
    h("span", { class: "step" }, step.text, step.numbers && h("span", { class: "soft" }, ` ${step.numbers}`)),
  ]);
  const effect = path.effect === null ? null : h("span", { class: "effect" }, amount(path.effect));
  return h(
    "li",
    null,
    h(
      "button",
      {
        type: "button",
        class: "path",
        title: path.effect === null ? null : "influence, and effect",
        onpointerenter: () => on.hover(path.nodes),
        onpointerleave: () => on.hover(null),
        onfocus: () => on.hover(path.nodes),
        onblur: () => on.hover(null),
        onclick: () => on.pin(path.nodes),
      },
      h("span", { class: "amounts" }, h("b", null, share(path.share)), effect),
      h("span", null, steps.length ? [...steps, h("span", { class: "faint" }, " → answer")] : path.text),
    ),
  );
}
