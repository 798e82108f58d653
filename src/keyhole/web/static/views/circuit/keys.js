// What does the keyboard do? Everything that the pointer does; `?` shows it.
import { h } from "../../lib/dom.js";

/** @type {[string, string][]} */
const KEYS = [
  ["Tab", "from node to node, the strongest first"],
  ["← → ↑ ↓", "to the nearest node on that side; pan where none has the focus"],
  ["Enter", "pin a node: its paths stay lit, and all about it stands beside"],
  ["Shift Enter", "pin one more, to group them"],
  ["Esc", "clear, step by step"],
  ["/", "find a head, a kind or a word; Enter goes on to the next"],
  ["+ − 0", "larger, smaller, fit"],
  ["Shift ← → ↑ ↓", "pan"],
  ["?", "this list"],
];
/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** A list of keys that can be opened and closed. */
export function help() {
  const close = h("button", { type: "button" }, "Close");
  const el = h(
    "dialog",
    { class: "help", "aria-label": "Keys" },
    h("h3", null, "Keys"),
    h(
      "dl",
      null,
      KEYS.map(([key, text]) => h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, text))),
    ),
    h(
      "p",
      { class: "soft" },
      "Wheel or pinch zooms, dragging pans. Click pins, Shift and click pins one more. ",
      "A click on an edge shows its channels, on …n opens folded tokens.",
    ),
    close,
  );
  close.addEventListener("click", () => el.close());
  return el;
}

/**
 * @param {HTMLElement} root
 * @param {{ pin: (id: string, more: boolean) => void, clear: () => void, search: () => void, zoom: (factor: number)
 *   => void, fit: () => void, pan: (dx: number, dy: number) => void, help: () => void, go: (id: string) => void,
 *   boxes: () => Map<string, import("./drawing/layout.js").Box> }} does
 */
export function keys(root, does) {
  const heard = (/** @type {KeyboardEvent} */ event) => {
    const at = /** @type {Element} */ (event.target);
    if (at.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    const mark = at.closest("[data-mark]")?.getAttribute("data-mark") ?? null;
    if (act(event, mark, at.closest("svg.circuit") !== null)) event.preventDefault();
  };
  /** @param {KeyboardEvent} event @param {string | null} mark @param {boolean} drawing */
  function act(event, mark, drawing) {
    const arrow = ARROWS[event.key];
    if (arrow && mark && !event.shiftKey) return step(mark, arrow);
    if (arrow && drawing) return (does.pan(-60 * arrow[0], -60 * arrow[1]), true);
    if ((event.key === "Enter" || event.key === " ") && mark) return (does.pin(mark, event.shiftKey), true);
    if (event.key === "Escape") return (does.clear(), true);
    if (event.key === "/") return (does.search(), true);
    if (event.key === "?") return (does.help(), true);
    if (event.key === "+" || event.key === "=") return (does.zoom(1.25), true);
    if (event.key === "-") return (does.zoom(1 / 1.25), true);
    if (event.key === "0") return (does.fit(), true);
    return false;
  }
  /** @param {string} mark @param {[number, number]} arrow */
  function step(mark, arrow) {
    const next = nearest(does.boxes(), mark, arrow);
    if (next) does.go(next);
    return true;
  }
  // in a notebook other cells have their own keys
  const whole = document.body.classList.contains("keyhole-page") ? document.body : root;
  const listener = /** @type {EventListener} */ (heard);
  whole.addEventListener("keydown", listener);
  return () => whole.removeEventListener("keydown", listener);
}

/**
 * The next mark on a side: near, and rather straight ahead than aside.
 * @param {Map<string, import("./drawing/layout.js").Box>} boxes @param {string} from @param {[number, number]} arrow
 */
export function nearest(boxes, from, [dx, dy]) {
  const here = boxes.get(from);
  let best = null;
  let least = Infinity;
  for (const [id, box] of boxes) {
    if (!here || id === from) continue;
    const ahead = dx * (box.x - here.x) + dy * (box.y - here.y);
    const aside = Math.abs(dx ? box.y - here.y : box.x - here.x);
    if (ahead < 4 || ahead + 2.5 * aside >= least) continue;
    [best, least] = [id, ahead + 2.5 * aside];
  }
  return best;
}
