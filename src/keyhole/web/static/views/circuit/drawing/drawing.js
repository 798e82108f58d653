// How does a circuit look? Shapes joined by curves. The drawing is built once for what is shown; moving it sets one
// transform.
import { CONSTANTS, channelParts, isAttached, isSufficient, nodeLabel } from "../../../lib/circuit.js";
import { camera } from "../../../lib/camera.js";
import { fill, s } from "../../../lib/dom.js";
import { share } from "../../../lib/format.js";
import { short } from "../../../lib/tokens.js";
import { axes, BOTTOM, LEFT } from "./axes.js";
import { curve } from "./curve.js";
import { outline } from "./shapes.js";

/** @typedef {import("../graph.js").Drawn} Drawn */
/** @typedef {import("./layout.js").Layout} Layout */
/** @typedef {import("../../../lib/circuit.js").CircuitDocument} CircuitDocument */
/** @typedef {{ marks: Set<string>, links: Set<string> }} Lit */
/** @typedef {import("../panes/table.js").Names} Names */
/** @typedef {{ doc: CircuitDocument, picture: Drawn, lay: Layout, expanded: Set<number>, names: Names }} Scene */

/**
 * @param {{ hover: (id: string | null, link: string | null) => void, pin: (id: string | null, more: boolean) =>
 *   void, pick: (link: string) => void, open: (gap: number) => void, wheel: (event: WheelEvent) => boolean }} on
 */
export function drawing(on) {
  const [grid, links, marks] = [s("g", { class: "grid" }), s("g", { class: "links" }), s("g", { class: "marks" })];
  const world = s("g", { class: "world" }, grid, links, marks);
  const axis = axes(on.open);
  const el = s("svg", { class: "circuit", role: "group", tabindex: 0 }, world, axis.el);
  const view = camera(el, {
    moved: (place, zoomed) => {
      world.setAttribute("transform", `translate(${place.x} ${place.y}) scale(${place.k})`);
      axis.move(place, zoomed);
    },
    margins: { left: LEFT + 10, right: 14, top: 16, bottom: BOTTOM + 10 },
    wheel: on.wheel,
  });
  listen(el, on);
  /** @type {Map<string, Element[]>} */
  let parts = new Map();

  /** @param {Scene} scene @param {string} label for those who do not see it */
  function draw(scene, label) {
    el.setAttribute("aria-label", label);
    fill(grid, gridOf(scene.lay));
    const lines = scene.picture.links.flatMap((link) => linkOf(scene, link));
    fill(
      links,
      lines.map((line) => line.el),
    );
    const order = [...scene.picture.marks].sort((a, b) =>
      a.kind === "target" ? -1 : b.kind === "target" ? 1 : b.strength - a.strength,
    );
    const shapes = order.map((mark) => ({ id: mark.id, el: markOf(scene, mark) }));
    fill(
      marks,
      shapes.map((shape) => shape.el),
    );
    parts = new Map();
    for (const part of [...lines, ...shapes]) parts.set(part.id, [...(parts.get(part.id) ?? []), part.el]);
    axis.label(scene.lay, scene.doc.tokens, view.place());
  }

  /** @param {Lit | null} lit what is on the lit paths; null: everything is as usual */
  function light(lit) {
    el.classList.toggle("some", lit !== null);
    for (const [id, own] of parts) {
      const on = lit !== null && (lit.marks.has(id) || lit.links.has(id));
      for (const part of own) part.classList.toggle("lit", on);
    }
  }

  /** @param {string} name a class @param {Set<string>} ids whose parts have it, and no others */
  function tag(name, ids) {
    for (const [id, own] of parts) for (const part of own) part.classList.toggle(name, ids.has(id));
  }

  const resize = () => axis.resize(el.clientWidth, el.clientHeight, view.place());
  /** @param {string} id */
  const focus = (id) => /** @type {SVGElement | undefined} */ (parts.get(id)?.[0])?.focus({ preventScroll: true });
  /** @returns {{ width: number, height: number }} what the camera fits a drawing into */
  const room = () => ({
    width: Math.max(200, el.clientWidth - LEFT - 24),
    height: Math.max(200, el.clientHeight - BOTTOM - 26),
  });
  return { el, draw, light, tag, focus, resize, room, lightTokens: axis.light, camera: view };
}

/**
 * @param {SVGSVGElement} el
 * @param {{ hover: (id: string | null, link: string | null) => void, pin: (id: string | null, more: boolean) =>
 *   void, pick: (link: string) => void }} on
 */
function listen(el, on) {
  const under = (/** @type {Event} */ event, /** @type {string} */ name) =>
    /** @type {Element} */ (event.target).closest?.(`[data-${name}]`)?.getAttribute(`data-${name}`) ?? null;
  for (const enter of ["pointerover", "focusin"])
    el.addEventListener(enter, (event) => on.hover(under(event, "mark"), under(event, "link")));
  for (const leave of ["pointerleave", "focusout"]) el.addEventListener(leave, () => on.hover(null, null));
  el.addEventListener("click", (event) => {
    const [id, link] = [under(event, "mark"), under(event, "link")];
    if (link !== null) on.pick(link);
    else if (under(event, "gap") === null) on.pin(id, event.shiftKey || event.ctrlKey || event.metaKey);
  });
}

/** @param {Layout} lay */
function gridOf(lay) {
  const top = -lay.height - 14;
  const across = lay.rows.map((row) => s("path", { d: `M-8 ${row.y}H${lay.width + 8}` }));
  const up = lay.columns.map((column) =>
    column.gap !== null && !column.open
      ? s("rect", { class: "folded", x: column.x + 3, y: top, width: column.w - 6, height: lay.height + 28 })
      : s("path", { d: `M${column.x + column.w / 2} ${top}V14` }),
  );
  return [...up, ...across];
}

/** @param {Scene} scene @param {import("../graph.js").Mark} mark */
function markOf(scene, mark) {
  const box = scene.lay.boxes.get(mark.id) ?? { x: 0, y: 0, w: 20, h: 18 };
  const label = spoken(scene.doc, mark);
  const attrs = {
    class: `mark ${mark.kind}`,
    transform: `translate(${box.x} ${box.y})`,
    tabindex: 0,
    role: "button",
    "aria-label": label,
    "data-mark": mark.id,
  };
  const bare = (mark.kind === "embedding" || CONSTANTS.has(mark.kind)) && !mark.named;
  const text = bare ? null : s("text", { class: "name", y: 4.4 }, short(mark.label, 24));
  return s("g", attrs, s("title", null, label), outline(mark.kind, box.w, box.h), text);
}

/** @param {CircuitDocument} doc @param {import("../graph.js").Mark} mark what it is, in words */
export function spoken(doc, mark) {
  const first = nodeLabel(doc.nodes[mark.members[0]], doc.tokens);
  const several = mark.members.length > 1 || mark.kind === "group";
  const who = several
    ? `${mark.label}: ${mark.members.length === 1 ? first : `${mark.members.length} nodes`}`
    : mark.named
      ? `${mark.label}: ${first}`
      : first;
  const { attention, influence } = doc.nodes[mark.members[0]];
  const facts = [who];
  if (!several && attention !== null && attention !== undefined) facts.push(`attention ${attention.toFixed(3)}`);
  if (!several && influence !== undefined && mark.kind !== "target") facts.push(`${share(influence)} of the answer`);
  return facts.join(", ");
}

/** @param {number} strength */
export function thickness(strength) {
  return Math.min(9, 0.7 + 7.5 * Math.sqrt(strength) * Math.min(1, 0.35 + strength));
}

/**
 * A link as a curve, or one for each of its channels where it is expanded; and a wide one that the pointer finds.
 * @param {Scene} scene @param {import("../graph.js").Link} link @returns {{ id: string, el: SVGElement }[]}
 */
function linkOf(scene, link) {
  const [from, to] = [scene.lay.boxes.get(link.from), scene.lay.boxes.get(link.to)];
  if (!from || !to) return [];
  const { d, x, y } = curve(from, to, link.side);
  const width = thickness(link.strength);
  const attached = link.edges.every((edge) => isAttached(scene.doc, edge));
  const against = !attached && isSufficient(scene.doc) && link.edges.reduce((sum, edge) => sum + scene.doc.edges[edge].weight, 0) < 0;
  const look = `edge ${link.side}${attached ? " attached" : ""}${against ? " against" : ""}`;
  const hit = {
    id: "",
    el: s("path", { class: "hit", d, "data-link": link.id }, s("title", null, linkLabel(scene, link))),
  };
  const parts = link.edges
    .filter((edge) => scene.expanded.has(edge))
    .flatMap((edge) => channelParts(scene.doc, scene.doc.edges[edge]));
  if (!parts.length)
    return [
      { id: link.id, el: s("path", { class: look, d, "stroke-width": width.toFixed(2) }) },
      ...(against ? [{ id: link.id, el: s("text", { class: "channel minus", x, y: y + 4 }, "−") }] : []),
      hit,
    ];
  const total = parts.reduce((sum, part) => sum + Math.abs(part.ig), 0) || 1;
  return [
    hit,
    ...parts.flatMap((part, index) => {
      const bend = (index - (parts.length - 1) / 2) * 30;
      const strand = curve(from, to, link.side, bend);
      const own = thickness((link.strength * Math.abs(part.ig)) / total);
      return [
        {
          id: link.id,
          el: s("path", { class: `edge strand ${link.side}`, d: strand.d, "stroke-width": own.toFixed(2) }),
        },
        { id: link.id, el: s("text", { class: "channel", x: strand.x, y: strand.y + 3 }, part.channel) },
      ];
    }),
  ];
}

/**
 * @param {Scene} scene
 * @param {import("../graph.js").Link} link who writes what for whom, and its name if there is one
 */
function linkLabel({ doc, names }, link) {
  const [first] = link.edges;
  const edge = doc.edges[first];
  const ends = `${nodeLabel(doc.nodes[edge.from], doc.tokens)} → ${nodeLabel(doc.nodes[edge.to], doc.tokens)}`;
  const more = link.edges.length > 1 ? ` and ${link.edges.length - 1} more` : "";
  const name = names[first] ? `: ${names[first].text}` : "";
  return `${edge.side}, ${ends}${more}, ${share(link.strength)}${name}`;
}
