// Takes a lock back from its holder: with a reason, and after saying what that means.

import { h, say } from "./dom.js";
import { post } from "./stream.js";
import { length, plain, who } from "./text.js";

const FENCED = "With fencing this is safe: whatever the old holder still writes is rejected, because its token is smaller. Without fencing, both may write, and data may be damaged.";

/** What an eviction means for this holder. All bounds are of the whole lease: it may be renewed right before the order. */
export function means(how, holder) {
  const lease = length(holder.lease_ms);
  const third = length(holder.lease_ms / 3);
  if (how === "now" && holder.renewed) {
    return [
      `The lock passes at once. The holder is not asked. If it reaches the store, it learns of it with its next renewal, within ${third}. If it is cut off or stuck, it works on until its own deadline, up to ${lease}, and a process that stands still works on when it wakes up.`,
      FENCED,
    ];
  }
  if (how === "now") {
    return [
      `The lock passes at once. The holder is not asked and does not ask: nobody renews its lease, so it works on until the lease ends, up to ${lease}.`,
      FENCED,
    ];
  }
  const safe = "This is safe with and without fencing: nobody else holds the lock before the holder has stopped, or its lease has ended.";
  if (holder.renewed) {
    return [
      `The holder's next renewal is refused, within ${third} if it reaches the store. It learns that it lost the lock and why, and the lock passes when it leaves, at the latest after ${lease}.`,
      safe,
    ];
  }
  return [
    `Nobody renews this lease, so there is nothing to refuse: the lock passes when its holder releases it or when the lease ends, at the latest after ${lease}. To have it before, evict at once.`,
    safe,
  ];
}

export function evictDialog(name, holder) {
  const reason = h("textarea", { id: "reason", rows: 2, required: true, maxlength: 1000, placeholder: "Why, for the record and for the holder" });
  const sure = h("input", { type: "checkbox", id: "sure", required: true });
  const sureText = h("span", {});
  const meaning = h("div", { class: "means", "aria-live": "polite" });
  const failed = h("p", { class: "wrong", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: "danger" }, "Evict");
  const how = (value, title, checked) => h("label", { class: "radio" },
    h("input", { type: "radio", name: "how", value, checked, on: { change: () => explain() } }), title);
  const form = h("form", { method: "dialog", on: { submit: (event) => { event.preventDefault(); send(); } } },
    h("h2", { id: "evict-title" }, "Evict the holder?"),
    h("p", { class: "subject" }, h("code", {}, plain(name)), h("br", {}), `held by ${plain(who(holder))}`),
    h("fieldset", {}, h("legend", {}, "How"),
      how("soon", "Let it finish: refuse its renewals", true),
      how("now", "At once", false)),
    meaning,
    h("label", { for: "reason" }, "Reason"), reason,
    h("label", { class: "check", for: "sure" }, sure, sureText),
    failed,
    h("div", { class: "buttons" },
      h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), go));
  const dialog = h("dialog", { "aria-labelledby": "evict-title", class: "evict-dialog" }, form);

  const chosen = () => form.querySelector("input[name=how]:checked").value;
  function explain() {
    meaning.replaceChildren(...means(chosen(), holder).map((text) => h("p", {}, text)));
    say(sureText, chosen() === "now"
      ? "I know that the resource checks tokens, or that the holder is gone."
      : "I know that the holder loses this lock.");
    sure.checked = false;
    go.classList.toggle("hard", chosen() === "now");
  }

  async function send() {
    go.disabled = true;
    failed.hidden = true;
    try {
      const done = await post("/v1/evict", { name, token: holder.token, now: chosen() === "now", reason: reason.value.trim() });
      if (!done.evicted.some((one) => one.done)) throw new Error("It does not hold the lock any more. Nothing was done.");
      dialog.close();
    } catch (error) {
      say(failed, [error.message, error.whatToDo].filter(Boolean).join(" — "));
      failed.hidden = false;
      go.disabled = false;
    }
  }

  const before = document.activeElement;
  // The button is gone once its holder is being evicted.
  dialog.addEventListener("close", () => {
    dialog.remove();
    const back = before?.isConnected && before !== document.body ? before : document.getElementById("main");
    back.focus({ preventScroll: true });
  });
  document.body.append(dialog);
  explain();
  dialog.showModal();
  reason.focus();
}
