// What is asked of which model? The prompt with its tokens; a click on one makes it the attending token.
import { fill, h } from "../lib/dom.js";
import { number, share } from "../lib/format.js";
import { progressBar, whenBusy } from "../lib/progress.js";
import { short, visible } from "../lib/tokens.js";

/** @typedef {import("../lib/model.js").Model} Model */

const LONG = 60; // tokens, from which on only those around the firing are shown
const AROUND = 7;

/**
 * Keys: `hello`, `run`, `firing`, `place`, `busy`, `errors`. Sends `{type: "open-prompt", prompt}`,
 * `{type: "open-model", model}`, `{type: "open-dest", dest}`, `{type: "open-example"}`,
 * `{type: "continue"}`, `{type: "chat", chat}`, `{type: "cancel", what}`.
 * @param {{ model: Model, el: HTMLElement }} where
 */
function render({ model, el }) {
  const text = h(
    "textarea",
    { rows: 1, spellcheck: "false", "aria-label": "Prompt", placeholder: "Type a prompt and press Enter" },
  );
  const known = h("datalist", { id: "keyhole-models" });
  const name = h(
    "input",
    {
      type: "text",
      list: "keyhole-models",
      class: "model",
      "aria-label": "Model",
      title: "organism, a folder, a .gguf file or a hub name; Enter loads it",
      spellcheck: "false",
      autocomplete: "off",
    },
  );
  const go = h("button", { type: "submit", class: "go" }, "Run");
  const on = h(
    "button",
    {
      type: "button",
      class: "continue",
      "data-action": "continue",
      title: "Let the model write on; each token of its answer can be asked why",
      onclick: () => model.send({ type: "continue" }),
    },
    "Continue",
  );
  const chat = h(
    "button",
    {
      type: "button",
      class: "small",
      "data-action": "chat",
      title: "The prompt as a user’s message in the model’s chat template",
      onclick: () => model.send({ type: "chat", chat: model.get("place").chat ? "" : "1" }),
    },
    "Chat",
  );
  const said = h("div", { class: "said", "aria-live": "polite" });
  const tokens = h("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  const form = h("form", { class: "prompt" }, name, known, text, chat, go, on);
  const example = h(
    "button",
    { type: "button", class: "plain", "data-action": "example", onclick: () => model.send({ type: "open-example" }) },
  );
  el.append(form, h("div", { class: "said-line" }, said, example), tokens);

  const send = () => {
    if (name.value.trim() !== (model.get("place").model ?? "organism")) model.send(
      { type: "open-model", model: name.value.trim() || null, prompt: text.value }
    );
    else model.send({ type: "open-prompt", prompt: text.value });
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    send();
  });
  for (const event of ["input", "focus", "blur"]) text.addEventListener(event, () => grow(text));
  name.addEventListener("input", (event) => {
    if (event instanceof InputEvent && event.inputType === "insertReplacementText") send(); // chosen from the list
  });

  let seen = { prompt: "", id: "" };
  const place = () => {
    const { prompt, model: id } = model.get("place");
    chat.setAttribute("aria-pressed", String(Boolean(model.get("place").chat)));
    if (prompt !== seen.prompt) text.value = prompt; // what is being written stays
    if (id !== seen.id) name.value = id ?? "organism";
    seen = { prompt, id };
    name.scrollLeft = name.scrollWidth; // the end of a path says more than its beginning
    grow(text);
  };
  const status = () => fill(said, told(model));
  const offer = () => {
    const { example: text, question: words = [] } = model.get("hello") ?? {};
    const { prompt, against } = model.get("place");
    fill(example, `Example: why ${words[0]}, and not ${words[1]}?`);
    example.hidden = !words.length || (prompt === text && against.length > 0); // it is asked already
  };
  const strip = () => {
    const run = model.get("run");
    on.disabled = !run;
    chat.hidden = !run?.chat && !model.get("place").chat;
    fill(tokens, shown(model));
  };
  const list = () =>
    fill(known, (model.get("hello")?.models ?? []).map((/** @type {any} */ m) => h("option", { value: m.id })));
  /** @type {[string, () => void][]} */
  const heard = [
    ["change:place", place],
    ["change:place", strip],
    ["change:run", strip],
    ["change:firing", strip],
    ["change:run", status],
    ["change:busy", whenBusy(model, ["hello", "model", "run"], status)],
    ["change:errors", status],
    ["change:hello", list],
    ["change:hello", offer],
    ["change:place", offer],
  ];
  for (const [event, does] of heard) model.on(event, does);
  for (const does of [place, status, strip, list, offer]) does();
  return () => {
    for (const [event, does] of heard) model.off(event, does);
  };
}

export default { render };

/** As high as its lines while it is written in, two lines otherwise. @param {HTMLTextAreaElement} text */
function grow(text) {
  text.style.height = "auto";
  text.style.height = `${Math.min(document.activeElement === text ? 200 : 52, text.scrollHeight + 2)}px`;
}

/** @param {Model} model one line: what is wrong, what is under way, or what was run */
function told(model) {
  const [errors, busy, run] = [model.get("errors"), model.get("busy"), model.get("run")];
  if (busy.model) return progressBar(model, "model", `Loading ${model.get("wanted") ?? "the model"}`);
  if (busy.run) return progressBar(model, "run", "Running the model");
  const wrong = errors.hello ?? errors.model ?? errors.run ?? errors.heads;
  if (wrong) return h("span", { class: "error", role: "alert" }, wrong === "Cancelled." ? "This was cancelled." : wrong);
  if (!run) return busy.hello ? h("span", { class: "soft" }, "Asking the server …") : null;
  const name = run.model.split(/[\\/]/).pop(); // of a path, its end
  const exact = run.error === null || run.error === undefined ? "" : `; everything rebuilt to ${number(run.error)}`;
  return h(
    "span",
    {
      class: "faint",
      title: "Largest relative error of scores, residual streams and logits, rebuilt from channels and writers",
    },
    `${name}: ${run.layers} layers of ${run.heads} heads, ${run.tokens.length} tokens${exact}`,
  );
}

/** @param {Model} model */
function shown(model) {
  const run = model.get("run");
  if (!run) return [];
  const firing = model.get("firing");
  const place = model.get("place");
  const same = firing && ["layer", "head", "dest"].every((name) => firing[name] === place[name]);
  const row = same ? firing.row : null;
  const parts = [];
  let skipped = 0;
  for (let at = 0; at < run.tokens.length; at++) {
    const near = [
      0,
      place.dest,
      place.src,
      run.tokens.length - 1,
    ].some((p) => p !== null && Math.abs(p - at) <= AROUND);
    if (run.tokens.length > LONG && !near) {
      skipped++;
      continue;
    }
    if (skipped) parts.push(h("span", { class: "faint" }, `… ${skipped} …`));
    skipped = 0;
    parts.push(token(model, run, at, row?.[at] ?? null));
  }
  return parts;
}

/** @param {Model} model @param {any} run @param {number} at @param {number | null} weight */
function token(model, run, at, weight) {
  const { dest, src } = model.get("place");
  const role = at === dest && at === src ? " dest src" : at === dest ? " dest" : at === src ? " src" : "";
  const given = weight === null ? "" : `, attention ${share(weight)}`;
  const title = `token ${at}, id ${run.token_ids[at]}: ${JSON.stringify(run.tokens[at])}${given}`;
  const chip = h(
    "button",
    {
      type: "button",
      class: `chip${role}`,
      title,
      "data-token": at,
      onclick: () => model.send({ type: "open-dest", dest: at }),
    },
    short(visible(run.tokens[at]), 24),
  );
  if (weight !== null) chip.style.setProperty("--weight", `${(62 * Math.sqrt(weight)).toFixed(1)}%`);
  return chip;
}
