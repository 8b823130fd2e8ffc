// The store: what the doctor found, its servers, and what it can do and survive.

import { h, list, say } from "./dom.js";
import { clock, many, plain } from "./text.js";

export function storePage() {
  const title = h("h1", {});
  const url = h("p", { class: "facts" });
  const findings = h("ul", { class: "alarms" });
  const healthy = h("p", { class: "calm", hidden: true });
  const servers = h("dl", { class: "words servers" });
  const serversTitle = h("h2", { hidden: true }, "Its servers");
  const failed = h("p", { class: "wrong", hidden: true });
  const words = h("dl", { class: "words" });
  const kept = h("p", { class: "fine" });

  function show(page) {
    say(title, page.kind.charAt(0).toUpperCase() + page.kind.slice(1));
    say(url, plain(page.url));
    healthy.hidden = page.findings.length > 0 || (page.check_error !== null && page.checked_ms === null);
    healthy.classList.toggle("calm", page.checked_ms !== null);
    if (!page.is_checked) say(healthy, "There are no checks for such a store.");
    else if (page.checked_ms === null) say(healthy, "The doctor has not looked yet.");
    else say(healthy, `The doctor looked at ${clock(page.checked_ms)} and found nothing that puts locks at risk.`);
    failed.hidden = page.check_error === null;
    const from = page.checked_ms === null ? "It has not looked before." : `What it says here is from ${clock(page.checked_ms)}.`;
    say(failed, `The doctor cannot look: ${plain(page.check_error ?? "")}. ${from}`);
    list(findings, page.findings, (found) => `${found.server} ${found.message}`, (found) => found, (found) =>
      h("li", { class: "warned" }, h("div", { class: "title" }, h("b", {}, found.server ? plain(found.server) : "Doctor's warning")), h("span", { class: "saw" }, plain(found.message))));
    serversTitle.hidden = servers.hidden = page.servers.length === 0;
    list(servers, page.servers, (server) => server.server, (server) => server, (server) =>
      h("div", {}, h("dt", {}, plain(server.server)),
        h("dd", { class: `answer ${server.answers ? (server.warnings ? "fair" : "good") : "poor"}` }, server.answers ? (server.warnings ? many(server.warnings, "warning") : "well") : "silent"),
        h("dd", { class: "means" }, plain(server.words))));
    list(words, page.words, (word) => word.what, (word) => word, (word) =>
      h("div", {}, h("dt", {}, word.what), h("dd", { class: `answer ${word.rank}` }, word.answer), h("dd", { class: "means" }, word.means)));
    say(kept, page.kept);
  }

  const root = h("section", { class: "page" },
    title, url, h("h2", {}, "What the doctor found"), failed, healthy, findings, serversTitle, servers,
    h("h2", {}, "What it can do and survive"), words,
    h("h2", {}, "What this server keeps"), kept);
  return { root, show };
}
