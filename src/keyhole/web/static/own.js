// Which parameters of the address are the further views' own? Texts by name, all of them optional.

/** @typedef {Record<string, string>} Own */

/** Two circuits; a store; a contrast; a verification; edits. */
const NAMES = [
  ...[
    "a.method",
    "a.through",
    "b.prompt",
    "b.model",
    "b.method",
    "b.through",
    "b.target",
    "b.against",
    "b.store",
    "b.index",
    "compared",
    "terms",
    "show",
    "term",
  ],
  ...["store", "index", "part", "where", "page", "grain", "role", "k", "colour", "sinks", "signal"],
  ...["contrast", "feature", "samples", "tests", "studied", "seen", "verify"],
  ...["baseline", "like", "counterfactual", "signs", "effects"], // what is measured of a circuit, and against what
  ...["edits", "length", "temperature", "seed"], // what is edited, and how answers are written
  "why", // "open": beside a circuit, why its head attends
];
const MOST = 20000; // letters of one of them

/** @param {URLSearchParams} given @returns {Own} */
export function ownFrom(given) {
  const found = NAMES.map((name) => [name, given.get(name) ?? ""]).filter(([, text]) => text && text.length <= MOST);
  return Object.fromEntries(found);
}

/** @param {URLSearchParams} kept @param {Own} own puts into the address what is not empty */
export function ownInto(kept, own) {
  for (const name of NAMES) if (own[name]) kept.set(name, own[name]);
}

/** @param {string | undefined} text values by label, as a filter has them @returns {Record<string, string>} */
export function filterOf(text) {
  try {
    const found = JSON.parse(text || "{}");
    return Object.fromEntries(Object.entries(found).filter(([, value]) => typeof value === "string"));
  } catch {
    return {};
  }
}
