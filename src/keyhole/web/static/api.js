// How does the page ask the server? At once, or as a job that tells how far it is and can be stopped.

export const STOPPED =
  "The server does not answer. If it was stopped, start it again with `keyhole explore` and open what that prints.";

/** What the server refused, in its own sentence. */
export class Refused extends Error {}
/** Nobody waits for this any more. */
export class Cancelled extends Error {}

/** @typedef {{ what?: string, done?: number, total?: number, left?: string, ahead?: number, running?: string | null, tokens?: any[] }} Progress running: what is done before it */

/**
 * @param {string} path @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
async function fetched(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw new Cancelled();
    throw new Refused(STOPPED);
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Refused(body?.error ?? `The server answered with status ${answer.status} and no reason.`);
}

/** What the server has: models, stores, limits. */
export function hello() {
  return fetched("api/hello");
}

/**
 * @param {string} path @param {object} body @param {AbortSignal} [signal]
 */
function post(path, body, signal) {
  return fetched(
    path,
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal },
  );
}

/**
 * Asks and waits for the answer. For what takes a moment.
 * @param {string} kind @param {object} body @param {AbortSignal} [signal]
 */
export function ask(kind, body, signal) {
  return post(`api/${kind}`, body, signal);
}

/**
 * Asks for what takes longer. An abort really stops the work; where it `keeps` what it has, that is the answer.
 * @param {string} kind @param {object} body
 * @param {{ progress?: (event: Progress) => void, signal?: AbortSignal, keeps?: boolean }} [how]
 * @returns {Promise<any>}
 */
export async function job(kind, body, { progress = () => {}, signal, keeps = false } = {}) {
  if (signal?.aborted) throw new Cancelled();
  const { id } = await post("api/jobs", { kind, ...body }); // whoever leaves meanwhile must know which one to stop
  return new Promise((resolve, reject) => {
    const source = new EventSource(`api/jobs/${id}/events`);
    const heard = (/** @type {string} */ name, /** @type {(data: any) => void} */ does) =>
      source.addEventListener(name, (event) => event instanceof MessageEvent && does(JSON.parse(event.data)));
    const end = (/** @type {() => void} */ does) => {
      source.close();
      removeEventListener("pagehide", leave);
      does();
    };
    heard("queued", progress);
    heard("started", () => progress({}));
    heard("progress", progress);
    heard("result", (data) => end(() => resolve(data)));
    heard("error", (data) => end(() => reject(new Refused(data.error))));
    heard("cancelled", () => end(() => reject(new Cancelled())));
    source.onerror = (event) => {
      // An `error` of the job carries data; one of the connection does not, and the browser tries again by itself.
      if (!(event instanceof MessageEvent)) lost(id).catch((error) => end(() => reject(error)));
    };
    const leave = () => end(() => reject(stop(id)));
    addEventListener("pagehide", leave); // nobody will hear of it
    const halt = keeps ? () => void stop(id) : leave; // it ends by itself then, with what it has
    if (signal?.aborted) halt();
    else signal?.addEventListener("abort", halt);
  });
}

/**
 * The connection broke: is there still a server that knows the job?
 * @param {string} id
 */
function lost(id) {
  return fetched(`api/jobs/${id}`);
}

/** @param {string} id */
function stop(id) {
  const gone = { method: "DELETE", keepalive: true }; // also from a page that is being left
  fetched(`api/jobs/${id}`, gone).catch(() => {}); // it may have ended, or the server may be gone
  return new Cancelled();
}
