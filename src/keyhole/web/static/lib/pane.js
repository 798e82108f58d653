// What holds a part of a view? A pane with a heading, which a button makes as large as the window.
import { fill, h } from "./dom.js";

/**
 * @param {string} title
 * @param {string} name a class of its own
 * @param {...import("./dom.js").Child} tools beside the heading
 * @returns {{ el: HTMLElement, body: HTMLElement, title: (text: string) => void, enlarge: (full: boolean) => void }}
 */
export function pane(title, name, ...tools) {
  const body = h("div", { class: "body" });
  const heading = h("h2", null, title);
  const button = h(
    "button",
    { type: "button", class: "icon", title: "Full screen (Esc leaves)", "aria-pressed": "false" },
    "⤢",
  );
  button.setAttribute("aria-label", `${title}: full screen`);
  const el = h(
    "section",
    { class: `pane ${name}`, "aria-label": title },
    h("header", null, heading, ...tools, button),
    body,
  );
  const enlarge = (/** @type {boolean} */ full) => {
    el.classList.toggle("full", full);
    button.setAttribute("aria-pressed", String(full));
    fill(button, full ? "⤡" : "⤢");
    el.dispatchEvent(new CustomEvent("resized", { bubbles: true }));
  };
  button.addEventListener("click", () => enlarge(!el.classList.contains("full")));
  el.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !el.classList.contains("full")) return;
    event.stopPropagation();
    enlarge(false);
  });
  return { el, body, title: (text) => fill(heading, text), enlarge };
}
