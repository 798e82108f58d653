// Where does a view find its data where there is no kernel? In a model with anywidget's own methods.

/**
 * @typedef {object} Model
 * @property {(key: string) => any} get
 * @property {(key: string, value: any) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, callback: (...args: any[]) => void) => void} on
 * @property {(event: string, callback?: (...args: any[]) => void) => void} off
 * @property {(content: any) => void} send
 */
/** @typedef {Model & { receive: (content: any) => void }} PlainModel what the host says arrives by `receive` */
/** @typedef {{ render: (into: { model: Model, el: HTMLElement }) => (() => void) | void }} View */

/**
 * A model of plain values. `onSend` hears what a view asks for; `onSave` sees the values when a view keeps something.
 * @param {Record<string, any>} values
 * @param {{ onSend?: (content: any) => void, onSave?: (values: Record<string, any>) => void }} [host]
 * @returns {PlainModel}
 */
export function plain(values, host = {}) {
  const own = { ...values };
  /** @type {Map<string, Set<(...args: any[]) => void>>} */
  const listeners = new Map();
  /** @param {string} event @param {any[]} args */
  const tell = (event, ...args) => [...(listeners.get(event) ?? [])].forEach((callback) => callback(...args));
  return {
    get: (key) => own[key],
    set: (key, value) => {
      if (own[key] === value) return;
      own[key] = value;
      tell(`change:${key}`);
      tell("change");
    },
    save_changes: () => host.onSave?.({ ...own }),
    on: (event, callback) => {
      listeners.set(event, (listeners.get(event) ?? new Set()).add(callback));
    },
    off: (event, callback) => {
      if (callback) listeners.get(event)?.delete(callback);
      else listeners.delete(event);
    },
    send: (content) => host.onSend?.(content),
    receive: (content) => tell("msg:custom", content),
  };
}
