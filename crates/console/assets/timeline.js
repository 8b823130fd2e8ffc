// A lock's last hour as a picture: one lane per process, holds solid, waits hatched, losses and evictions marked.

import { h, list, s, say } from "./dom.js";
import { clock, count, length, many, plain, who } from "./text.js";

const LANE = 30;
const AXIS = 22;
const ENDS = { released: "released", lost: "lost: the lease was not renewed in time", ran_out: "ended with its lease", evicted: "evicted" };

export function timeline() {
  const names = h("div", { class: "lane-names", "aria-hidden": "true" });
  const picture = h("div", { class: "lanes" });
  const words = h("p", { class: "fine" });
  const legend = h("ul", { class: "legend", "aria-hidden": "true" },
    [["hold", "holds"], ["wait", "waits"], ["lost", "lost"], ["evicted", "evicted"], ["unseen-time", "not seen"]].map(([name, text]) =>
      h("li", { class: `l-${name}` }, h("i", {}), text)));
  const body = h("tbody", {});
  const table = h("details", { class: "as-table" }, h("summary", {}, "As a table"),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Holds and waits" },
      h("table", {}, h("thead", {}, h("tr", {}, ["Who", "What", "From", "To", "How it ended"].map((title) => h("th", { scope: "col" }, title)))), body)));
  const chart = h("div", { class: "chart" }, names, picture);
  const root = h("div", { class: "timeline" }, chart, legend, words, table);
  let data = null;
  let width = 0;

  // Drawn in pixels, so that hatching and marks keep their shape at every width.
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) { width = now; draw(); }
  }).observe(picture);
  table.addEventListener("toggle", () => draw());

  function draw() {
    if (!data || !width) return;
    const { from_ms, to_ms, lanes } = data;
    const x = (ms) => Math.max(0, Math.min(width, ((ms - from_ms) / (to_ms - from_ms)) * width));
    const height = Math.max(1, lanes.length) * LANE + AXIS;
    const summary = describe(data);
    names.replaceChildren(...lanes.map((lane) =>
      h("span", { title: plain(who(lane)) }, h("b", {}, plain(lane.program)), ` ${plain(where(lane, lanes))}`)));
    picture.replaceChildren(s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary },
      s("defs", {}, s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        s("rect", { width: 6, height: 6, class: "hatch-ground" }), s("rect", { width: 2, height: 6, class: "hatch-line" }))),
      lanes.map((lane, place) => s("line", { x1: 0, x2: width, y1: (place + 1) * LANE - 0.5, y2: (place + 1) * LANE - 0.5, class: "rule" })),
      unseen(data, x, lanes.length * LANE),
      axis(data, x, lanes.length * LANE),
      lanes.map((lane, place) => s("g", { transform: `translate(0 ${place * LANE})` }, lane.waits.map((wait) => waitShape(wait, x)), lane.holds.map((hold) => holdShape(hold, x))))));
    say(words, summary);
    if (table.open) list(body, rows(data), (row) => row.key, (row) => row, rowElement);
  }

  function show(fresh) {
    data = fresh;
    draw();
  }
  return { root, show };
}

// Where a process runs. Its number is there if another one of the same program runs on that host.
function where(lane, lanes) {
  const alike = lanes.filter((other) => other.program === lane.program && other.host === lane.host);
  return alike.length > 1 && lane.pid ? `${lane.pid} @ ${lane.host}` : lane.host;
}

function span(item, x) {
  const left = x(item.from_ms);
  return { left, width: Math.max(2, x(item.to_ms) - left) };
}

function waitShape(wait, x) {
  const { left, width } = span(wait, x);
  return s("rect", { x: left, y: 9, width, height: 12, class: "wait", fill: "url(#hatch)" },
    s("title", {}, `waited ${length(wait.to_ms - wait.from_ms)} from ${clock(wait.from_ms)}${several(wait, "waits")}`));
}

function holdShape(hold, x) {
  const { left, width } = span(hold, x);
  const end = hold.end ? ENDS[hold.end] : "still held";
  const by = hold.evicted_by ? ` by ${plain(hold.evicted_by)}: ${plain(hold.reason)}` : "";
  const title = `held ${length(hold.to_ms - hold.from_ms)} from ${clock(hold.from_ms)}, ${end}${by}${several(hold, "holds")}`;
  const right = left + width;
  return s("g", { class: hold.end ? "hold" : "hold now" },
    s("title", {}, hold.label ? `${plain(hold.label)}: ${title}` : title),
    s("rect", { x: left, y: 6, width, height: 18, rx: Math.min(3, width / 2) }),
    hold.end === "lost" && s("path", { class: "lost", d: `M${right - 5} 10l10 10m0-10l-10 10` }),
    hold.end === "evicted" && s("path", { class: "evicted", d: `M${right} 2v26M${right} 3h9l-3 4 3 4h-9z` }));
}

function several(item, word) {
  return item.count > 1 ? ` (${count(item.count)} ${word} beside each other)` : "";
}

function unseen(data, x, height) {
  const times = [...data.gaps];
  if (data.seen_since_ms > data.from_ms) times.push({ from_ms: data.from_ms, to_ms: data.seen_since_ms });
  return times.map((gap) => s("rect", { x: x(gap.from_ms), y: 0, width: Math.max(1, x(gap.to_ms) - x(gap.from_ms)), height, class: "unseen-time" },
    s("title", {}, `not seen from ${clock(gap.from_ms)} to ${clock(gap.to_ms)}`)));
}

function axis(data, x, y) {
  const end = x(data.to_ms);
  const step = [60_000, 120_000, 300_000, 600_000, 900_000].find((step) => x(data.from_ms + step) >= 80) ?? 1_200_000;
  const marks = [];
  // Whole minutes of the local time.
  for (let at = Math.ceil(data.from_ms / step) * step; at <= data.to_ms; at += step) marks.push(at);
  return s("g", { class: "axis" }, marks.map((at) => [
    s("line", { x1: x(at), x2: x(at), y1: 0, y2: y + 4 }),
    // The first one would be cut off, and the last one would touch "now".
    x(at) > 20 && x(at) < end - 50 && s("text", { x: x(at), y: y + 17, "text-anchor": "middle" }, clock(at).slice(0, 5)),
  ]), s("text", { x: end, y: y + 17, "text-anchor": "end" }, "now"));
}

function describe(data) {
  if (!data.lanes.length) return "Nobody was seen to hold it or to wait for it in this time.";
  const parts = [many(data.holds, "hold"), many(data.waits, "wait")];
  if (data.losses) parts.push(many(data.losses, "loss", "losses"));
  if (data.evictions) parts.push(many(data.evictions, "eviction"));
  const more = data.more_lanes ? ` ${many(data.more_lanes, "more process", "more processes")} not drawn.` : "";
  return `${parts.join(", ")} of ${many(data.lanes.length + data.more_lanes, "process", "processes")} were seen.${more}`;
}

function rows(data) {
  const all = data.lanes.flatMap((lane) => [
    ...lane.holds.map((hold) => ({ ...hold, lane, what: "held", how: hold.end ? ENDS[hold.end] : "still holds" })),
    ...lane.waits.map((wait) => ({ ...wait, lane, what: "waited", how: wait.end === "granted" ? "got it" : wait.end ? "left the queue" : "still waits" })),
  ]);
  all.sort((one, other) => other.from_ms - one.from_ms);
  return all.slice(0, 300).map((item, place) => ({
    key: `${who(item.lane)} ${item.what} ${item.from_ms} ${item.token ?? place}`,
    who: plain(who(item.lane)),
    what: item.count > 1 ? `${item.what} ${count(item.count)} times` : item.what,
    from: clock(item.from_ms),
    to: item.end ? clock(item.to_ms) : "",
    how: item.how,
  }));
}

function rowElement(row) {
  return h("tr", {}, [row.who, row.what, row.from, row.to, row.how].map((text) => h("td", {}, text)));
}
