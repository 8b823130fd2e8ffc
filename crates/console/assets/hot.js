// Hot locks: where waiting adds up, why, and what helps.

import { choice, h, list, s, say } from "./dom.js";
import { about, count, kind, many, plain } from "./text.js";

const BY = [["waiting", "Waiting time"], ["waiters", "Waiters"], ["turnover", "Turnover"]];
const VALUE = { waiting: (point) => point.waited_ms, waiters: (point) => point.waiters, turnover: (point) => point.changes };

export function hotPage(query, tools) {
  const choices = h("div", { class: "choices" });
  const locks = h("ol", { class: "hot" });
  const nothing = h("p", { class: "nothing", hidden: true }, "No lock is hot: nobody waited in this time.");
  const kept = h("p", { class: "fine" });
  let minutes = Number(query.minutes ?? 5);
  let by = query.by ?? "waiting";

  function draw(focus) {
    const chosen = (change) => { ({ minutes, by } = { minutes, by, ...change }); tools.go(change); draw(Object.values(change)[0]); };
    choices.replaceChildren(
      choice("Ranked by", BY, by, (value) => chosen({ by: value })),
      choice("How far back", [[1, "1 min"], [5, "5 min"], [60, "1 hour"]], minutes, (value) => chosen({ minutes: value })));
    if (focus !== undefined) choices.querySelector(`[data-focus="${focus}"]`).focus();
  }
  draw();

  function show(page) {
    nothing.hidden = page.locks.length > 0;
    const most = Math.max(1, ...page.locks.flatMap((lock) => lock.curve.map(VALUE[page.by])));
    list(locks, page.locks, (lock) => lock.name, (lock) => [lock.name, lock.kind], (lock) => card(lock, tools));
    for (const [place, item] of [...locks.children].entries()) item.draw(page.locks[place], page, most);
    say(kept, page.kept);
  }

  const root = h("section", { class: "page" },
    h("div", { class: "with-choice" }, h("h1", {}, "Hot locks"), choices),
    locks, nothing, kept);
  /** Another address of this page: the buttons show what it says. */
  function open(fresh) {
    const [wanted, ranked] = [Number(fresh.minutes ?? 5), fresh.by ?? "waiting"];
    if (wanted !== minutes || ranked !== by) { [minutes, by] = [wanted, ranked]; draw(); }
  }
  return { root, show, open };
}

function card(lock, tools) {
  const why = h("p", { class: "why" });
  const helps = h("p", { class: "helps" });
  const curve = h("div", { class: "curve" });
  const numbers = h("dl", { class: "numbers" });
  const item = h("li", {},
    h("div", { class: "text" },
      h("h2", {}, h("a", { href: tools.link("lock", { name: lock.name }), "data-focus": "name" }, plain(lock.name)), h("span", { class: "quiet" }, ` ${kind(lock.kind)}`)),
      why, helps),
    h("div", { class: "side" }, numbers, curve));
  item.draw = (now, page, most) => {
    say(why, plain(now.why));
    say(helps, now.helps);
    const facts = [
      { what: "waited", value: about(now.waited_ms), by: "waiting" },
      { what: "most waiters", value: count(now.waiters), by: "waiters" },
      { what: "changes", value: count(now.changes), by: "turnover" },
    ];
    list(numbers, facts, (fact) => fact.by, (fact) => [fact, page.by], (fact) =>
      h("div", { class: fact.by === page.by ? "chosen" : null }, h("dt", {}, fact.what), h("dd", {}, fact.value)));
    curve.replaceChildren(area(now, page, most));
  };
  return item;
}

/** The chosen number over time. All locks have one scale, so that heights can be compared. */
function area(lock, page, most) {
  const width = 240;
  const height = 48;
  const values = lock.curve.map(VALUE[page.by]);
  const step = width / Math.max(1, values.length - 1);
  const y = (value) => height - 2 - Math.sqrt(value / most) * (height - 6);
  const line = values.map((value, place) => `${(place * step).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
  const peak = Math.max(...values);
  const label = page.by === "waiting" ? about(peak) : count(peak);
  return s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Over the last ${many(page.minutes, "minute")}; the peak was ${label}` },
    s("path", { class: "area", d: `M0 ${height}L${line}L${width} ${height}Z` }),
    s("path", { class: "edge", d: `M${line}` }));
}
