// What stands beside the drawing? What is pinned, or the story, and the table of all edges that are shown.
import { fill, h } from "../../lib/dom.js";
import { edgeDetail, markDetail } from "./panes/detail.js";
import { storyList } from "./panes/story.js";
import { go } from "./search.js";

/** @typedef {import("./stage.js").Stage} Stage */

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
    does: acts(stage),
  };
  if (view.edge !== null) return ["Edge", edgeDetail(told, view.edge)];
  if (marks.length) return [marks.length > 1 ? "Nodes" : "Node", markDetail(told, marks)];
  return story.length ? ["Story", storyList(story, storyEvents(stage))] : ["About", hint()];
}

/** @param {Stage} stage */
function storyEvents(stage) {
  return {
    hover: (/** @type {number[] | null} */ nodes) => stage.lightNodes(nodes),
    pin: (/** @type {number[]} */ nodes) => stage.change({ pinned: stage.ownersOf(nodes), edge: null }),
  };
}

function hint() {
  const text = "Point at a node to see the paths through it, click it to pin them.";
  return h("p", { class: "soft" }, `${text} This circuit ends at MLPs, so it has no story from words to the answer.`);
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
    send: model.get("actions") === true ? (content) => model.send(content) : null,
  };
}
