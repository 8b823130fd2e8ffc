// One lock: who holds it, its queue, its last hour, and what it means.

import { choice, h, list, say, unseen } from "./dom.js";
import { evictDialog } from "./evict.js";
import { leaseBar } from "./locks.js";
import { count, kind, many, plain, ticking, who } from "./text.js";
import { timeline } from "./timeline.js";

export function lockPage(query, tools) {
  const title = h("h1", { class: "name" }, plain(query.name ?? ""));
  const facts = h("p", { class: "facts" });
  const alarms = h("ul", { class: "alarm-lines" });
  const holders = h("ul", { class: "holders" });
  const nobody = h("p", { class: "quiet", hidden: true });
  const queue = h("ol", { class: "queue" });
  const heldTitle = h("h2", {}, "Held by");
  const queueTitle = h("h2", {});
  const queueEmpty = h("p", { class: "quiet", hidden: true }, "Nobody waits.");
  const ranges = h("div", {});
  const lanes = timeline();
  const meaning = h("ul", { class: "meaning" });
  const kept = h("p", { class: "fine" });
  let minutes = Number(query.minutes ?? 60);

  function range() {
    ranges.replaceChildren(choice("How far back", [[5, "5 min"], [15, "15 min"], [60, "1 hour"]], minutes, (chosen) => {
      minutes = chosen;
      tools.go({ minutes: chosen });
      range();
      ranges.querySelector(`[data-focus="${chosen}"]`).focus();
    }));
  }
  range();

  function show(page) {
    const { lock } = page;
    say(title, plain(page.name));
    const also = page.latch ? ` There is also a latch of this name: ${count(page.latch.remaining)} of ${count(page.latch.initial)} left to count.` : "";
    say(facts, (lock ? summary(lock) : "Free: nobody holds it or waits for it.") + also);
    list(alarms, page.alarms, (alarm) => alarm.id, (alarm) => alarm.kind, (alarm) => {
      const text = h("span", {});
      const item = h("li", {}, h("span", { class: "mark", "aria-hidden": "true" }, "!"), unseen("Alarm: "), text);
      item.update = (fresh) => say(text, plain(fresh.saw));
      return item;
    });
    const held = lock?.holders ?? [];
    nobody.hidden = held.length > 0;
    say(nobody, lock?.kind === "latch" ? "A latch is held by nobody." : "Nobody holds it.");
    list(holders, held, (holder) => holder.token, ({ held_ms, left_ms, late, ...rest }) => rest, (holder) => holderCard(holder, page, tools));
    const election = lock?.kind === "election";
    queue.classList.toggle("candidates", election);
    say(heldTitle, election ? "Led by" : "Held by");
    if (election) say(queueTitle, "Candidates");
    else say(queueTitle, lock?.waiters ? `Queue of ${count(lock.waiters)}` : "Queue");
    queueEmpty.hidden = page.queue.length > 0;
    list(queue, page.queue.map((waiter, place) => ({ ...waiter, place })), (waiter) => `${who(waiter)} ${waiter.place}`, ({ waited_ms, ...rest }) => rest, waiterLine);
    lanes.show(page.timeline);
    list(meaning, page.meaning.map((text) => ({ text })), (item) => item.text, (item) => item, (item) => h("li", {}, item.text));
    say(kept, page.kept);
  }

  function tick() {
    const more = tools.now();
    for (const child of [...holders.children, ...queue.children]) child.tick(more);
  }

  const root = h("section", { class: "page lock" },
    h("p", { class: "back" }, h("a", { href: tools.link("locks") }, "← All locks")),
    title, facts, alarms,
    h("div", { class: "columns" },
      h("section", {}, heldTitle, nobody, holders),
      h("section", {}, queueTitle, queueEmpty, queue)),
    h("section", {}, h("div", { class: "with-choice" }, h("h2", {}, "What was seen"), ranges), lanes.root, kept),
    h("section", {}, h("h2", {}, "What it means for its users"), meaning));
  function open(fresh) {
    const chosen = Number(fresh.minutes ?? 60);
    if (chosen !== minutes) { minutes = chosen; range(); }
  }
  return { root, show, tick, open };
}

function summary(lock) {
  if (lock.kind === "latch") return `Latch · ${count(lock.remaining)} of ${count(lock.initial)} left to count`;
  if (lock.kind === "election") return `Election · ${lock.holder_count ? "1 leader" : "no leader"} · ${many(lock.waiters, "candidate")}`;
  const capacity = lock.kind === "semaphore" ? ` · ${many(Number(lock.capacity), "permit")}` : "";
  return `${kind(lock.kind)}${capacity} · ${many(lock.holder_count, "holder")} · ${many(lock.waiters, "waiter")}`;
}

function holderCard(holder, page, tools) {
  const held = h("b", {});
  const left = leaseBar();
  const notes = [
    holder.evicted && h("span", { class: "tag bad" }, "being evicted"),
    holder.detached && h("span", { class: "tag" }, "outlives its process"),
    !holder.renewed && !holder.detached && h("span", { class: "tag" }, "not renewed"),
    holder.units !== "all" && page.lock.kind === "rw_lock" && h("span", { class: "tag" }, "reads"),
    holder.units !== "all" && page.lock.kind === "semaphore" && h("span", { class: "tag" }, many(Number(holder.units), "permit")),
  ];
  const card = h("li", {},
    h("div", { class: "line" },
      h("span", { class: "who" }, h("b", {}, plain(holder.program)), h("span", { class: "quiet" }, holder.pid ? ` ${holder.pid}` : "", ` @ ${plain(holder.host)}`)),
      notes),
    holder.label && h("p", { class: "label" }, plain(holder.label)),
    h("dl", {},
      h("div", {}, h("dt", {}, "Held for"), h("dd", {}, held)),
      h("div", {}, h("dt", {}, "Lease left"), h("dd", {}, left.root)),
      h("div", {}, h("dt", {}, "Token"), h("dd", {}, h("code", {}, holder.token))),
      holder.value && h("div", {}, h("dt", {}, "Publishes"), h("dd", {}, h("code", {}, plain(holder.value))))),
    tools.me.role === "administer" && !holder.evicted &&
      h("button", { type: "button", class: "evict", "data-focus": `evict ${holder.token}`, on: { click: () => evictDialog(page.name, now) } }, "Evict …"));
  let now = holder;
  card.update = (fresh) => { now = fresh; card.tick(0); };
  card.tick = (more) => { say(held, ticking(now.held_ms + more)); left.set(now, more); };
  return card;
}

function waiterLine(waiter) {
  const waited = h("span", { class: "waited" });
  const line = h("li", {},
    h("span", { class: "who" }, h("b", {}, plain(waiter.program)), h("span", { class: "quiet" }, waiter.pid ? ` ${waiter.pid}` : "", ` @ ${plain(waiter.host)}`),
      waiter.label && h("small", {}, plain(waiter.label))),
    waited);
  let now = waiter;
  line.update = (fresh) => { now = fresh; line.tick(0); };
  line.tick = (more) => say(waited, ticking(now.waited_ms + more));
  return line;
}
