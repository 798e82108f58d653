// What stands in a notebook's frame? One view of one result, without a kernel: what would need one is left out.
import { plain } from "./lib/model.js";
import firing from "./views/firing.js";
import verification from "./views/verification.js";

const MOST = 900; // pixels of height, beyond which the frame scrolls
const VIEWS = /** @type {Record<string, import("./lib/model.js").View>} */ ({ firing, verification });

/** Shows what the page carries; called once, when all of it has been read. */
export function start() {
  const place = document.getElementById("keyhole");
  const data = JSON.parse(document.getElementById("keyhole-data")?.textContent ?? "null");
  if (!place || !data) return;
  place.replaceChildren();
  VIEWS[data.show].render({ model: plain(data), el: place });
  new ResizeObserver(() => fit(place)).observe(place);
}

/** @param {HTMLElement} place the frame becomes as high as what is in it, where the notebook lets it */
function fit(place) {
  const frame = /** @type {HTMLElement | null} */ (window.frameElement); // null where the notebook is of another origin
  if (frame) frame.style.height = `${Math.min(MOST, Math.ceil(place.getBoundingClientRect().height) + 2)}px`;
}
