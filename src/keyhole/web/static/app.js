// The explorer's page: one model of values, one address, and the views that look at them.
import { wishes } from "./actions.js";
import { follow } from "./flow.js";
import { further } from "./further.js";
import { fill, h } from "./lib/dom.js";
import { plain } from "./lib/model.js";
import { pane } from "./lib/pane.js";
import { setTheme, themeButton } from "./lib/theme.js";
import { fromQuery, moved, TABS, toQuery } from "./url.js";
import answer from "./views/answer.js";
import compare from "./views/compare.js";
import contrasts from "./views/contrasts.js";
import edits from "./views/edits.js";
import firing from "./views/firing.js";
import heads from "./views/heads.js";
import pattern from "./views/pattern.js";
import predictions from "./views/predictions.js";
import prompt from "./views/prompt.js";
import store from "./views/store.js";
import trace from "./views/trace.js";
import verification from "./views/verification.js";
import { writing } from "./writing.js";

/** @typedef {import("./url.js").Place} Place */
/** @typedef {import("./lib/theme.js").Theme} Theme */

const THEME = "keyhole-theme";
const FURTHER = { verification, compare, edits, store, contrasts }; // views that have the page's whole width

/** @param {string} text @returns {object} */
function kept(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

function start() {
  const place = fromQuery(location.search);
  const empty = {
    hello: null,
    run: null,
    heads: null,
    pattern: null,
    firing: null,
    circuit: null,
    told: null,
    verification: null,
    mlp: null,
    where: null,
  };
  const values = {
    ...empty,
    place,
    effects: [],
    tokens: [],
    names: null,
    story: null,
    verified: null,
    measuring: null,
    measured: null,
    alike: null,
    themes: false,
    actions: true,
    edits: true, // what was traced can be edited
    written: null,
    beside: null,
    errors: {},
    busy: {},
    mode: "exact",
    view: kept(place.view),
  };
  /** @type {Record<string, (wish: any) => void>} */
  let does = {};
  const model = plain(values, {
    onSend: (wish) => does[wish.type]?.(wish),
    onSave: (own) =>
      go({ view: Object.keys(own.view ?? {}).length ? JSON.stringify(own.view) : "" }, { replace: true }),
  });
  const arrive = (/** @type {Place} */ to) => {
    if (JSON.stringify(kept(to.view)) !== JSON.stringify(model.get("view"))) model.set("view", kept(to.view));
    model.set("place", to);
    document.title = to.prompt
      ? `${to.layer === null ? "" : `${to.layer}.${to.head} `}${to.prompt.slice(0, 60)} · Keyhole`
      : "Keyhole";
    more.arrive(to);
    return flow.arrive(to);
  };
  const go = (/** @type {Partial<Place>} */ change, { replace = false } = {}) => {
    const to = moved(model.get("place"), change);
    const query = toQuery(to);
    const keep = replace ? "replaceState" : "pushState";
    if (query !== toQuery(model.get("place"))) history[keep](null, "", query || location.pathname);
    return arrive(to);
  };
  const flow = follow(model, (change) => go(change, { replace: true }));
  const more = further(model, flow.slots, go);
  does = { ...wishes(model, flow, go), ...more.wishes, ...writing(model, flow.slots, go) };
  addEventListener("popstate", () => {
    arrive(fromQuery(location.search));
  });
  layout(model);
  flow.start().then((hello) => {
    const first = !hello || hello.first === "organism" ? null : hello.first; // as the command line had it
    if (hello && !place.prompt) go({ prompt: hello.example, model: place.model ?? first }, { replace: true });
    else if (hello) arrive(model.get("place"));
  });
}

/** @param {import("./lib/model.js").Model} model */
function layout(model) {
  const theme = /** @type {Theme} */ (["light", "dark"].find((t) => t === localStorage.getItem(THEME)) ?? "auto");
  const wear = (/** @type {Theme} */ to) => {
    setTheme(document.body, to);
    localStorage.setItem(THEME, to);
    model.set("theme", to);
  };
  setTheme(document.body, theme);
  model.set("theme", theme);
  const brand = h(
    "a",
    { class: "brand", href: location.pathname, title: "Why does this head attend here?" },
    h("img", { src: "icon.svg", alt: "", width: 22, height: 22 }),
    "Keyhole",
  );
  const bar = h("div", { class: "ask" });
  const top = h("header", { class: "top" }, brand, bar, themeButton(theme, wear));
  const map = pane("Heads", "map-pane");
  const said = pane("Answers", "answers-pane");
  const tabOf = (/** @type {string} */ tab, /** @type {string} */ text) =>
    h("button", { type: "button", role: "tab", "data-tab": tab, onclick: () => model.send({ type: "tab", tab }) }, text);
  const tabs = h("div", { class: "tabs", role: "tablist" }, TABS.map(([tab, text]) => tabOf(tab, text)));
  const beside = h("button", { type: "button", class: "asks-why", onclick: () => aside(model) });
  const middle = pane("", "middle", tabs, beside);
  const why = pane("Why here?", "why-pane");
  const views = Object.fromEntries(TABS.map(([tab]) => [tab, h("div", { class: `view ${tab}` })]));
  middle.body.append(...Object.values(views));
  const left = h("div", { class: "left" }, map.el, said.el);
  const main = h("main", {}, left, middle.el, why.el);
  document.body.append(top, main);
  const show = () => {
    const now = /** @type {Place} */ (model.get("place"));
    main.dataset.tab = now.tab;
    main.dataset.why = now.own.why === "open" ? "open" : "closed";
    beside.setAttribute("aria-expanded", String(now.own.why === "open"));
    fill(beside, now.own.why === "open" ? "Hide why" : "Why here?", now.layer === null ? null : h("b", {}, `${now.layer}.${now.head}`));
    // The same buttons: one that were made anew would lose the focus of whoever goes by keys.
    TABS.forEach(([tab], i) => tabs.children[i].setAttribute("aria-selected", String(tab === now.tab)));
    middle.title(now.tab === "pattern" && now.layer !== null ? `Head ${now.layer}.${now.head}` : "");
    for (const [tab] of TABS) views[tab].hidden = tab !== now.tab;
  };
  model.on("change:place", show);
  show();
  prompt.render({ model, el: bar });
  answer.render({ model, el: bar });
  heads.render({ model, el: map.body });
  predictions.render({ model, el: said.body });
  pattern.render({ model, el: views.pattern });
  trace.render({ model, el: views.circuit });
  firing.render({ model, el: why.body });
  for (const [tab, view] of Object.entries(FURTHER)) view.render({ model, el: views[tab] });
}

/** @param {import("./lib/model.js").Model} model shows or hides why the chosen head attends, beside a circuit */
function aside(model) {
  const why = model.get("place").own.why === "open" ? "" : "open";
  model.send({ type: "own", change: { why } });
}

start();
