// What did the user do? Plain data under the model's key `view`: it is kept with the file, and may stand in an address.

/** @typedef {{ id: string, name: string, members: number[] }} Group */
/**
 * @typedef {object} ViewState
 * @property {number | null} below edges weaker than this are hidden; null: as many are drawn as can be read
 * @property {string[]} pinned marks: "n12" is a node, "g1" a group
 * @property {number | null} edge one edge, looked at
 * @property {boolean | null} sinks folded? null: if there are many nodes
 * @property {boolean | null} constants folded?
 * @property {boolean | null} signals hidden, that say why heads look there?
 * @property {Group[]} groups
 * @property {Record<string, string>} labels names that the user gave to marks
 * @property {number[]} expanded edges drawn as their channels
 * @property {number[]} opened first tokens of folded gaps that are open
 * @property {{ key: string, down: boolean } | null} sort
 * @property {import("../../lib/theme.js").Theme} theme
 */

/** @type {ViewState} */
const START = {
  below: null,
  pinned: [],
  edge: null,
  sinks: null,
  constants: null,
  signals: null,
  groups: [],
  labels: {},
  expanded: [],
  opened: [],
  sort: null,
  theme: "auto",
};

/** @type {Record<string, string>} */
const KINDS = {
  below: "number",
  edge: "number",
  sinks: "boolean",
  constants: "boolean",
  signals: "boolean",
  labels: "object",
  sort: "object",
  theme: "string",
  ...Object.fromEntries(["pinned", "groups", "expanded", "opened"].map((key) => [key, "list"])),
};

/**
 * The state, and how it is changed: every change goes into the model at once.
 * @param {import("../../lib/model.js").Model} model @param {import("../../lib/circuit.js").CircuitDocument} doc
 */
export function viewState(model, doc) {
  /** @type {ViewState} */
  let state = fitting(model.get("view"), doc);
  /** @type {any} */
  let mine = model.get("view");
  return {
    get: () => state,
    /** @param {Partial<ViewState>} patch */
    set: (patch) => {
      state = { ...state, ...patch };
      mine = changed(state);
      model.set("view", mine);
      model.save_changes();
    },
    /** Did somebody else change it? Then theirs is taken. */
    foreign: () => {
      const theirs = model.get("view");
      if (theirs === mine || JSON.stringify(theirs) === JSON.stringify(mine)) return false;
      state = fitting(theirs, doc);
      mine = theirs;
      return true;
    },
  };
}

/** @typedef {ReturnType<typeof viewState>} State */

/** @param {ViewState} state what differs from the beginning: short addresses, small files */
function changed(state) {
  const own = Object.entries(state).filter(
    ([key, value]) => JSON.stringify(value) !== JSON.stringify(START[/** @type {keyof ViewState} */ (key)]),
  );
  return Object.fromEntries(own);
}

/**
 * A view that may have been made for another circuit: what is not in this one is forgotten.
 * @param {Partial<ViewState> | null | undefined} told @param {import("../../lib/circuit.js").CircuitDocument} doc
 * @returns {ViewState}
 */
function fitting(told, doc) {
  const view = { ...START, ...sound(told) };
  const isEdge = (/** @type {number} */ edge) => Number.isInteger(edge) && edge >= 0 && edge < doc.edges.length;
  const named = view.groups.filter((group) => Array.isArray(group?.members) && [group.id, group.name].every((text) => typeof text === "string"));
  const groups = named.map((group) => ({ ...group, members: group.members.filter((node) => node in doc.nodes) }));
  const edge = view.edge !== null && isEdge(view.edge) ? view.edge : null;
  return {
    ...view,
    edge,
    expanded: view.expanded.filter(isEdge),
    groups: groups.filter((group) => group.members.length),
  };
}

/**
 * What is of the kind that it should be: an address may come from anywhere, and be cut.
 * @param {any} told @returns {Partial<ViewState>}
 */
function sound(told) {
  const kind = (/** @type {any} */ value) => (Array.isArray(value) ? "list" : value === null ? "none" : typeof value);
  const own = Object.entries(told ?? {}).filter(([key, value]) => KINDS[key] === kind(value));
  return Object.fromEntries(own);
}
