// The store: what it can do and survive, and what the doctor found.

import { h, list, say } from "./dom.js";
import { clock, plain } from "./text.js";

export function storePage() {
  const title = h("h1", {});
  const url = h("p", { class: "facts" });
  const findings = h("ul", { class: "alarms" });
  const healthy = h("p", { class: "calm", hidden: true });
  const words = h("dl", { class: "words" });
  const kept = h("p", { class: "fine" });

  function show(page) {
    say(title, page.kind.charAt(0).toUpperCase() + page.kind.slice(1));
    say(url, plain(page.url));
    healthy.hidden = page.findings.length > 0;
    say(healthy, page.checked_ms === null ? "The doctor has not looked yet." : `The doctor looked at ${clock(page.checked_ms)} and found nothing that puts locks at risk.`);
    list(findings, page.findings, (found) => `${found.server} ${found.message}`, (found) => found, (found) =>
      h("li", { class: "warned" }, h("div", { class: "title" }, h("b", {}, found.server ? plain(found.server) : "Doctor's warning")), h("span", { class: "saw" }, plain(found.message))));
    list(words, page.words, (word) => word.what, (word) => word, (word) =>
      h("div", {}, h("dt", {}, word.what), h("dd", { class: `answer ${word.rank}` }, word.answer), h("dd", { class: "means" }, word.means)));
    say(kept, page.kept);
  }

  const root = h("section", { class: "page" },
    title, url, h("h2", {}, "What the doctor found"), healthy, findings,
    h("h2", {}, "What it can do and survive"), words,
    h("h2", {}, "What this server keeps"), kept);
  return { root, show };
}
