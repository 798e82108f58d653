// How did the words become the answer? What the story holds and which words decide, then its largest paths, to read and
// to light up.
import { h } from "../../../lib/dom.js";
import { share } from "../../../lib/format.js";

/** @typedef {{ text: string, numbers?: string, nodes?: number[] }} StoryStep numbers: influence and measured effect */
/** @typedef {{ text: string, share?: number, nodes?: number[], steps?: StoryStep[] }} StoryPath without share: a line */

/**
 * @param {StoryPath[]} story @param {{ hover: (nodes: number[] | null) => void, pin: (nodes: number[]) => void }} on
 */
export function storyList(story, on) {
  const path = (/** @type {StoryPath} */ one) => {
    const nodes = one.nodes ?? [];
    const steps = (one.steps ?? []).flatMap((step, index) => [
      index > 0 && h("span", { class: "faint" }, " → "),
      h("span", { class: "step" }, step.text, step.numbers && h("span", { class: "soft" }, ` ${step.numbers}`)),
    ]);
    return h(
      "li",
      null,
      h(
        "button",
        {
          type: "button",
          class: "path",
          onpointerenter: () => on.hover(nodes),
          onpointerleave: () => on.hover(null),
          onfocus: () => on.hover(nodes),
          onblur: () => on.hover(null),
          onclick: () => on.pin(nodes),
        },
        h("b", null, share(one.share ?? 0)),
        h("span", null, steps.length ? [...steps, h("span", { class: "faint" }, " → answer")] : one.text),
      ),
    );
  };
  const first = story.findIndex((one) => one.share !== undefined);
  const line = (/** @type {StoryPath} */ one) => h("p", { class: "soft" }, one.text);
  const paths = story.filter((one) => one.share !== undefined);
  const others = story.map((one, index) => ({ one, above: first < 0 || index < first })).filter(({ one }) => one.share === undefined);
  return h(
    "div",
    { class: "telling" },
    others.filter(({ above }) => above).map(({ one }) => line(one)),
    h("ol", { class: "story" }, paths.map(path)),
    others.filter(({ above }) => !above).map(({ one }) => line(one)),
  );
}
