// What stands in for writers that are taken away? As the address keeps it, and as the server is asked.

/** @typedef {{ kind: string, like: string, counterfactual: string }} Baseline kind: words, task, like or counterfactual */
/** @typedef {import("./own.js").Own} Own */

/** @param {Baseline} baseline as parameters of the address @returns {Own} */
export function baselineInto({ kind, like, counterfactual }) {
  return { baseline: kind, like: kind === "like" ? like : "", counterfactual: kind === "counterfactual" ? counterfactual : "" };
}

/** @param {Own} own as a request has it */
export function baselineOf(own) {
  if (own.baseline === "task") return { like: "task" };
  if (own.baseline === "like") return { like: (own.like ?? "").split("\n").map((line) => line.trim()).filter(Boolean) };
  return own.baseline === "counterfactual" ? { counterfactual: own.counterfactual ?? "" } : {};
}
