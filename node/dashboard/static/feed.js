// The node's event stream: snapshot, then changes; resumes where it broke, backs off where it is refused.
//
// fetch instead of EventSource: it sees the status code and the problem document of a refusal, and can send the token.

const api = name => new URL(`api/v1/${name}`, document.baseURI);
const FIRST_WAIT_MS = 1000;
const MAX_WAIT_MS = 5000; // nobody listens: a connection attempt on the same machine costs nothing
const MAX_REFUSED_WAIT_MS = 60000; // the node refuses: asking more often only fills its log

const TOKEN_KEY = 'atoll-token';

/** The token of this tab: from the link that `atoll dashboard` prints, kept until the tab is closed. */
export const token = (() => {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (given) {
    sessionStorage.setItem(TOKEN_KEY, given);
    history.replaceState(null, '', location.pathname + location.search);
  }
  return sessionStorage.getItem(TOKEN_KEY);
})();

const authorisation = () => token ? { Authorization: `Bearer ${token}` } : {};

let offsetMs = 0;
/** The node's clock in milliseconds, as far as the last ping told. */
export const nodeNow = () => Date.now() + offsetMs;
const setClock = at => { offsetMs = Date.parse(at) - Date.now(); };

/** A problem document, or what can be said without one. */
const problemOf = async response => {
  const document = await response.json().catch(() => ({}));
  return { status: response.status, reason: document.reason ?? response.statusText, fix: document.fix ?? '' };
};

/** POST to the API. Resolves to null, or to the problem. */
export const post = async name => {
  const headers = { 'Content-Type': 'application/json', ...authorisation() };
  const response = await fetch(api(name), { method: 'POST', headers, body: '{}' });
  return response.ok ? null : problemOf(response);
};

/** Yields { event, data, id } for each server-sent event of a response. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split('\n').map(line => {
        const at = line.indexOf(':');
        return [line.slice(0, at), line.slice(at + 1).trimStart()];
      }));
      if (fields.event) yield { event: fields.event, id: fields.id, data: JSON.parse(fields.data) };
    }
  }
}

const pause = ms => new Promise(resolve => { setTimeout(resolve, ms); });

/**
 * Follow the node for ever. `on` has: snapshot(data), change(data), alive(), bye(), broken(), refused(problem).
 */
export const follow = async on => {
  let lastId = null, waitMs = FIRST_WAIT_MS;
  for (;;) {
    let isRefused = false;
    try {
      const headers = { ...authorisation(), ...(lastId ? { 'Last-Event-ID': lastId } : {}) };
      const response = await fetch(api('stream'), { headers, cache: 'no-store' });
      if (response.ok) {
        for await (const { event, id, data } of eventsOf(response)) {
          waitMs = FIRST_WAIT_MS;
          lastId = id ?? lastId;
          if (event === 'ping') setClock(data.at);
          else if (event === 'bye') on.bye();
          else if (event === 'snapshot' || event === 'change') on[event](data);
          if (event !== 'bye') on.alive();
        }
      } else {
        isRefused = true;
        on.refused(await problemOf(response));
      }
    } catch { /* nobody listens, or the connection broke: said below, tried again */ }
    if (!isRefused) on.broken();
    await pause(waitMs);
    waitMs = Math.min(2 * waitMs, isRefused ? MAX_REFUSED_WAIT_MS : MAX_WAIT_MS);
  }
};
