// The frame: signing in, pages by address, and what all pages show.

import { h, say, unseen } from "./dom.js";
import { follow, get, Refusal, setToken, takeToken } from "./stream.js";
import { count, plain, ticking } from "./text.js";
import { alarmsPage } from "./alarms.js";
import { hotPage } from "./hot.js";
import { lockPage } from "./lock.js";
import { locksPage } from "./locks.js";
import { storePage } from "./store.js";

const PAGES = {
  locks: { title: "Locks", make: locksPage },
  hot: { title: "Hot", make: hotPage },
  alarms: { title: "Alarms", make: alarmsPage },
  store: { title: "Store", make: storePage },
  lock: { title: "Lock", make: lockPage, under: "locks" },
};

const part = (id) => document.getElementById(id);
let me = null;
let stop = () => {};
let page = null;
let head = null;
/** When the last view arrived, by a clock that nobody sets. */
let arrived = 0;
let broken = null;
const badge = h("span", { class: "badge", hidden: true });

/** The page and what it asks for, from the address: `#/locks?prefix=a`. */
function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: PAGES[path] ? path : "locks", query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function link(name, query = {}) {
  const text = new URLSearchParams(query).toString();
  return `#/${name}${text ? `?${text}` : ""}`;
}

/** Goes to another view of this page without a new entry in the history. */
function replace(name, query) {
  history.replaceState(null, "", link(name, query));
  open();
}

function nav() {
  const links = Object.entries(PAGES).filter(([, known]) => !known.under).map(([name, known]) =>
    h("a", { href: link(name), "data-page": name }, known.title, name === "alarms" && badge));
  part("nav").replaceChildren(...links);
}

function open() {
  const { name, query } = address();
  stop();
  const known = PAGES[name];
  for (const item of part("nav").children) {
    const here = item.dataset.page === (known.under ?? name);
    if (here) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  const main = part("main");
  if (page?.name !== name || (name === "lock" && page.query.name !== query.name)) {
    page?.close?.();
    const mine = {};
    // What was asked for by a page that is no longer there is dropped.
    const go = (change) => { if (page === mine) replace(name, { ...page.query, ...change }); };
    page = Object.assign(mine, { name, query, ...known.make(query, { me, link, go, now: sinceSample, passed: sinceArrival }) });
    main.replaceChildren(page.root);
    window.scrollTo(0, 0);
    // Readers begin with the new page; the first one needs no jump.
    if (head) main.focus({ preventScroll: true });
  }
  page.query = query;
  page.open?.(query);
  document.title = `${name === "lock" ? plain(query.name ?? "") : known.title} · Lockkeeper`;
  stop = follow({ ...query, view: name }, show, lost);
}

function show(view) {
  head = view.head;
  arrived = performance.now();
  broken = null;
  frame();
  if (view.view === page.name) page.show(view.body, view.head);
  tick();
}

function lost(error) {
  if (error instanceof Refusal && error.status === 401) return signIn(error.message);
  broken = error ?? new Error("The connection to the server ended.");
  frame();
}

/** How old what is shown is, and 0 while the store cannot be asked: then nobody knows how lengths go on. */
function sinceSample() {
  if (!head?.sample || head.outage || broken) return head?.outage ? 0 : head?.sample?.age_ms ?? 0;
  return head.sample.age_ms + performance.now() - arrived;
}

/** How long ago the last view arrived. */
function sinceArrival() {
  return broken ? 0 : performance.now() - arrived;
}

function frame() {
  say(part("store"), plain(head?.store ?? ""));
  const alarms = head?.alarms ?? 0;
  badge.hidden = alarms === 0;
  badge.replaceChildren(count(alarms), unseen(" now"));
  const banner = part("banner");
  let text = "";
  if (broken instanceof Refusal) text = [broken.message, broken.whatToDo].filter(Boolean).join(" — ");
  else if (broken) text = "The server does not answer. Trying again. What you see is from before.";
  else if (head?.outage) {
    text = `The store does not answer: ${plain(head.outage.message)}. Trying again. What you see is from before.`;
  }
  banner.hidden = text === "";
  say(banner, text);
  document.body.classList.toggle("stale", text !== "");
}

/** What goes on between two views: ages, and lengths that grow. */
function tick() {
  const age = part("age");
  if (!head?.sample) {
    say(age, head ? "waiting for the first sample" : "");
    say(part("told"), age.textContent);
  } else {
    const old = head.sample.age_ms + performance.now() - arrived;
    const late = old > Math.max(5000, head.sample.every_ms * 3);
    age.classList.toggle("late", late);
    say(age, old < 2000 ? "live" : `seen ${ticking(old)} ago`);
    // Readers are told of changes, not of each second.
    say(part("told"), late ? "What you see is old" : "What you see is up to date");
  }
  page?.tick?.();
}

function signIn(message) {
  stop();
  setToken(null);
  me = null;
  page = null;
  part("top").hidden = true;
  part("banner").hidden = true;
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true, "aria-describedby": "how" });
  const form = h("form", { class: "sign-in", on: { submit: (event) => { event.preventDefault(); setToken(field.value.trim()); start(); } } },
    h("img", { src: "/console/icon.svg", alt: "", width: 40, height: 40 }),
    h("h1", {}, "Lockkeeper"),
    message && h("p", { class: "wrong", role: "alert" }, message),
    h("label", { for: "token" }, "Token"),
    field,
    h("p", { id: "how" }, "The server printed a link with a token when it started, or your operator gave you one. It stays in this tab only."),
    h("button", { class: "main", type: "submit" }, "Open the console"));
  part("main").replaceChildren(form);
  document.title = "Sign in · Lockkeeper";
  field.focus();
}

async function start() {
  if (!takeToken()) return signIn("");
  try {
    me = await get("/v1/whoami");
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) return signIn(error.message);
    broken = error;
    frame();
    setTimeout(start, 2000);
    return;
  }
  part("top").hidden = false;
  nav();
  open();
}

window.addEventListener("hashchange", () => {
  if (!me || location.hash.startsWith("#token=")) start();
  else open();
});
part("skip").addEventListener("click", (event) => { event.preventDefault(); part("main").focus(); });
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const filter = document.querySelector("[data-filter]");
  if (filter) { event.preventDefault(); filter.focus(); }
});
setInterval(tick, 500);
start();
