// What is in a store? Its prompts with their circuits, the families these come in, sinks, and the names of signals.
import { fill, h } from "../lib/dom.js";
import { segments, select, watch } from "../lib/controls.js";
import { count } from "../lib/format.js";
import { familiesOf } from "./store/families.js";
import { names } from "./store/names.js";
import { outcomes } from "./store/outcomes.js";
import { sinks } from "./store/sinks.js";

/** @typedef {import("../lib/model.js").Model} Model */

/** @type {[string, string][]} */
const PARTS = [
  ["", "Prompts"],
  ["families", "Families"],
  ["sinks", "Sinks"],
  ["names", "Names"],
];
/** Which keys each part looks at. @type {Record<string, string[]>} */
const KEYS = { "": ["outcomes"], families: ["families"], sinks: ["sinks"], names: ["naming"] };

/**
 * Keys: `hello`, `stores`, `outcomes`, `families`, `sinks`, `naming`, `place`, `busy`, `errors`, `theme`. Sends `{type: "own",
 * change}`, `{type: "ask", slot, change}`, `{type: "open-store", store}`, `{type: "open-stored", store, row}`,
 * `{type: "compare-stored", store, row}`, `{type: "cancel", what}`.
 * @param {{ model: Model, el: HTMLElement }} into
 */
function render({ model, el }) {
  const [above, body] = [h("div", { class: "asking store-bar" }), h("div", { class: "store-body" })];
  fill(el, above, body);
  /** @type {unknown[]} */
  let shown = [];
  const parts = { "": outcomes, families: familiesOf, sinks, names };
  const draw = () => {
    const place = model.get("place");
    if (place.tab !== "store") return;
    const part = /** @type {keyof typeof parts} */ (place.own.part in parts ? place.own.part : "");
    const slot = KEYS[part][0];
    const looked = [
      part,
      JSON.stringify(place.own),
      model.get("stores"),
      model.get(slot),
      model.get("busy")[slot],
      model.get("errors")[slot],
      model.get("theme"),
      model.get("hello"),
      model.get("errors").stores,
      model.get("errors").hello,
      Boolean(model.get("busy").stores),
      model.get("errors").opened,
    ];
    if (looked.every((one, i) => one === shown[i])) return; // a picture that nothing changed keeps its place
    shown = looked;
    const about = chosen(model);
    fill(above, heading(model, part, about));
    const unknown = !about && (part !== "names" || !model.get("hello")); // names need no store
    fill(body, unknown ? none(model) : parts[part](model, about));
  };
  return watch(
    model,
    ["place", "hello", "stores", "outcomes", "families", "sinks", "naming", "busy", "errors", "theme"],
    draw,
  );
}

export default { render };

/** @param {Model} model the store that is looked at, as the server lists it */
function chosen(model) {
  const known = model.get("stores")?.stores ?? [];
  return known.find((/** @type {any} */ one) => one.id === model.get("place").own.store) ?? known[0] ?? null;
}

/** @param {Model} model @param {string} part @param {any} about */
function heading(model, part, about) {
  const known = /** @type {{ id: string }[]} */ (model.get("hello")?.stores ?? []);
  const which =
    known.length > 1
      ? select(
          "store",
          known.map(({ id }) => [id, id]),
          about?.id ?? "",
          (store) => model.send({ type: "open-store", store }),
        )
      : h("b", { class: "store-name" }, known[0]?.id ?? "");
  const counts = about?.counts
    ? Object.entries(about.counts)
        .filter(([, n]) => n)
        .map(([what, n]) => `${Number(n).toLocaleString("en")} ${what === "circuit" && n !== 1 ? "circuits" : what}`)
        .join(", ")
    : "";
  const facts = about?.error
    ? h("span", { class: "error" }, about.error)
    : about
      ? h(
          "span",
          { class: "soft" },
          [`${about.task ?? "prompts"} on ${about.model}`, count(about.prompts, "prompt"), counts]
            .filter(Boolean)
            .join(" · "),
        )
      : null;
  const opened = model.get("errors").opened;
  return [
    segments("What of the store", PARTS, part, (next) => model.send({ type: "own", change: { part: next, page: "" } })),
    which,
    facts,
    opened ? h("p", { class: "error", role: "alert" }, opened) : null,
  ];
}

/** @param {Model} model */
function none(model) {
  const { stores, hello } = model.get("errors");
  if (stores ?? hello) return h("p", { class: "error", role: "alert" }, stores ?? hello);
  if (model.get("hello")?.stores.length === 0)
    return h(
      "p",
      { class: "soft" },
      "There is no store here: make one with ",
      h("code", null, "keyhole bulk ioi --out ioi.store"),
      " and start ",
      h("code", null, "keyhole explore --store ioi.store"),
      ".",
    );
  return h("p", { class: "soft" }, "Opening …");
}
