// What happens in a page that is one file? The view is shown, and the page can be saved as it is now.
import { fill, h } from "./lib/dom.js";
import { plain } from "./lib/model.js";
import circuit from "./views/circuit.js";

/** Shows what the page carries; called once, when all of it has been read. */
export function start() {
  const place = document.getElementById("keyhole");
  const data = carried("keyhole-data");
  if (!place || !data) return;
  const pristine = /** @type {HTMLElement} */ (document.documentElement.cloneNode(true)); // before anything is drawn
  const model = plain(
    { ...data, view: carried("keyhole-view") ?? {}, saves: true },
    {
      onSend: (content) => content.type === "save-page" && save(pristine, model.get("view")),
    },
  );
  document.body.classList.toggle("framed", window.parent !== window);
  circuit.render({ model, el: place });
}

/** @param {string} id of a script that holds JSON @returns {any} */
function carried(id) {
  const text = document.getElementById(id)?.textContent;
  return text ? JSON.parse(text) : null;
}

/** @param {HTMLElement} page @param {any} view the same page with another view, as a download */
function save(page, view) {
  const own = page.querySelector("#keyhole-view");
  if (own) fill(own, JSON.stringify(view).replaceAll("<", "\\u003c"));
  const url = URL.createObjectURL(new Blob(["<!doctype html>\n", page.outerHTML], { type: "text/html" }));
  const name = decodeURIComponent(location.pathname.split("/").pop() ?? "");
  const link = h("a", { href: url, download: name.endsWith(".html") ? name : "circuit.html" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
