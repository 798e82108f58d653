// Which token is this column, which layer this row? Labels that stay in sight while the drawing moves below them.
import { fill, s } from "../../../lib/dom.js";
import { fitted, textWidth, visible } from "../../../lib/tokens.js";

export const LEFT = 64; // pixels for the names of layers
export const BOTTOM = 34; // for tokens
export const TOKEN = 12.5; // pixels of a token's letters, as in circuit.css
export const PLACE = 11; // and of its number's

/** @param {(pos: number) => void} open a folded gap was clicked */
export function axes(open) {
  const tokens = s("g", { class: "labels" });
  const layers = s("g", { class: "labels" });
  const below = s("rect", { class: "ground" });
  const beside = s("rect", { class: "ground", x: 0, y: 0, width: LEFT });
  const line = s("path", { class: "rule" });
  const el = s("g", { class: "axes" }, beside, layers, below, tokens, line);
  /** @type {{ columns: import("./layout.js").Column[], rows: import("./layout.js").Row[], texts: string[] }} */
  let shown = { columns: [], rows: [], texts: [] };
  let size = { width: 0, height: 0 };
  /** @type {Set<number>} tokens that are pointed out */
  let lit = new Set();

  /** @param {import("../../../lib/camera.js").Place} place @param {boolean} zoomed */
  function move(place, zoomed) {
    if (zoomed) relabel(place.k);
    tokens.setAttribute("transform", `translate(${place.x} ${size.height - BOTTOM})`);
    layers.setAttribute("transform", `translate(0 ${place.y})`);
  }

  /** @param {number} k labels keep their size: they are cut, or left out, where columns become narrow */
  function relabel(k) {
    fill(
      tokens,
      shown.columns.map((column) => (column.gap !== null ? gap(column, k, open) : token(column, k, shown.texts))),
    );
    light(lit);
    let last = Infinity;
    fill(
      layers,
      shown.rows.map((row) => {
        const y = row.y * k;
        if (last - y < 12) return null; // from the bottom up: no two on top of each other
        last = y;
        return s("text", { class: "layer", x: LEFT - 10, y: y + 4 }, row.label);
      }),
    );
  }

  /**
   * @param {import("./layout.js").Layout} lay
   * @param {string[]} texts
   * @param {import("../../../lib/camera.js").Place} place
   */
  function label(lay, texts, place) {
    shown = { columns: lay.columns, rows: lay.rows, texts };
    relabel(place.k);
    move(place, false);
  }

  /** @param {number} width @param {number} height @param {import("../../../lib/camera.js").Place} place */
  function resize(width, height, place) {
    size = { width, height };
    beside.setAttribute("height", String(height));
    for (const [name, value] of Object.entries({ x: 0, y: height - BOTTOM, width, height: BOTTOM }))
      below.setAttribute(name, String(value));
    line.setAttribute("d", `M${LEFT} 0V${height - BOTTOM}H${width}`);
    move(place, false);
  }

  /** @param {Set<number>} positions these tokens stand out, or the fold that they are in */
  function light(positions) {
    lit = positions;
    shown.columns.forEach((column, index) => {
      const last = column.pos + Math.max(1, column.gap !== null && !column.open ? column.gap : 1);
      const has = [...positions].some((pos) => pos >= column.pos && pos < last);
      tokens.children[index]?.classList.toggle("lit", has);
    });
  }
  return { el, move, label, resize, light };
}

/** @param {import("./layout.js").Column} column @param {number} k @param {string[]} texts */
function token(column, k, texts) {
  const place = String(column.pos);
  const numbered = column.plain ? 0 : textWidth(place, PLACE) + 3; // its number matters where something is drawn
  const text = fitted(visible(texts[column.pos] ?? ""), column.w * k - 4 - numbered, TOKEN);
  const title = s("title", null, `token ${place}: ${JSON.stringify(texts[column.pos] ?? "")}`);
  const x = (column.x + column.w / 2) * k;
  if (!text && column.w * k < numbered + 4) return s("g", null, title, s("path", { class: "tick", d: `M${x} 4v5` }));
  const number = column.plain ? null : s("tspan", { class: "place" }, place);
  return s(
    "text",
    { class: column.plain ? "token plain" : "token", x, y: 21 },
    title,
    number,
    text && s("tspan", { class: "word", dx: number ? 3 : 0 }, text),
  );
}

/** @param {import("./layout.js").Column} column @param {number} k @param {(pos: number) => void} open folds, too */
function gap(column, k, open) {
  const n = column.gap ?? 0;
  const which = `tokens ${column.pos} to ${column.pos + n - 1}`;
  const label = column.open ? `Fold ${which} again` : `${which}: ${n} without a part in what is shown. Open them`;
  const act = () => open(column.pos);
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.stopPropagation();
    event.preventDefault();
    act();
  };
  const w = Math.max(5, column.w * k - 4);
  const x = (column.x + column.w / 2) * k;
  const text = column.open ? "›‹" : `…${n}`;
  const attrs = { class: column.open ? "gap open" : "gap", role: "button", tabindex: 0, "aria-label": label };
  return s(
    "g",
    { ...attrs, "data-gap": column.pos, onclick: act, onkeydown: press },
    s("title", null, label),
    s("rect", { x: x - w / 2, y: 8, width: w, height: 18, rx: 4 }),
    w >= (column.open ? 10 : 12 + 6 * String(n).length) && s("text", { class: "token", x, y: 21 }, text),
  );
}
