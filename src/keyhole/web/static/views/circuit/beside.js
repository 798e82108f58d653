// What stands beside the drawing? What is pinned, or the story, and the table of all edges that are shown.
import { fill, h } from "../../lib/dom.js";
import { isSufficient } from "../../lib/circuit.js";
import { share } from "../../lib/format.js";
import { amount, measuredOf } from "../../lib/measured.js";
import { progressBar, whenBusy } from "../../lib/progress.js";
import { tokenLabel } from "../../lib/tokens.js";
import { edgeDetail, markDetail } from "./panes/detail.js";
import { storyList } from "./panes/story.js";
import { failure } from "../../lib/edits.js";
import { go } from "./search.js";

/** @typedef {import("./stage.js").Stage} Stage */

const MATTERS = 0.1; // of the gap: effects that are shown

/** @param {Stage} stage draws it anew when a story begins or ends to be made, or an edge to be measured @returns {() => void} ends that */
export function watchBeside(stage) {
  const { model } = stage;
  const draw = () => drawBeside(stage);
  const measured = () => {
    stage.graph = { ...stage.graph, measured: measuredOf(model, stage.doc) };
    draw();
  };
  /** @type {[string, () => void][]} */
  const heard = [
    ["change:busy", whenBusy(model, ["told"], draw)],
    ["change:errors", draw],
    ["change:measuring", draw],
    ["change:measured", measured],
  ];
  for (const [event, does] of heard) model.on(event, does);
  return () => heard.forEach(([event, does]) => model.off(event, does));
}

/** @param {Stage} stage everything beside the drawing, as it is now */
export function drawBeside(stage) {
  const view = stage.state.get();
  const [title, content] = about(stage);
  stage.panes.detail.title(title);
  fill(stage.panes.detail.body, content);
  const edges = stage.picture.links.flatMap((link) => link.edges);
  const how = { sort: view.sort, edge: view.edge, expanded: new Set(view.expanded) };
  stage.table.draw(stage.graph, stage.names, edges, how);
  stage.panes.table.title(`Edges (${edges.length.toLocaleString("en")} shown)`);
}

/** @param {Stage} stage @returns {[string, HTMLElement]} */
function about(stage) {
  const view = stage.state.get();
  const marks = stage.pinned();
  const story = stage.model.get("story") ?? [];
  const told = {
    graph: stage.graph,
    names: stage.names,
    verified: stage.model.get("verified") ?? {},
    expanded: new Set(view.expanded),
    measuring: (/** @type {number} */ edge) =>
      stage.model.get("measuring") === edge ? progressBar(stage.model, "edge", "Removing the signal") : null,
    does: acts(stage),
  };
  if (view.edge !== null) return ["Edge", edgeDetail(told, view.edge)];
  if (marks.length) return [marks.length > 1 ? "Nodes" : "Node", markDetail(told, marks)];
  if (story.length) return ["Story", storyList(story, storyEvents(stage))];
  return isSufficient(stage.doc) ? ["What suffices", sufficing(stage)] : ["Story", untold(stage)];
}

/** @param {Stage} stage */
function storyEvents(stage) {
  return {
    hover: (/** @type {number[] | null} */ nodes) => stage.lightNodes(nodes),
    pin: (/** @type {number[]} */ nodes) => stage.change({ pinned: stage.ownersOf(nodes), edge: null }),
    word: (/** @type {import("./panes/words.js").StoryWord | null} */ word) => stage.lightWord(word),
    keep: (/** @type {import("./panes/words.js").StoryWord} */ word) => stage.keepWord(word),
    kept: stage.word,
  };
}

/** @param {Stage} stage words by the effect of their embeddings, and how a circuit that suffices is read */
function sufficing(stage) {
  const { doc } = stage;
  const { measured } = stage.graph;
  const { found, level, baseline, both_signs: signs } = doc.parameters;
  const lines = measured ? embeddings(doc, measured) : [];
  const n = measured?.faithfulness?.edges ?? found;
  const drawn = n === found ? "" : `, drawn as ${found} because a head is drawn once for each token that it reads`;
  const kept = `The smallest set of edges that a search found to keep ${share(level)} of the answer’s gap to ${baseline}: ${n}${drawn}.`;
  const back = signs ? " Edges with a negative share hold the answer back." : "";
  const why = "Faint signals say why heads look where they look; they are no part of what suffices.";
  const hint = "Point at a node to see the paths through it, click it to pin them.";
  return h(
    "div",
    { class: "telling" },
    storyList(lines, storyEvents(stage)),
    [kept + back, why, hint].map((text) => h("p", { class: "soft" }, text)),
  );
}

/** @param {import("../../lib/circuit.js").CircuitDocument} doc @param {import("../../lib/measured.js").Measured} found @returns {import("./panes/story.js").StoryLine[]} */
function embeddings(doc, found) {
  const least = MATTERS * (found.everything - found.nothing);
  const words = found.words.flatMap((effect, token) => {
    if (effect === null || Math.abs(effect) < least) return [];
    const node = doc.nodes.findIndex((one) => one.kind === "embedding" && one.dest === token);
    const word = tokenLabel(doc.tokens, token);
    const text = `${word} ${amount(effect)}`;
    return [{ text, word, effect, flips: null, minor: false, tokens: [token], nodes: node < 0 ? [] : [node] }];
  });
  words.sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
  const about = `effect: what the ${found.metric} loses with the token’s embedding at ${found.baseline}`;
  if (!words.length) return [{ text: `No token’s embedding alone changes the ${found.metric} by ${amount(least)}.` }];
  return [{ text: "Tokens by effect", heading: true, about }, ...words];
}

/** @param {Stage} stage why there is no story here: it is being made, it failed, or there is none to tell */
function untold({ model, doc }) {
  const { told: busy } = model.get("busy") ?? {};
  const error = model.get("errors")?.told;
  const ends = !doc.nodes.some((node) => typeof node.influence === "number");
  const why = busy
    ? progressBar(model, "told", "Making the story")
    : ends
      ? "This circuit ends at MLPs and has no influence, so it has no story from the tokens to the answer."
      : error
        ? h("span", { class: "error", role: "alert" }, error === "Cancelled." ? "The story was cancelled." : error)
        : model.get("story")
          ? "No path from a token to the answer carries enough influence to be told."
          : null;
  const hint = "Point at a node to see the paths through it, click it to pin them.";
  return h("div", null, why && h("p", { class: "soft" }, why), h("p", { class: "soft" }, hint));
}

/** @param {Stage} stage @returns {import("./panes/detail.js").Does} */
function acts(stage) {
  const { state, model } = stage;
  return {
    rename: (id, name) => {
      const { [id]: _, ...labels } = state.get().labels;
      stage.change({ labels: name ? { ...labels, [id]: name } : labels }, true);
    },
    group: (ids, name) => {
      const { groups } = state.get();
      const members = stage.picture.marks.filter((mark) => ids.includes(mark.id)).flatMap((mark) => mark.members);
      const id = `g${1 + Math.max(0, ...groups.map((group) => Number(group.id.slice(1))))}`;
      const kept = groups.filter((group) => !ids.includes(group.id));
      stage.change({ groups: [...kept, { id, name, members }], pinned: [id], edge: null }, true);
    },
    ungroup: (id) => {
      const groups = state.get().groups.filter((group) => group.id !== id);
      stage.change({ groups, pinned: [] }, true);
    },
    pick: (edge) => stage.pick(edge),
    pin: (node) => {
      go(stage, `n${node}`, false);
      stage.change({ pinned: stage.ownersOf([node]), edge: null });
    },
    expand: (edge) => stage.expand(edge),
    ...(model.get("edits") === true ? { failed: failure(model) } : {}),
    send: model.get("actions") === true ? (content) => model.send(content) : null,
  };
}
