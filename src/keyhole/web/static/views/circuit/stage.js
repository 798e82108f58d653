// What happens when something is touched? The state changes, and with it the drawing and the panes.
import { answerText } from "../../lib/circuit.js";
import { fill, keepingFocus } from "../../lib/dom.js";
import { count } from "../../lib/format.js";
import { measuredOf } from "../../lib/measured.js";
import { setTheme } from "../../lib/theme.js";
import { drawBeside, watchBeside } from "./beside.js";
import { layout, LEGIBLE } from "./drawing/layout.js";
import { frame } from "./frame.js";
import { drawn, indexed, paths } from "./graph.js";
import { keys } from "./keys.js";
import { finder, go } from "./search.js";
import { viewState } from "./state.js";

/** @typedef {import("../../lib/circuit.js").CircuitDocument} CircuitDocument */
/** @typedef {import("../../lib/model.js").Model} Model */

/** What is on the screen, and what happens when something is touched. */
export class Stage {
  /** @param {Model} model @param {HTMLElement} el @param {CircuitDocument} doc */
  constructor(model, el, doc) {
    this.model = model;
    this.root = el;
    this.doc = doc;
    this.graph = { ...indexed(doc), measured: measuredOf(model, doc) };
    this.names = model.get("names") ?? {};
    this.state = viewState(model, doc);
    this.picture = drawn(this.graph, this.state.get());
    this.waiting = 0;
    /** @type {import("./panes/words.js").StoryWord | null} a word of the story that stays lit */
    this.word = null;
    this.finder = finder(this);
    const parts = frame(this);
    this.draw = parts.draw;
    this.table = parts.table;
    this.tools = parts.tools;
    this.panes = parts.panes;
    this.help = parts.help;
    fill(el, parts.all);
    setTheme(el, this.state.get().theme);
    this.lay = this.place();
    this.draw.resize();
    this.redraw();
    this.fit();
    this.watch();
  }

  place(marks = this.picture.marks) {
    const looked = marks.flatMap((mark) => (mark.kind === "head" ? [this.doc.nodes[mark.members[0]].src] : []));
    const room = this.draw.room();
    return layout(marks, this.doc.tokens, looked, { opened: this.state.get().opened, ...room });
  }

  /**
   * @param {import("./graph.js").Mark[]} marks can their labels be read? Of a drawing that is out of sight, or that is
   *   compared with another, nothing is hidden for that
   */
  legible(marks) {
    return this.draw.el.clientWidth === 0 || Boolean(this.model.get("marks")) || this.place(marks).scale >= LEGIBLE;
  }

  watch() {
    this.unkey = keys(this.root, {
      pin: (id, more) => this.pin(id, more),
      clear: () => this.clear(),
      search: () => this.tools.search.focus(),
      zoom: (factor) => this.draw.camera.zoom(factor),
      fit: () => this.fit(),
      pan: (dx, dy) => this.draw.camera.pan(dx, dy),
      help: () => this.help.showModal(),
      go: (id) => go(this, id),
      boxes: () => this.lay.boxes,
    });
    this.foreign = () => {
      if (!this.state.foreign()) return;
      setTheme(this.root, this.state.get().theme);
      this.redraw();
    };
    this.model.on("change:view", this.foreign);
    this.unwatch = watchBeside(this);
    this.observer = new ResizeObserver(() => {
      this.draw.resize();
      if (this.draw.camera.free()) return;
      this.redraw();
      this.fit();
    });
    this.observer.observe(this.draw.el);
  }

  stop() {
    this.unkey?.();
    this.unwatch?.();
    this.observer?.disconnect();
    this.draw.camera.stop();
    cancelAnimationFrame(this.waiting);
    if (this.foreign) this.model.off("change:view", this.foreign);
  }

  /** @param {Partial<import("./state.js").ViewState>} patch @param {boolean} [shape] does the drawing change? */
  change(patch, shape = false) {
    this.state.set(patch);
    if (!shape) return this.panesOnly();
    if (this.waiting) return undefined;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.redraw();
      if (!this.draw.camera.free()) this.fit();
    });
    return undefined;
  }

  redraw() {
    const view = this.state.get();
    this.picture = drawn(this.graph, view, (marks) => this.legible(marks));
    this.lay = this.place();
    const size = `${count(this.picture.nodes, "node")} and ${count(this.picture.edges, "edge")}`;
    const label = `Circuit of ${size} behind ${answerText(this.doc)}. Tab goes from node to node.`;
    const { doc, picture, lay, names } = this;
    this.draw.draw({ doc, picture, lay, names, expanded: new Set(view.expanded) }, label);
    this.tools.show(this.picture, { nodes: this.doc.nodes.length, edges: this.doc.edges.length });
    this.mark();
    this.panesOnly();
  }

  /** What the host marks, as two circuits side by side are: `marks` has nodes and edges by class. */
  mark() {
    for (const [name, { nodes, edges }] of Object.entries(this.model.get("marks") ?? {})) {
      const own = new Set(edges);
      this.draw.tag(name, new Set([...this.ownersOf(nodes), ...this.picture.links.filter((link) => link.edges.some((edge) => own.has(edge))).map((link) => link.id)]));
    }
  }

  panesOnly() {
    const { edge } = this.state.get();
    const links = edge === null ? [] : this.picture.links.filter((link) => link.edges.includes(edge));
    drawBeside(this);
    this.draw.tag("pinned", new Set([...this.pinned(), ...links].map((one) => one.id)));
    this.hover(null, null);
  }

  pinned() {
    const ids = new Set(this.state.get().pinned);
    return this.picture.marks.filter((mark) => ids.has(mark.id));
  }

  /** @param {number[]} nodes */
  ownersOf(nodes) {
    const wanted = new Set(nodes);
    return this.picture.marks
      .filter((mark) => mark.members.some((member) => wanted.has(member)))
      .map((mark) => mark.id);
  }

  /** @param {string | null} id @param {string | null} link @returns {void} */
  hover(id, link) {
    const view = this.state.get();
    const one = this.picture.links.find((own) =>
      link === null ? view.edge !== null && id === null && own.edges.includes(view.edge) : own.id === link,
    );
    const ids = id !== null ? [id] : link === null && view.edge === null ? this.pinned().map((mark) => mark.id) : [];
    if (id === null && !one && !ids.length && this.word) return this.lightWord(this.word);
    this.draw.lightTokens(new Set());
    if (one && id === null) this.draw.light({ marks: new Set([one.from, one.to]), links: new Set([one.id]) });
    else this.draw.light(ids.length ? paths(this.picture, ids) : null);
  }

  /** @param {number | null} edge */
  lightEdge(edge) {
    this.hover(null, edge === null ? null : (this.picture.links.find((link) => link.edges.includes(edge))?.id ?? null));
  }

  /** @param {number[] | null} nodes a path of the story: its marks, and the links between them */
  lightNodes(nodes) {
    if (!nodes) return this.hover(null, null);
    const marks = new Set([
      ...this.ownersOf(nodes),
      ...this.picture.marks.filter((mark) => mark.kind === "target").map((mark) => mark.id),
    ]);
    const links = this.picture.links.filter((link) => marks.has(link.from) && marks.has(link.to));
    return this.draw.light({ marks, links: new Set(links.map((link) => link.id)) });
  }

  /** @param {import("./panes/words.js").StoryWord | null} word its token, and what passes its embedding @returns {void} */
  lightWord(word) {
    if (!word) return this.hover(null, null);
    const ids = this.ownersOf(word.nodes);
    this.draw.light(ids.length ? paths(this.picture, ids) : null);
    return this.draw.lightTokens(new Set(word.tokens));
  }

  /** @param {import("./panes/words.js").StoryWord} word it stays lit, until it is clicked again */
  keepWord(word) {
    this.word = this.word?.tokens[0] === word.tokens[0] ? null : word;
    keepingFocus(() => drawBeside(this));
    this.lightWord(this.word);
  }

  /** @param {string | null} id @param {boolean} more */
  pin(id, more) {
    const { pinned } = this.state.get();
    if (id === null) this.change({ pinned: [], edge: null });
    else if (more)
      this.change({ edge: null, pinned: pinned.includes(id) ? pinned.filter((own) => own !== id) : [...pinned, id] });
    else this.change({ edge: null, pinned: pinned.length === 1 && pinned[0] === id ? [] : [id] });
  }

  /** @param {number} gap folded tokens are unfolded, or folded again; where they begin stays where it was */
  open(gap) {
    const { opened } = this.state.get();
    const at = () => (this.lay.columns.find((column) => column.pos === gap)?.x ?? 0) * this.draw.camera.place().k;
    const before = at();
    this.state.set({ opened: opened.includes(gap) ? opened.filter((own) => own !== gap) : [...opened, gap] });
    this.redraw();
    this.draw.camera.pan(before - at(), 0);
  }

  /** @param {string} id */
  pickLink(id) {
    const link = this.picture.links.find((own) => own.id === id);
    if (link) this.pick(link.edges[0]);
  }

  /** @param {number} edge */
  pick(edge) {
    this.change({ edge: this.state.get().edge === edge ? null : edge, pinned: [] });
  }

  /** @param {number} edge */
  expand(edge) {
    const { expanded } = this.state.get();
    this.change(
      { expanded: expanded.includes(edge) ? expanded.filter((own) => own !== edge) : [...expanded, edge] },
      true,
    );
  }

  clear() {
    const { pinned, edge } = this.state.get();
    const full = Object.values(this.panes).find((one) => one.el.classList.contains("full"));
    if (full) full.enlarge(false);
    else if (pinned.length || edge !== null) this.change({ pinned: [], edge: null });
    else if (this.word) this.keepWord(this.word);
    else this.finder.search("");
  }

  fit() {
    this.draw.camera.fit({ x: 0, y: -this.lay.height, width: this.lay.width, height: this.lay.height });
  }

  /** @param {import("../../lib/theme.js").Theme} theme */
  theme(theme) {
    setTheme(this.root, theme);
    this.state.set({ theme });
  }
}
