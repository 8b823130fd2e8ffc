// Talks to the server: the token, requests, and the stream of views.

const KEY = "lockkeeper-token";
const PATIENCE = 15_000;
/** The longest that a request may take. An eviction waits for the store, and so longer than one question. */
const LONGEST = 30_000;
/** A page that was hidden for so long lets its connection go. */
const HIDDEN = 10_000;
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
    signal: AbortSignal.timeout(LONGEST),
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
  return (await inTime(ask(path))).json();
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return (await inTime(ask(path, { method: "POST", headers, body: JSON.stringify(body) }))).json();
}

async function inTime(asked) {
  try {
    return await asked;
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
    throw new Error("The server has not answered in time. Whether it did what was asked is not known: look again.");
  }
}

/** Whether asking again cannot help: the token is not good, or the server cannot answer such a question. */
function isFinal(error) {
  if (!(error instanceof Refusal)) return false;
  // Without a code it is no word of this server: something between answers while it is away.
  return [401, 403].includes(error.status) || (error.status === 400 && Boolean(error.code));
}

/** Resolves when the page can be seen. A page that nobody sees needs no connection, of which a browser has few. */
function seen(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

/**
 * Reads views until the returned function is called: `shown(view)` for each, `lost(error)` when the connection breaks. It
 * connects again by itself, with growing pauses, unless the token is wrong. While nobody sees the page, it rests.
 */
export function follow(query, shown, lost) {
  const end = new AbortController();
  (async () => {
    let pause = 500;
    while (!end.signal.aborted) {
      await seen(end.signal);
      if (end.signal.aborted) return;
      const hidden = new AbortController();
      let leaving = 0;
      const hide = () => {
        clearTimeout(leaving);
        if (document.hidden) leaving = setTimeout(() => hidden.abort(), HIDDEN);
      };
      document.addEventListener("visibilitychange", hide);
      try {
        await read(query, AbortSignal.any([end.signal, hidden.signal]), (view) => {
          pause = 500;
          shown(view);
        });
        lost(null);
      } catch (error) {
        if (end.signal.aborted) return;
        if (hidden.signal.aborted) continue;
        lost(error);
        if (isFinal(error)) return;
      } finally {
        clearTimeout(leaving);
        document.removeEventListener("visibilitychange", hide);
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
