// What is locked now: a table that lives.

import { h, list, say, unseen } from "./dom.js";
import { about, count, kind, length, many, plain, ticking } from "./text.js";

const COLUMNS = [
  ["name", "Name"],
  [null, "Kind"],
  [null, "Held by"],
  ["held", "Held for"],
  [null, "Lease left"],
  ["waiters", "Waiting"],
  [null, "Token"],
];

export function locksPage(query, tools) {
  let shown = null;
  /** The address of the last view. Rows that come with another one are new to the reader, and not to the store. */
  let asked = null;
  let typed = null;
  const filter = h("input", {
    id: "filter", type: "search", placeholder: "Names that start with …", "data-filter": true, spellcheck: "false",
    autocomplete: "off", value: query.prefix ?? "", "aria-keyshortcuts": "/",
    on: { input: () => { clearTimeout(typed); typed = setTimeout(() => { typed = null; tools.go({ prefix: filter.value, page: 0 }); }, 200); } },
  });
  const stats = h("dl", { class: "stats" });
  const heads = new Map();
  const body = h("tbody", { role: "rowgroup" });
  const table = h("table", { class: "locks", role: "table" },
    h("caption", { class: "unseen" }, "What is locked now"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, COLUMNS.map(([sort, title]) => {
      const cell = h("th", { scope: "col", role: "columnheader", class: `c-${title.split(" ")[0].toLowerCase()}${title.startsWith("Held f") ? " c-for" : ""}` },
        sort ? h("button", { type: "button", on: { click: () => sortBy(sort) } }, title, h("span", { class: "arrow", "aria-hidden": "true" })) : title);
      if (sort) heads.set(sort, cell);
      return cell;
    }))),
    body);
  const nothing = h("p", { class: "nothing", hidden: true });
  const back = h("button", { type: "button", on: { click: () => turn(-1) } }, "Previous");
  const on = h("button", { type: "button", on: { click: () => turn(1) } }, "Next");
  const where = h("span", {});
  // Told after a step only: on a busy store the numbers change all the time.
  const turned = h("span", { class: "unseen", role: "status" });
  let turning = false;
  const pager = h("nav", { class: "pager", "aria-label": "Parts of the list" }, where, turned, h("span", { class: "buttons" }, back, on));

  const current = () => ({ sort: "waiters", order: "usual", ...Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? "")) });
  function sortBy(sort) {
    const now = current();
    const order = now.sort === sort && now.order === "usual" ? "reverse" : "usual";
    tools.go({ sort, order, page: 0 });
  }
  function turn(by) {
    turning = true;
    tools.go({ page: shown.page + by });
    document.querySelector("table.locks").scrollIntoView({ block: "start" });
  }

  function show(view) {
    shown = view;
    const { totals } = view;
    const facts = [
      ["Held", count(totals.held), ""],
      ["Waiting", count(totals.waiting), totals.waited_for ? `for ${many(totals.waited_for, "lock")}` : ""],
      ["Longest wait", totals.longest_wait_ms === null ? "—" : about(totals.longest_wait_ms), ""],
      ["Oldest hold", totals.oldest_hold_ms === null ? "—" : about(totals.oldest_hold_ms), ""],
    ];
    list(stats, facts.map(([what, value, more]) => ({ what, value, more })), (fact) => fact.what, (fact) => fact, (fact) =>
      h("div", {}, h("dt", {}, fact.what), h("dd", {}, fact.value, fact.more && h("small", {}, ` ${fact.more}`))));
    const { sort, order } = current();
    for (const [name, cell] of heads) {
      const up = (name === "name") === (order === "usual");
      if (name === sort) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    const same = asked === location.hash;
    asked = location.hash;
    list(body, view.rows, (row) => `${row.kind === "latch"} ${row.name}`, looks, (row, old) => makeRow(row, old, tools, same));
    nothing.hidden = view.rows.length > 0;
    table.hidden = view.rows.length === 0;
    say(nothing, filter.value ? `No lock has a name that starts with “${plain(filter.value)}”.` : "Nothing is locked. Locks appear here by themselves.");
    const from = view.page * view.page_size;
    say(where, view.matches ? `${count(from + 1)}–${count(from + view.rows.length)} of ${count(view.matches)}` : "");
    if (turning) {
      turning = false;
      say(turned, where.textContent);
    }
    back.disabled = view.page === 0;
    on.disabled = from + view.page_size >= view.matches;
    pager.hidden = view.matches <= view.page_size;
  }

  function tick() {
    const more = tools.now();
    for (const row of body.children) row.tick(more);
  }

  const root = h("section", { class: "page" },
    h("h1", { class: "unseen" }, "What is locked now"),
    stats,
    h("div", { class: "bar" }, h("label", { for: "filter", class: "unseen" }, "Filter by prefix"), filter, h("kbd", { title: "Press / to filter" }, "/")),
    table, nothing, pager);
  /** Another address of this page: the filter shows what it says, unless somebody types. */
  function open(fresh) {
    if (typed === null && filter.value !== (fresh.prefix ?? "")) filter.value = fresh.prefix ?? "";
  }
  return { root, show, tick, open, close: () => clearTimeout(typed) };
}

/** A row without what changes all the time. */
function looks(row) {
  const holders = row.holders.map(({ held_ms, left_ms, late, ...rest }) => rest);
  return { ...row, holders, longest_wait_ms: null };
}

function cell(name, title, ...children) {
  return h("td", { class: `c-${name}`, role: "cell", "data-title": title }, children);
}

function makeRow(row, old, tools, same) {
  const holder = row.holders[0];
  const held = h("span", {});
  const left = leaseBar();
  const waited = h("small", {});
  const element = h("tr", { role: "row", class: [row.alarm && "alarmed"].filter(Boolean).join(" ") || null },
    cell("name", "Name", h("a", { href: tools.link("lock", { name: row.name }) }, plain(row.name)),
      row.alarm && h("span", { class: "mark", title: "There is an alarm about it" }, "!", unseen(" alarm"))),
    cell("kind", "Kind", kind(row.kind)),
    cell("held", "Held by", holdersOf(row)),
    cell("for", "Held for", held),
    cell("lease", "Lease left", holder && left.root),
    cell(row.kind === "election" ? "waiting candidates" : "waiting", "Waiting", row.waiters > 0 && h("strong", {}, count(row.waiters)), row.waiters > 0 && waited),
    cell("token", "Token", holder ? h("code", { title: holder.token }, `…${holder.token.slice(-6)}`) : ""));
  const moved = same && (!old || old.token !== holder?.token);
  element.token = holder?.token;
  if (moved) element.classList.add("moved");
  let now = row;
  element.update = (fresh) => { now = fresh; element.tick(0); };
  element.tick = (more) => {
    const first = now.holders[0];
    say(held, first ? ticking(first.held_ms + more) : "");
    if (first) left.set(first, more);
    say(waited, now.longest_wait_ms === null ? "" : `up to ${ticking(now.longest_wait_ms + more)}`);
  };
  return element;
}

function holdersOf(row) {
  if (row.kind === "latch") {
    return h("span", { class: "quiet" }, `${count(row.remaining)} of ${count(row.initial)} left to count`);
  }
  const holder = row.holders[0];
  if (!holder) return h("span", { class: "quiet" }, "nobody yet");
  const others = row.holder_count - 1;
  const notes = [
    holder.label && plain(holder.label),
    row.kind === "election" && holder.value && plain(holder.value),
    others > 0 && `and ${count(others)} more`,
  ].filter(Boolean).join(" · ");
  return [
    h("span", { class: "who" }, h("b", {}, plain(holder.program)), h("span", { class: "quiet" }, holder.pid ? ` ${holder.pid}` : "", ` @ ${plain(holder.host)}`)),
    holder.evicted && h("span", { class: "tag bad" }, "being evicted"),
    notes && h("small", {}, notes),
  ];
}

/** What is left of a lease, as a bar and as text. */
export function leaseBar() {
  const fill = h("i", {});
  const text = h("span", {});
  const root = h("span", { class: "lease" }, h("span", { class: "track", "aria-hidden": "true" }, fill), text);
  function set(holder, more) {
    if (holder.left_ms === null) {
      say(text, `up to ${length(holder.lease_ms)}`);
      fill.style.width = "0";
      return;
    }
    // Between two samples, a holder that renews is believed to do so.
    const passed = holder.renewed && !holder.late && !holder.evicted ? Math.min(more, holder.lease_ms / 3) : more;
    const left = Math.max(0, holder.left_ms - passed);
    const share = holder.lease_ms ? Math.min(1, left / holder.lease_ms) : 0;
    fill.style.width = `${(share * 100).toFixed(0)}%`;
    root.classList.toggle("short", holder.late);
    say(text, ticking(left));
  }
  return { root, set };
}
