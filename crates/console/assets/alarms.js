// Alarms: what is wrong now, what was wrong before, and the limits.

import { h, list, say } from "./dom.js";
import { clock, count, length, many, plain, ticking } from "./text.js";

const TITLES = {
  store_out_of_reach: "Store out of reach",
  lease_not_renewed: "Lease not renewed in time",
  held_too_long: "Held too long",
  waited_too_long: "Waited too long",
  too_many_waiters: "Too many waiters",
  doctor: "Doctor's warning",
};

export function alarmsPage(query, tools) {
  const calm = h("p", { class: "calm", hidden: true }, "No alarm. Nothing is held or waited for beyond its limit, and the store answers.");
  const active = h("ul", { class: "alarms" });
  const more = h("p", { class: "fine", hidden: true });
  const past = h("ul", { class: "alarms past" });
  const pastTitle = h("h2", {}, "Before");
  const limits = h("tbody", {});
  const file = h("p", { class: "fine" });
  const wrong = h("p", { class: "wrong", hidden: true });
  const hook = h("p", { class: "fine" });
  let now = 0;

  function show(page, head) {
    now = head.now_ms;
    calm.hidden = page.active.length > 0;
    list(active, page.active, (alarm) => alarm.id, ({ saw, ...rest }) => rest, (alarm) => line(alarm, tools));
    more.hidden = page.left_off === 0;
    say(more, `${many(page.left_off, "more alarm")} not told: at most 1,000 of a kind are.`);
    pastTitle.hidden = page.ended.length === 0;
    list(past, page.ended, (alarm) => alarm.id, (alarm) => alarm, (alarm) => line(alarm, tools));
    list(limits, page.limits.map((row, place) => ({ ...row, place })), (row) => row.place, (row) => row, (row) => h("tr", {},
      h("th", { scope: "row" }, row.place < page.limits.length - 2 ? h("code", {}, plain(row.names)) : row.names),
      [row.held, row.waited, row.waiters, row.renewal].map((value) => h("td", {}, value ?? "·"))));
    say(file, page.file
      ? `From ${plain(page.file)}, read again when it changes. For each limit, the first row that matches a name and has a value decides.`
      : "These hold without a file. Start the server with --alarms FILE to set your own.");
    wrong.hidden = !page.file_error;
    say(wrong, `The file cannot be used, so what held before holds on: ${plain(page.file_error ?? "")}`);
    const { webhook } = page;
    hook.hidden = page.restricted;
    say(hook, webhook
      ? `Alarms go to ${plain(webhook.receiver)}: ${count(webhook.sent)} sent, ${count(webhook.waiting)} waiting, ${count(webhook.dropped)} given up.${webhook.last_error ? ` The last try failed: ${plain(webhook.last_error)}.` : ""}`
      : "No webhook is set. Alarms are shown here, logged and counted in the metrics.");
    tick();
  }

  function tick() {
    const at = now + tools.passed();
    for (const item of active.children) item.tick?.(at);
  }

  const root = h("section", { class: "page" },
    h("h1", {}, "Alarms"), calm, active, more, pastTitle, past,
    h("h2", {}, "Limits"), wrong, file,
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Limits" },
      h("table", { class: "limits" },
        h("thead", {}, h("tr", {}, ["Names", "Held", "Waited", "Waiters", "Late renewals"].map((title) => h("th", { scope: "col" }, title)))), limits)),
    hook);
  return { root, show, tick };
}

function line(alarm, tools) {
  const saw = h("span", { class: "saw" }, plain(alarm.saw));
  const when = h("span", { class: "when" });
  const ended = alarm.ended_ms !== null;
  const severe = ["store_out_of_reach", "lease_not_renewed"].includes(alarm.kind);
  if (ended) say(when, `${clock(alarm.since_ms)} – ${clock(alarm.ended_ms)}, for ${length(Math.max(1000, alarm.ended_ms - alarm.since_ms))}`);
  const item = h("li", { class: ended ? null : severe ? "severe" : "warned" },
    h("div", { class: "title" }, h("b", {}, TITLES[alarm.kind] ?? alarm.kind),
      alarm.name !== null && h("a", { href: tools.link("lock", { name: alarm.name }), "data-focus": "name" }, plain(alarm.name))),
    saw, when);
  item.update = (fresh) => say(saw, plain(fresh.saw));
  if (!ended) item.tick = (at) => say(when, `since ${clock(alarm.since_ms)}, for ${ticking(Math.max(0, at - alarm.since_ms))}`);
  return item;
}
