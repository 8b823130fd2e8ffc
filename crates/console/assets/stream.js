// Talks to the server: the token, requests, and the stream of views.

const KEY = "lockkeeper-token";
const PATIENCE = 15_000;
let token = null;

/** Takes the token from the address, where it reached no log, and removes it from there. */
export function takeToken() {
  const fragment = location.hash.slice(1);
  const bare = /^[0-9A-Za-z._~+-]{16,}$/.test(fragment) ? fragment : null;
  const given = fragment.startsWith("token=") ? new URLSearchParams(fragment).get("token") : bare;
  if (given) {
    setToken(given);
    history.replaceState(null, "", location.pathname + "#/locks");
  }
  token ??= sessionStorage.getItem(KEY);
  return token;
}

export function setToken(value) {
  token = value;
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** What the server says against a request. */
export class Refusal extends Error {
  constructor(status, code, message, whatToDo) {
    super(message);
    Object.assign(this, { status, code, whatToDo });
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, {
    ...options,
    cache: "no-store",
    credentials: "omit",
    headers: { Authorization: `Bearer ${token}`, ...options.headers },
  });
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Refusal(response.status, told.code, told.message ?? `The server answered ${response.status}.`, told.what_to_do);
  }
  return response;
}

export async function get(path) {
  return (await ask(path)).json();
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

/**
 * Reads views until the returned function is called: `shown(view)` for each, `lost(error)` when the connection breaks. It
 * connects again by itself, with growing pauses, unless the token is wrong.
 */
export function follow(query, shown, lost) {
  const end = new AbortController();
  (async () => {
    let pause = 500;
    while (!end.signal.aborted) {
      try {
        await read(query, end.signal, (view) => {
          pause = 500;
          shown(view);
        });
        lost(null);
      } catch (error) {
        if (end.signal.aborted) return;
        lost(error);
        if (error instanceof Refusal && error.status < 500 && error.status !== 429) return;
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, 8000);
    }
  })();
  return () => end.abort();
}

async function read(query, signal, shown) {
  // A connection that says nothing for long is broken, even if nobody was told.
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), PATIENCE);
  const response = await ask(`/v1/console?${new URLSearchParams(query)}`, { signal: AbortSignal.any([signal, silence.signal]) });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), PATIENCE);
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      // Only the last one matters: each is whole.
      const data = events.flatMap((event) => event.split("\n").filter((line) => line.startsWith("data: "))).pop();
      if (data) shown(JSON.parse(data.slice(6)));
    }
  } finally {
    clearTimeout(timer);
  }
}
