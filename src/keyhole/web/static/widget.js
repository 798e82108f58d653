// What does a notebook show? A circuit or a firing, and below it what was asked of it: one leads to the other.
import { fill, h } from "./lib/dom.js";
import { setTheme } from "./lib/theme.js";
import circuit from "./views/circuit.js";
import firing from "./views/firing.js";

/** @typedef {import("./lib/model.js").Model} Model */
/** @typedef {import("./lib/theme.js").Theme} Theme */
const VIEWS = { circuit, firing };
/** @typedef {keyof typeof VIEWS} Name */

/** @param {{ model: Model, el: HTMLElement }} into */
function render({ model, el }) {
  el.classList.add("keyhole-widget");
  el.setAttribute("data-lm-suppress-shortcuts", "true"); // else JupyterLab takes the keys of the drawing for its own
  const theme = around();
  const own = hosted(model, theme);
  const first = /** @type {Name} */ (model.get("first") ?? "circuit");
  const names = first === "circuit" ? /** @type {Name[]} */ (["circuit", "firing"]) : /** @type {Name[]} */ (["firing", "circuit"]);
  const parts = names.map((name) => part(own, name, { first: name === first, theme }));
  fill(el, ...parts.map((one) => one.el));
  return () => parts.forEach((one) => one.leave());
}

export default { render };

/** @returns {Theme} the notebook's own choice, where it tells */
function around() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "true" ? "light" : "dark";
  if (vscodeThemeKind) return vscodeThemeKind.includes("light") ? "light" : "dark";
  return "auto";
}

/**
 * The kernel's model, as views use it: what they ask says how to remove, and the notebook's colours are where they begin.
 * @param {Model} model @param {Theme} theme @returns {Model}
 */
function hosted(model, theme) {
  return {
    get: (key) => (key === "view" ? { ...model.get("view"), theme: model.get("view")?.theme ?? theme } : model.get(key)),
    set: (key, value) => model.set(key, key === "view" && value.theme === theme ? without(value) : value),
    save_changes: () => model.save_changes(),
    on: (event, callback) => model.on(event, callback),
    off: (event, callback) => model.off(event, callback),
    send: (content) => model.send({ ...content, mode: model.get("mode") }),
  };
}

/** @param {Record<string, any>} view */
function without({ theme, ...others }) {
  return others;
}

/**
 * One of the two: drawn when there is something to draw; the second can be closed.
 * @param {Model} model @param {Name} name @param {{ first: boolean, theme: Theme }} how
 */
function part(model, name, { first, theme }) {
  const place = h("div", { class: `host ${name}` });
  const state = h("div", { class: "state", "aria-live": "polite" });
  const close = h("button", { type: "button", class: "plain", "data-close": name, onclick: () => model.send({ type: "close", what: name }) }, "close");
  const el = h("section", { class: "keyhole widget-part" }, state, !first && h("div", { class: "leave" }, close), place);
  setTheme(el, theme);
  /** @type {(() => void) | void} */
  let leave;
  const draw = () => {
    const there = Boolean(model.get(name));
    if (there && !leave) leave = VIEWS[name].render({ model, el: place });
    if (!there && leave) leave = void leave();
    if (!there) fill(place);
    say();
  };
  const say = () => {
    const [busy, error] = [model.get("busy")?.[name], model.get("errors")?.[name]];
    fill(state, error ? h("p", { class: "error", role: "alert" }, error) : busy ? h("p", { class: "faint" }, "Working …") : null);
    close.hidden = !model.get(name);
    el.hidden = !model.get(name) && !error && !busy;
  };
  const events = /** @type {[string, () => void][]} */ ([[`change:${name}`, draw], ["change:busy", say], ["change:errors", say]]);
  for (const [event, does] of events) model.on(event, does);
  draw();
  return {
    el,
    leave: () => {
      for (const [event, does] of events) model.off(event, does);
      leave?.();
    },
  };
}
