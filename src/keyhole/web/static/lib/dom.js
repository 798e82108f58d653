// How does something get onto the page? As elements whose text is text: nothing is ever read as markup.

/** @typedef {Node | string | number | null | undefined | false} Leaf */
/** @typedef {Leaf | Leaf[]} Child */
/** @typedef {Record<string, any>} Attrs */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element. `on...` are listeners, `style` and `dataset` are objects; what is null or false is left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Attrs | null} [attrs] @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attrs, ...children) {
  return dress(document.createElement(tag), attrs, children);
}

/**
 * An SVG element, by the same rules.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag @param {Attrs | null} [attrs] @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function s(tag, attrs, ...children) {
  return dress(document.createElementNS(SVG, tag), attrs, children);
}

/**
 * Puts these children in place of all that were there.
 * @template {Element} E
 * @param {E} el @param {...Child} children
 */
export function fill(el, ...children) {
  el.replaceChildren(...nodes(children));
  return el;
}

/**
 * Draws anew. Whoever goes by keys finds the focus on the same button again, by what it is called and its row.
 * @param {() => void} draw
 */
export function keepingFocus(draw) {
  const own = document.activeElement;
  if (!own?.matches("button, select, input")) return draw(); // of the page itself all text would be read each time
  const above = [];
  for (let at = own.parentElement; at; at = at.parentElement) above.push(at);
  const was = called(own);
  draw();
  if (own.isConnected) return;
  const left = above.find((one) => one.isConnected);
  const same = [...(left?.querySelectorAll(own.tagName) ?? [])].find((one) => called(one) === was);
  if (same instanceof HTMLElement) same.focus({ preventScroll: true });
}

/** @param {Element} one */
function called(one) {
  const told = [one.closest("[data-signal], tr"), one].map((at) => (at instanceof HTMLElement ? { ...at.dataset } : {}));
  return JSON.stringify([...told, one.getAttribute("aria-label"), one.textContent]);
}

/**
 * @template {HTMLElement | SVGElement} E
 * @param {E} el @param {Attrs | null | undefined} attrs @param {Child[]} children
 */
function dress(el, attrs, children) {
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2).toLowerCase(), value);
    else if (name === "style") for (const [key, own] of Object.entries(value)) el.style.setProperty(key, String(own));
    else if (name === "dataset") for (const [key, own] of Object.entries(value)) el.dataset[key] = String(own);
    else el.setAttribute(name, value === true ? "" : String(value));
  }
  el.append(...nodes(children));
  return el;
}

/** @param {Child[]} children @returns {(Node | string)[]} */
function nodes(children) {
  const found = [];
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    found.push(typeof child === "number" ? String(child) : child);
  }
  return found;
}
