// What stands in a notebook's frame? One view of one result, without a kernel: what would need one is left out.
import { plain } from "./lib/model.js";
import firing from "./views/firing.js";
import verification from "./views/verified_rows.js";

const VIEWS = /** @type {Record<string, import("./lib/model.js").View>} */ ({ firing, verification });

/** Shows what the page carries; called once, when all of it has been read. */
export function start() {
  const place = document.getElementById("keyhole");
  const data = JSON.parse(document.getElementById("keyhole-data")?.textContent ?? "null");
  if (!place || !data) return;
  place.replaceChildren();
  VIEWS[data.show].render({ model: plain(data), el: place });
}
