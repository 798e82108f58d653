// Light or dark? As the system has it, until somebody says otherwise.
import { h } from "./dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SIGN = { auto: "◐", light: "☀", dark: "☾" };
const SAID = { auto: "as the system has it", light: "light", dark: "dark" };
/** @typedef {"auto" | "light" | "dark"} Theme */

/** @param {HTMLElement} root @param {Theme} theme */
export function setTheme(root, theme) {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
}

/**
 * A button that goes through the three.
 * @param {Theme} theme @param {(theme: Theme) => void} changed
 */
export function themeButton(theme, changed) {
  const button = h("button", { type: "button", class: "icon theme" });
  const say = () => {
    button.textContent = SIGN[theme];
    button.title = `Colours: ${SAID[theme]}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    theme = /** @type {Theme} */ (NEXT[theme]);
    say();
    changed(theme);
  });
  say();
  return button;
}
